"""A process that answers one SQL query with DuckDB and can reach nothing but the tables that it was given.

It reads a task as JSON from standard input, loads the tables, closes DuckDB to files, networks and settings,
runs the query, and writes the answer as JSON. It is started as a script, with limits of memory and time.
"""

import json
import resource
import sys
from typing import Any

import duckdb

FILES_MAX = 64
ADDRESS_SPACE_FACTOR = 8
"""Memory that is reserved is not used: the limit of DuckDB itself is much lower."""
CLOSED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
READING = frozenset({duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN})


def main() -> None:
    task = json.load(sys.stdin)
    memory = int(task["memory_bytes"])
    _limit(memory, float(task["seconds"]))
    config: dict[str, Any] = {**CLOSED, "memory_limit": f"{memory >> 20}MB", "threads": "1"}
    try:
        connection = duckdb.connect(":memory:", config=config)
        for table in task["tables"]:
            _load(connection, table, int(task["table_rows_max"]))
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        # Nothing is written from here on.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        answer = _answer(connection, task["query"], int(task["rows_max"]))
    except duckdb.Error as error:
        answer = {"error": str(error).strip()}
    except MemoryError:
        answer = {"error": f"the query needs more than {memory >> 20} MB"}
    json.dump(answer, sys.stdout, default=str)


def _limit(memory: int, seconds: float) -> None:
    space = ADDRESS_SPACE_FACTOR * memory
    for kind, value in (
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_CPU, round(seconds) + 1),
        (resource.RLIMIT_NOFILE, FILES_MAX),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _load(connection: duckdb.DuckDBPyConnection, table: dict[str, Any], rows_max: int) -> None:
    schema, name = table["schema"], _quoted(table["name"])
    if schema:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        name = f"{_quoted(schema)}.{name}"
    if table["kind"] == "parquet":
        connection.execute(
            f"CREATE TABLE {name} AS SELECT * FROM "  # noqa: S608 - the name is quoted
            "read_parquet(?, hive_partitioning = true, union_by_name = true) LIMIT ?",
            [table["files"], rows_max],
        )
        return
    columns = {**table["columns"], **dict.fromkeys(table["times"], "BIGINT")}
    times = (f"make_timestamp({_quoted(column)} * 1000) AS {_quoted(column)}" for column in table["times"])
    connection.execute(
        f"CREATE TABLE {name} AS SELECT * REPLACE ({', '.join(times)})"  # noqa: S608 - the names are quoted
        " FROM read_json(?, format = 'newline_delimited', columns = ?)",
        [table["files"][0], columns],
    )
    # Bodies that are JSON become a column whose fields have names.
    [shape] = connection.execute(
        f"SELECT json_group_structure(CASE WHEN json_valid(bodyText) THEN bodyText::JSON END) FROM {name}"  # noqa: S608
    ).fetchone() or [None]
    if shape is not None and shape.startswith("{"):
        connection.execute(f"ALTER TABLE {name} ADD COLUMN value JSON")
        connection.execute(
            f"CREATE OR REPLACE TABLE {name} AS SELECT * REPLACE (json_transform("  # noqa: S608
            f"CASE WHEN json_valid(bodyText) THEN bodyText::JSON END, ?) AS value) FROM {name}",
            [shape],
        )


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _answer(connection: duckdb.DuckDBPyConnection, query: str, rows_max: int) -> dict[str, Any]:
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        return {"error": f"{len(statements)} statements; pass exactly one query"}
    if statements[0].type not in READING:
        return {"error": f"{statements[0].type.name} is not allowed here; pass a SELECT"}
    found = connection.execute(statements[0])
    columns = [[str(name), str(kind)] for name, kind, *_ in found.description or ()]
    rows = found.fetchmany(rows_max + 1)
    shown = [list(row) for row in rows[:rows_max]]
    return {"columns": columns, "rows": shown, "has_more": len(rows) > rows_max}


if __name__ == "__main__":
    main()
