"""SQL over topics, store files and tables of a lake: the tables that a query names, and its answer."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from skylark.admin.admin import AsyncAdmin
from skylark.client.received_message import ReceivedMessage
from skylark.console.settings import ConsoleSettings
from skylark.errors import SettingsError
from skylark.model.body import plain_body
from skylark.model.message import StoredMessage
from skylark.store.store_reader import StoreReader

MESSAGES_MAX = 100_000
MESSAGES = 10_000
"""Newest messages of a topic that a query sees, unless it asks for more."""
TOPIC_BYTES_MAX = 64 << 20
TABLE_ROWS_MAX = 1_000_000
ROWS_MAX = 1000
MEMORY_BYTES = 512 << 20
SECONDS_MAX = 30
AT_ONCE_MAX = 2
QUERY_CHARS_MAX = 20_000
ANSWER_BYTES_MAX = 16 << 20
LAKE, STORE = "lake", "store"
"""Schemas of tables that are not topics."""
COLUMNS = {
    "topic": "VARCHAR",
    "brokerName": "VARCHAR",
    "queueId": "INTEGER",
    "queueOffset": "BIGINT",
    "msgId": "VARCHAR",
    "tags": "VARCHAR",
    "keys": "VARCHAR",
    "reconsumeTimes": "INTEGER",
    "bornHost": "VARCHAR",
    "properties": "MAP(VARCHAR, VARCHAR)",
    "bodyText": "VARCHAR",
}
TIMES = ("bornTimestamp", "storeTimestamp")
"""The columns have the names of `skylark spark sql`; `value` has the fields of JSON bodies."""
_WORD = re.compile(r'(?:(\w+)\.)?(?:"((?:[^"]|"")+)"|(\w+))')


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """Rows of a query, or the sentence why there are none. `notes` say what was read."""

    columns: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    has_more: bool = False
    error: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table that a query may name; `schema` is empty for topics."""

    schema: str
    name: str

    @property
    def text(self) -> str:
        """As it is written in a query."""
        is_plain = re.fullmatch(r"[A-Za-z_]\w*", self.name)
        name = self.name if is_plain else '"{}"'.format(self.name.replace('"', '""'))
        return f"{self.schema}.{name}" if self.schema else name


def named_tables(query: str, known: Iterable[SqlTable]) -> list[SqlTable]:
    """The known tables whose names occur in a query. Pure."""
    words = set()
    for schema, quoted, plain in _WORD.findall(query):
        words.add((schema, quoted.replace('""', '"') or plain))
        if schema:
            words.add(("", schema))
    return [table for table in known if (table.schema, table.name) in words]


@dataclass
class SqlRunner:
    """Runs queries, AT_ONCE_MAX at a time. Owned by one event loop."""

    settings: ConsoleSettings
    seconds_max: float = SECONDS_MAX
    _running: int = field(default=0, init=False)

    def tables(self, topics: Iterable[str]) -> list[SqlTable]:
        """Topics of the cluster, topics of the store directory, tables of the lake."""
        found = [SqlTable("", topic) for topic in topics]
        if self.settings.store is not None:
            found += [SqlTable(STORE, topic) for topic in StoreReader(self.settings.store).topics()]
        return [*found, *(SqlTable(LAKE, name) for name in self.settings.lake)]

    async def run(
        self, query: str, admin: AsyncAdmin, topics: Iterable[str], messages: int = MESSAGES
    ) -> SqlAnswer:
        """The answer to a query. Raises SettingsError without DuckDB or beyond a limit, RocketMQError."""
        if importlib.util.find_spec("duckdb") is None:
            raise SettingsError("sql", "DuckDB is not installed; run: pip install 'skylarkmq[console]'")
        if len(query) > QUERY_CHARS_MAX:
            raise SettingsError("sql", f"the query has {len(query)} characters, more than {QUERY_CHARS_MAX}")
        if self._running >= AT_ONCE_MAX:
            raise SettingsError("sql", f"{AT_ONCE_MAX} queries run already; try again in a moment")
        self._running += 1
        try:
            with tempfile.TemporaryDirectory(prefix="skylark-sql-") as folder:
                return await self._run(query, admin, topics, min(messages, MESSAGES_MAX), Path(folder))
        finally:
            self._running -= 1

    async def _run(
        self, query: str, admin: AsyncAdmin, topics: Iterable[str], messages: int, folder: Path
    ) -> SqlAnswer:
        tables: list[dict[str, Any]] = []
        notes: list[str] = []
        for number, table in enumerate(named_tables(query, await asyncio.to_thread(self.tables, topics))):
            path = folder / f"{number}.json"
            if table.schema == LAKE:
                files = await asyncio.to_thread(lake_files, self.settings.lake[table.name])
                tables.append({"kind": "parquet", "schema": LAKE, "name": table.name, "files": files})
                continue
            if table.schema == STORE:
                assert self.settings.store is not None
                count = await asyncio.to_thread(_write_store, path, self.settings.store, table.name, messages)
            else:
                found = await admin.messages.newest(table.name, messages_max=messages, scanned_max=messages)
                count = _write_rows(path, map(_row, found.messages))
            tables.append(
                {"kind": "messages", "schema": table.schema, "name": table.name, "files": [str(path)],
                 "columns": COLUMNS, "times": TIMES}
            )  # fmt: skip
            notes.append(f"{table.text}: {count:,}")
        task = {
            "query": query, "tables": tables, "memory_bytes": MEMORY_BYTES, "seconds": self.seconds_max,
            "rows_max": ROWS_MAX, "table_rows_max": TABLE_ROWS_MAX,
        }  # fmt: skip
        answer = await _ask_process(msgspec.json.encode(task), folder, self.seconds_max)
        return SqlAnswer(
            tuple((name, kind) for name, kind in answer.get("columns", ())),
            tuple(map(tuple, answer.get("rows", ()))),
            bool(answer.get("has_more")),
            str(answer.get("error", "")),
            tuple(notes),
        )


async def _ask_process(task: bytes, folder: Path, seconds_max: float) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(Path(__file__).with_name("sql_process.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=folder,
        env={},
        limit=ANSWER_BYTES_MAX,
    )
    try:
        async with asyncio.timeout(seconds_max):
            output, _ = await process.communicate(task)
    except TimeoutError:
        return {"error": f"the query takes longer than {seconds_max:g} s"}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if len(output) > ANSWER_BYTES_MAX:
        return {"error": f"the answer has more than {ANSWER_BYTES_MAX >> 20} MB; select less"}
    try:
        answer: dict[str, Any] = msgspec.json.decode(output)
    except msgspec.DecodeError:
        limits = f"{MEMORY_BYTES >> 20} MB or {seconds_max:g} s"
        return {"error": f"the query was ended: it needs more than {limits}"}
    return answer


# --- Rows ---


def _write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> int:
    """Up to TOPIC_BYTES_MAX; returns their number."""
    count = size = 0
    with path.open("wb") as file:
        for row in rows:
            size += file.write(msgspec.json.encode(row) + b"\n")
            count += 1
            if size > TOPIC_BYTES_MAX:
                break
    return count


def _row(message: ReceivedMessage) -> dict[str, object]:
    return {
        "topic": message.topic,
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "tags": message.tags,
        "keys": " ".join(message.keys) or None,
        "reconsumeTimes": message.reconsume_times,
        "bornHost": message.born_host,
        "properties": dict(message.properties),
        "bodyText": _text(message.body),
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
    }


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _write_store(path: Path, directory: Path, topic: str, messages: int) -> int:
    """The newest messages of each queue of a topic in a store directory."""
    reader = StoreReader(directory)
    queues = reader.queues(topic)
    each = -(-messages // max(len(queues), 1))
    return _write_rows(
        path,
        (
            _stored_row(message)
            for queue in queues
            for message in reader.messages(
                topic,
                queue.queue_id,
                max(queue.min_offset, queue.max_offset - each),
                on_corrupt=lambda *_: None,
            )
        ),
    )


def _stored_row(message: StoredMessage) -> dict[str, object]:
    return {
        "topic": message.topic,
        "brokerName": "",
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.unique_key,
        "tags": message.tags,
        "keys": " ".join(message.keys) or None,
        "reconsumeTimes": message.reconsume_times,
        "bornHost": message.born_host,
        "properties": dict(message.properties),
        "bodyText": _text(plain_body(message)),
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
    }


def lake_files(place: str) -> list[str]:
    """The Parquet files of a table, which is in a directory. Raises SettingsError."""
    from skylark.pipelines.lake.file_store import DirectoryFiles  # noqa: PLC0415 - needs the extra `spark`
    from skylark.pipelines.lake.table_commit import open_log  # noqa: PLC0415

    kind, _, where = place.partition(":")
    log = open_log(kind, where)
    if not isinstance(log.store, DirectoryFiles):
        raise SettingsError("lake", f"SQL cannot read {place}; only tables in directories")
    return [str(log.store.root / file.path) for file in log.files()]


def rows_of(answer: SqlAnswer) -> Iterator[dict[str, Any]]:
    """Columns of the same name get a number."""
    names: list[str] = []
    for name, _ in answer.columns:
        names.append(name if name not in names else f"{name}_{len(names)}")
    for row in answer.rows:
        yield dict(zip(names, row, strict=True))
