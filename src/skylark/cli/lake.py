"""`skylark lake`: keeps topics archived in tables; the work is in `pipelines.lake_service`."""

from __future__ import annotations

import logging
import platform
import signal
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import AsJson, grouped, pairs, parsed, tabular
from skylark.cli.output import Screen, print_json
from skylark.cli.server_process import TEXT, LogFormat, LogLevels, configure_logs, say_ready
from skylark.cli.spark_jobs import ConfOption, MasterOption, NamesrvOption, need_extra
from skylark.clock import now_ms
from skylark.quantities import parse_duration_ms

if TYPE_CHECKING:
    from skylark.pipelines.cluster_client import ClusterClient
    from skylark.pipelines.lake_service.rules import LakeRules

app = typer.Typer(no_args_is_help=True, help="Keep topics archived in tables: Delta, Iceberg, Parquet.")

WORKERS_MAX = 64
PORT_MAX = 65_535
EXIT_DIFFERENT = 1


@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """The rules of a lake: a file, or one table."""

    rules: Annotated[
        Path | None, typer.Argument(metavar="[RULES]", help="The rule file, lake.yml; or use -t and --to.")
    ] = None
    namesrv: NamesrvOption = None
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            help="Topics, names or patterns, separated by commas. Default: those whose attribute lake.table "
            "is the last part of --to.",
        ),
    ] = None
    to: Annotated[
        str | None, typer.Option("--to", metavar="TABLE", help="delta:DIR, delta:s3://BUCKET/PATH, iceberg:…")
    ] = None
    group: Annotated[
        str | None, typer.Option("--group", help="Gets the offsets; archiveGroup of brokers. Default: lake.")
    ] = None
    delay: Annotated[
        str | None, typer.Option("--delay", help="How often messages are committed. Default: 30s.")
    ] = None

    def load(self) -> LakeRules:
        """Raises UsageError, BadSettingsFile, SettingsError, OSError."""
        need_extra()
        from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415
        from skylark.pipelines.lake_service import rules  # noqa: PLC0415
        from skylark.pipelines.offsets import split_names  # noqa: PLC0415

        if self.rules is not None:
            if self.topic or self.to or self.group or self.delay:
                raise UsageError("use either a rule file, or --topic and --to with their options")
            return rules.load_rules(self.rules, self.namesrv)
        if not (self.namesrv and self.to):
            raise UsageError("pass a rule file, or --namesrv and --to")
        table = rules.LakeTable(
            topics=tuple(split_names(self.topic or "")),
            output=parse_output(self.to, partitionBy=rules.PARTITION),
            delay_s=parsed(parse_duration_ms, self.delay or rules.DELAY, "--delay") / 1000,
        )
        return rules.LakeRules(namesrv=self.namesrv, group=self.group or rules.GROUP, tables=[table])


@app.command()
@grouped
def run(
    *,
    rules: RuleOptions,
    once: Annotated[bool, typer.Option("--once", help="Archive what is there now, and end.")] = False,
    instance: Annotated[
        str | None, typer.Option("--instance", help="A name that differs per instance. Default: the host's.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=WORKERS_MAX, help="Processes that share the tables.")
    ] = 1,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=PORT_MAX, help="Serve Prometheus metrics here.")
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    log_format: LogFormat = TEXT,
    log_levels: LogLevels = None,
) -> None:
    """Keep topics archived until Ctrl-C: new messages, new queues, new topics.

    Every message is in its table once. Processes that end are started again. Several instances may run: if
    one ends, another takes over. With --master the files are written by tasks of Spark.

    Examples: skylark lake run -n 127.0.0.1:9876 -t '.*' --to delta:lake/raw

    skylark lake run lake.yml --metrics-port 9110
    """
    made = rules.load()
    from skylark.pipelines.lake_service import supervisor as service  # noqa: PLC0415
    from skylark.pipelines.lake_service.service import LakeService  # noqa: PLC0415

    orders = [
        service.WorkerOrder(
            rules=made,
            instance=instance or platform.node() or "lake",
            share=share,
            shares=min(workers, len(made.tables)),
            master=master,
            conf=pairs(conf, "--conf"),
            log_level=logging.INFO,
        )
        for share in range(min(workers, len(made.tables)))
    ]
    if once:
        with service.opened_engine(orders[0]) as engine:
            archivers = [each for order in orders for each in service.archivers(order, engine)]
            print_json({"messages": LakeService(archivers).run_once(), "tables": len(made.tables)})
        return
    configure_logs(log_format, log_levels)
    started, stop = time.monotonic(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    page = f", metrics on {_serve_metrics(made, metrics_port)}" if metrics_port is not None else ""
    say_ready(started, f"lake of {len(made.tables)} tables, group {made.group}{page}")
    service.WorkerSupervisor(orders).run(stop)


def _serve_metrics(rules: LakeRules, port: int) -> str:
    """Raises OSError."""
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415

    from skylark.pipelines.lake_service.lake_status import LakeMetrics  # noqa: PLC0415

    registry = CollectorRegistry()
    registry.register(LakeMetrics(rules))
    server, _ = start_http_server(port, "127.0.0.1", registry)
    return f"http://127.0.0.1:{server.server_port}/metrics"


@app.command()
@tabular
@grouped
def status(*, rules: RuleOptions, as_json: AsJson = False) -> None:
    """Show for each topic what its table holds, what is waiting, and the last error.

    Example: skylark lake status lake.yml
    """
    made = rules.load()
    from skylark.pipelines.lake_service.lake_status import topic_progress  # noqa: PLC0415

    found = topic_progress(made, _cluster(made), now_ms())
    if as_json:
        for each in found:
            print_json(each)
        return
    columns = ["topic", "table", "committed", "end", "waiting", "delay", "last commit", "instance", "error"]
    rows = [
        [
            each.topic,
            each.table,
            each.committed,
            each.end,
            each.waiting,
            f"{each.delay_s:,.1f} s",
            _moment(each.committed_at_ms),
            each.instance,
            each.error,
        ]
        for each in found
    ]
    Screen().table(columns, rows, long=["table", "error"])


@app.command()
@grouped
def verify(*, rules: RuleOptions) -> None:
    """Compare tables with the log: every offset once, every body by its CRC.

    Reads all of both. Ends with 1 if they differ.

    Example: skylark lake verify -n 127.0.0.1:9876 -t orders --to delta:lake/raw
    """
    made = rules.load()
    from skylark.pipelines.lake_service.table_archiver import committed_offsets, open_table  # noqa: PLC0415
    from skylark.pipelines.lake_service.verification import compare  # noqa: PLC0415
    from skylark.pipelines.options import SourceOptions, load  # noqa: PLC0415

    is_different, cluster = False, _cluster(made)
    for table in made.tables:
        log = open_table(table)
        ends, _ = committed_offsets(log, made.group)
        source = {"namesrv": made.namesrv, "topic": table.source_topics, "failOnDataLoss": "false"}
        options = load(SourceOptions, source)
        found = compare(log, options, cluster.min_offsets(list(ends)), ends)
        is_different = is_different or found.fault_count > 0
        print_json({"table": str(table.output), "rows": found.in_table, "compared": found.compared,
                    "faults": found.fault_count, "examples": found.faults})  # fmt: skip
    if is_different:
        raise typer.Exit(EXIT_DIFFERENT)


@app.command()
@grouped
def maintain(*, rules: RuleOptions) -> None:
    """Maintain tables now: join and order small files, expire, vacuum.

    The service does the same for tables with the key maintain. Readers are not disturbed.

    Example: skylark lake maintain lake.yml
    """
    made = rules.load()
    from skylark.pipelines.lake_service.table_archiver import maintain_table  # noqa: PLC0415

    for table in made.tables:
        report = maintain_table(table)
        print_json({"table": str(table.output), "joined": report.joined, "made": report.made,
                    "expired": report.expired, "deleted": report.deleted})  # fmt: skip


def _cluster(rules: LakeRules) -> ClusterClient:
    from skylark.pipelines.cluster_client import shared_client  # noqa: PLC0415
    from skylark.pipelines.options import SourceOptions, load  # noqa: PLC0415

    options = load(SourceOptions, {"namesrv": rules.namesrv, "topic": ".*"})
    return shared_client(
        rules.namesrv, credentials=options.credentials, tls=options.tls_settings, retry_timeout_s=10.0
    )


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if at_ms else "never"
