"""Tables of the lake: those that the console reads, and those that jobs report to write."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skylark.console.grid import Grid, GridColumn
from skylark.console.sql import LAKE, SqlTable
from skylark.console.view import Ask, NotThere, PageView, list_page
from skylark.errors import SettingsError
from skylark.model.job_report import JobReport
from skylark.model.names import LAKE_NAMESPACE

FORMATS = ("delta", "parquet", "iceberg")
VERSIONS = 20
SMALL_BYTES = 32 << 20
"""Files below this are worth joining: `skylark lake` does."""


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """What the log of a table says."""

    rows: int
    files: int
    small_files: int
    bytes: int
    version: int | None = None
    last_commit_ms: int | None = None
    columns: list[dict[str, Any]] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)


def read_table(place: str) -> TableFacts:
    """Read the log of `delta:DIR`, `parquet:DIR` or `iceberg:NAME`; may block. Raises SettingsError."""
    try:
        from skylark.pipelines.lake.table_commit import open_log  # noqa: PLC0415 - needs the extra `lake`
    except ImportError as error:
        raise SettingsError("lake", f"{error}; run: pip install 'skylarkmq[lake]'") from None
    layout, _, where = place.partition(":")
    try:
        files = open_log(layout, where).files()
        commits, columns = _READERS[layout](where)
    except SettingsError:
        raise
    except Exception as error:  # noqa: BLE001 - each format and store has errors of its own
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise SettingsError("lake", f"cannot read {place}: {first}") from None
    return TableFacts(
        rows=sum(file.rows for file in files),
        files=len(files),
        small_files=sum(1 for file in files if file.size < SMALL_BYTES),
        bytes=sum(file.size for file in files),
        version=commits[0]["version"] if commits else None,
        last_commit_ms=max((commit["committed"] for commit in commits), default=None),
        columns=columns,
        commits=commits,
    )


def _delta(where: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The last commits of a table, newest first, and its columns."""
    from skylark.pipelines.lake.delta_log import open_delta  # noqa: PLC0415

    table = open_delta(where)
    commits = [
        {
            "version": entry.get("version"),
            "committed": entry.get("timestamp"),
            "what": entry.get("operation", ""),
            "engine": entry.get("engineInfo") or entry.get("clientVersion") or "",
        }
        for entry in table.history(VERSIONS)
    ]
    return commits, [{"name": part.name, "type": _type(part.type)} for part in table.schema().fields]


def _iceberg(where: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from skylark.pipelines.lake.iceberg_log import IcebergLog  # noqa: PLC0415

    log = IcebergLog(where)
    commits = [
        {
            "version": snapshot.sequence_number,
            "committed": snapshot.timestamp_ms,
            "what": "" if snapshot.summary is None else snapshot.summary.operation.value,
            "engine": "",
        }
        for snapshot in reversed(log.snapshots()[-VERSIONS:])
    ]
    return commits, [{"name": part.name, "type": str(part.type)} for part in log.columns()]


def _parquet(where: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A directory of Parquet files has no versions; its last file says when it grew."""
    times = [round(path.stat().st_mtime * 1000) for path in Path(where).rglob("*.parquet")]
    return [{"version": None, "committed": at, "what": "", "engine": ""} for at in sorted(times)[-1:]], []


_READERS = {"delta": _delta, "iceberg": _iceberg, "parquet": _parquet}


def _type(found: Any) -> str:
    return str(getattr(found, "type", found)).removeprefix("PrimitiveType(").strip('")')


async def _jobs_of_tables(ask: Ask) -> dict[str, JobReport]:
    """The last report for each table that a job writes, by its place."""
    jobs = sorted(await ask.admin.pipelines.jobs(), key=lambda job: job.time_ms)
    return {place: job for job in jobs for place in job.outputs if place.partition(":")[0] in FORMATS}


def _writer(place: str, jobs: dict[str, JobReport]) -> JobReport | None:
    """The job that writes a table: the same place, or the same directory of this machine."""
    layout, _, where = place.partition(":")
    own = Path(where).resolve()
    for other, job in jobs.items():
        kind, _, there = other.partition(":")
        if kind == layout and (other == place or Path(there).resolve() == own):
            return job
    return None


async def index(ask: Ask) -> PageView:
    """Every table with its size, its last commit, and how far it is behind its topics."""
    now_ms = round(time.time() * 1000)
    jobs = await _jobs_of_tables(ask)
    archives = await ask.admin.name_servers.table(LAKE_NAMESPACE)
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    seen: set[str] = set()
    for name, place in ask.settings.lake.items():
        job = _writer(place, jobs)
        try:
            state = await asyncio.to_thread(read_table, place)
        except SettingsError as error:
            failures.append(f"{name}: {error}")
            state = None
        if job is not None:
            seen.update(other for other, one in jobs.items() if one is job)
        rows.append({**_row(name, place, job, now_ms), **_sizes(state), "href": ask.href("tables", name)})
    for place, job in jobs.items():
        if place not in seen:
            name = place.partition(":")[2].rstrip("/").rpartition("/")[2]
            rows.append({**_row(name, place, job, now_ms), "href": ask.href("pipelines", job.name)})
    for topic, place in sorted(archives.items()):  # what `skylark lake` has registered
        row = next((row for row in rows if f"{row['format']}:{row['location']}" == place), None)
        if row is None:
            name = place.partition(":")[2].rstrip("/").rpartition("/")[2]
            row = {**_row(name, place, None, now_ms), "href": ask.href("topics", topic, "messages")}
            rows.append(row)
        if topic not in row["topics"]:
            row["topics"].append(topic)
    columns = (
        GridColumn("table", "name", lambda row: row["href"]),
        GridColumn("format", "tag"),
        GridColumn("location", "code"),
        GridColumn("topics", "topics"),
        GridColumn("rows", "number"),
        GridColumn("files", "number"),
        GridColumn("small_files", "number", optional=True),
        GridColumn("bytes", "bytes"),
        GridColumn("last_commit", "time"),
        GridColumn("lag", "lag"),
        GridColumn("job", "name", lambda row: ask.href("pipelines", row["job"]) if row["job"] else None),
        GridColumn("state", "state"),
    )
    return await list_page(
        ask,
        "tables",
        Grid("tables", columns, rows, sort="table", sortable=frozenset({"table", "rows", "files", "lag"})),
        search=("table", "location", "topics"),
        data={"empty": "skylark console --lake orders=delta:lake/orders"},
        code=(
            ("skylark", f"skylark spark list --namesrv {ask.connection.namesrv}"),
            ("python", "admin.pipelines.jobs()"),
        ),
        failures=tuple(failures),
        live_s=10,
    )


def _row(name: str, place: str, job: JobReport | None, now_ms: int) -> dict[str, Any]:
    layout, _, where = place.partition(":")
    return {
        "table": name,
        "format": layout,
        "location": where,
        "topics": [] if job is None else list(job.topics),
        "lag": None if job is None else job.lag,
        "job": "" if job is None else job.name,
        "state": "" if job is None else job.state_at(now_ms),
    }


def _sizes(state: TableFacts | None) -> dict[str, Any]:
    if state is None:
        return {}
    return {
        "rows": state.rows,
        "files": state.files,
        "small_files": state.small_files,
        "bytes": state.bytes,
        "last_commit": state.last_commit_ms,
    }


async def one(ask: Ask) -> PageView:
    """Size, versions and columns of a table that the console reads."""
    name = ask.path("table")
    place = ask.settings.lake.get(name)
    if place is None:
        raise NotThere(ask.t("table.missing", table=name))
    state = await asyncio.to_thread(read_table, place)
    job = _writer(place, await _jobs_of_tables(ask))
    row = _row(name, place, job, round(time.time() * 1000))
    facts = [
        ("rows", state.rows, "number", None),
        ("bytes", state.bytes, "bytes", None),
        ("files", state.files, "number", None),
        ("small_files", state.small_files, "number", None),
        ("last_commit", state.last_commit_ms, "time", None),
        ("lag", row["lag"], "number", ask.href("pipelines", job.name) if job is not None else None),
    ]
    commits = (
        GridColumn("version", "number"),
        GridColumn("committed", "time"),
        GridColumn("what"),
        GridColumn("engine", optional=True),
    )
    grids = (
        Grid("commits", commits, state.commits),
        Grid("columns", (GridColumn("name", "code"), GridColumn("type", "code")), state.columns),
    )
    query = f"select * from {SqlTable(LAKE, name).text} limit 50"  # noqa: S608 - only put into a form
    return PageView(
        template="table.html",
        nav="tables",
        title=name,
        sentence=place,
        crumbs=((ask.t("tables"), ask.href("tables")), (name, ask.href("tables", name))),
        grids=grids,
        data={"facts": facts, "query": query, "job": job},
        document={**row, **_sizes(state), "commits": state.commits, "columns": state.columns},
        code=(
            ("skylark", f"skylark spark sql '{query}' --namesrv {ask.connection.namesrv}"),
            ("python", f'deltalake.DeltaTable("{row["location"]}").history()'),
        ),
        live_s=10,
    )
