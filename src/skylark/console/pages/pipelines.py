"""Jobs of pipelines: what every running or finished one reported about itself."""

from __future__ import annotations

import time

from skylark.admin.pipelines import HISTORY_MS
from skylark.console.grid import Grid, GridColumn
from skylark.console.view import Ask, NotThere, PageView, list_page
from skylark.model.job_report import RUNNING, SILENT, JobReport

DAYS = HISTORY_MS // 86_400_000
RUN_COLUMNS = (
    GridColumn("state", "state"),
    GridColumn("started", "time"),
    GridColumn("seen", "time"),
    GridColumn("rows", "number"),
    GridColumn("rejected", "number"),
    GridColumn("batches", "number"),
    GridColumn("error"),
)
BATCH_COLUMNS = (
    GridColumn("ended", "time"),
    GridColumn("query", "code"),
    GridColumn("batch", "number"),
    GridColumn("rows", "number"),
    GridColumn("rows_per_s", "rate"),
    GridColumn("lag", "lag"),
    GridColumn("rejected", "number"),
)


def _row(report: JobReport, now_ms: int) -> dict[str, object]:
    return {
        "job": report.name,
        "state": report.state_at(now_ms),
        "kind": report.kind,
        "topics": list(report.topics),
        "to": list(report.outputs),
        "lag": report.lag,
        "rows_per_s": report.rows_per_s,
        "rows": report.rows,
        "rejected": report.rejected,
        "batches": report.batches,
        "started": report.started_ms,
        "seen": report.time_ms,
        "error": report.error,
    }


async def index(ask: Ask) -> PageView:
    """The last run of every job of the last week."""
    now_ms = round(time.time() * 1000)
    jobs = await ask.admin.pipelines.jobs()
    columns = (
        GridColumn("job", "name", lambda row: ask.href("pipelines", row["job"])),
        GridColumn("state", "state"),
        GridColumn("topics", "topics"),
        GridColumn("to", "words"),
        GridColumn("lag", "lag"),
        GridColumn("rows_per_s", "rate"),
        GridColumn("rows", "number"),
        GridColumn("rejected", "number"),
        GridColumn("batches", "number"),
        GridColumn("seen", "time"),
    )
    rows = [_row(job, now_ms) for job in jobs]
    sortable = frozenset({"job", "state", "lag", "rows_per_s", "rows", "rejected", "batches", "seen"})
    counts = {state: sum(row["state"] == state for row in rows) for state in (RUNNING, "failed", SILENT)}
    return await list_page(
        ask,
        "pipelines",
        Grid("jobs", columns, rows, sortable=sortable),
        search=("job", "topics", "to"),
        sentence={"days": DAYS, **counts},
        data={
            "empty": f"skylark spark archive -n {ask.connection.namesrv} -t orders --to delta:lake/orders",
        },
        code=(
            ("skylark", f"skylark spark list --namesrv {ask.connection.namesrv}"),
            ("python", "admin.pipelines.jobs()"),
        ),
        live_s=5,
    )


async def one(ask: Ask) -> PageView:
    """The last run of a job with its last batches, and the runs of the last week."""
    name, now_ms = ask.path("job"), round(time.time() * 1000)
    runs = await ask.admin.pipelines.runs(name)
    if not runs:
        raise NotThere(ask.t("pipeline.missing", job=name, days=DAYS))
    last = runs[0]
    batches = [
        {
            "ended": batch.time_ms,
            "query": batch.query,
            "batch": batch.number,
            "rows": batch.rows,
            "rows_per_s": batch.rows_per_s,
            "lag": batch.lag,
            "rejected": batch.rejected,
        }
        for batch in reversed(last.last)
    ]
    facts = [
        ("state", last.state_at(now_ms), "state", None),
        ("lag", last.lag, "number", ask.href("groups", last.group) if last.group else None),
        ("rows_per_s", last.rows_per_s, "rate", None),
        ("rows", last.rows, "number", None),
        ("rejected", last.rejected, "number", None),
        ("batches", last.batches, "number", None),
    ]
    details = {
        "command": last.command,
        "source": last.source,
        "to": ", ".join(last.outputs),
        "group": last.group,
        "directory": last.directory,
        "place": f"{last.host}, {last.pid}",
        **{f"count.{key}": f"{count:,}" for key, count in last.counts.items()},
    }
    queries = list(dict.fromkeys(batch.query for batch in last.last))
    return PageView(
        template="pipeline.html",
        nav="pipelines",
        title=name,
        sentence=ask.t(f"pipeline.{last.state_at(now_ms)}"),
        crumbs=((ask.t("pipelines"), ask.href("pipelines")), (name, ask.href("pipelines", name))),
        grids=(
            Grid("batches", BATCH_COLUMNS, batches),
            Grid("runs", RUN_COLUMNS, [_row(run, now_ms) for run in runs]),
        ),
        data={
            "facts": facts,
            "job": last,
            "details": {key: value for key, value in details.items() if value},
            "curves": [
                (query, [(part.time_ms, part.rows_per_s) for part in last.last if part.query == query])
                for query in queries
            ],
        },
        document={"job": name, "runs": runs},
        code=(
            ("skylark", f"skylark spark show {name} --namesrv {ask.connection.namesrv}"),
            ("python", f'admin.pipelines.runs("{name}")'),
        ),
        live_s=5,
    )
