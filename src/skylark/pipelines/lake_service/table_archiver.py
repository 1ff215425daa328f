"""Archives the topics of one table, batch by batch; a process may be killed between any two lines.

A batch is planned (`batch_plan`), written to files that no reader sees, committed under the plan's number,
and then committed at the broker as the group's offsets, so that the log is kept until it is archived. After
a crash the newest plan is carried out again if the table lacks it. Several instances may run: the one that
made the newest plan goes on, and another takes over when nothing has moved for a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType

from skylark.arrow.columns import REJECTS
from skylark.clock import now_ms
from skylark.errors import NoPermission, NoRoute, RocketMQError
from skylark.model.names import LAKE_TABLE
from skylark.pipelines.broker_source import RECORD_BYTES_GUESS, BrokerSource
from skylark.pipelines.cluster_client import ClusterClient, shared_client
from skylark.pipelines.history import JOB
from skylark.pipelines.jobs.endpoints import table_options
from skylark.pipelines.lake import table_sink
from skylark.pipelines.lake.file_store import FileStore
from skylark.pipelines.lake.json_columns import PREFIX, JsonColumns
from skylark.pipelines.lake.parquet_files import TableFile
from skylark.pipelines.lake.progress import CommitProgress, end_offsets
from skylark.pipelines.lake.table_commit import commit_batch
from skylark.pipelines.lake.table_log import PRIVATE, BatchName, TableLog
from skylark.pipelines.lake.table_reader import schema_of
from skylark.pipelines.lake.upkeep import UpkeepReport, maintain
from skylark.pipelines.lake_service.batch_plan import BatchPlan, PlanLog
from skylark.pipelines.lake_service.engines import Engine, WriteOrder, write_decoded
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.table_state import TableState, read_state, write_state
from skylark.pipelines.message_source import LossPolicy, OffsetRange, clamped
from skylark.pipelines.offsets import Offsets, to_nested
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import limit_bytes, ranges_between
from skylark.pipelines.registered_rules import RegisteredRules
from skylark.pipelines.schema import COLUMNS, arrow_schema, spark_schema
from skylark.protocol.bodies import MessageQueue

events = logging.getLogger(__name__)

ROUTES_AGE_MAX_S = 10.0
"""Topics and queues are looked up this often."""
SAMPLED_ROWS_MIN = 1000
"""Ranges with fewer messages are not sampled: their size hardly matters."""
TAKE_OVER_TURNS = 3
TAKE_OVER_MIN_S = 15.0
RETRY_TIMEOUT = "10s"
"""Short: other tables of the process wait meanwhile, and the turn is repeated."""

Step = Callable[[str], None]


class Turn(NamedTuple):
    """What a turn did."""

    messages: int = 0
    has_more: bool = False
    """Whether messages are waiting that did not fit into the batch."""
    is_standby: bool = False
    """Whether another instance archives this table."""


def query_name(group: str) -> str:
    """The query under which a lake's batches are committed."""
    return f"lake-{group}"


def open_table(table: LakeTable) -> TableLog:
    """Raises SettingsError."""
    return table_sink.read_options(table_options(table.output)).log()


def maintain_table(table: LakeTable) -> UpkeepReport:
    """Join, order, expire and delete files. Raises SettingsError, OSError and the table's errors."""
    settings = table_sink.read_options(table_options(table.output))
    return maintain(settings.log(), settings.file_layout(tuple(COLUMNS)), table.upkeep, datetime.now(UTC))


def lake_topics(rules: LakeRules, table: LakeTable, cluster: ClusterClient) -> list[str]:
    """The topics of a table, by their attributes and the rules. Raises RocketMQError, SettingsError."""
    try:
        attributes = cluster.topic_attributes(LAKE_TABLE)
    except NoPermission:
        events.warning("may not list the topics of the brokers; their attributes %s are ignored", LAKE_TABLE)
        attributes = {}
    return rules.topics_of(table, cluster.topics(), attributes)


def private_files(log: TableLog, group: str) -> FileStore:
    """Plans and state of a lake in a table's store."""
    return log.store.below(f"{PRIVATE}/lake/{group}")


def committed_offsets(log: TableLog, group: str) -> tuple[Offsets, int]:
    """Up to where the table is complete, and the number of its last batch, -1 for none.

    Includes what `skylark spark archive` wrote to it. Raises OSError and the table's errors.
    """
    number = log.last_batch(BatchName(query_name(group), 0).application)
    plan = None if number is None else PlanLog(private_files(log, group)).number(number)
    if plan is not None:
        return plan.offsets(), plan.number
    found = end_offsets(entry for entry in log.progress() if entry.job == JOB)
    return found, -1 if number is None else number


class TableArchiver:
    """One table. Not thread-safe, like its connection to the brokers."""

    def __init__(
        self,
        rules: LakeRules,
        table: LakeTable,
        engine: Engine,
        instance: str,
        *,
        on_step: Step = lambda step: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = table
        self.state = TableState(instance=instance)
        self._rules = rules
        self._engine = engine
        self._instance = instance
        self._on_step = on_step
        self._monotonic = monotonic
        self._query = query_name(rules.group)
        self._source = {
            "namesrv": rules.namesrv,
            "topic": table.source_topics,
            "failOnDataLoss": "false",
            "retryTimeout": RETRY_TIMEOUT,
        }
        options = load(SourceOptions, self._source)
        self._origin = BrokerSource(options)
        self._losses = LossPolicy(options)
        self._cluster: ClusterClient = shared_client(
            rules.namesrv,
            options.request_timeout_ms / 1000,
            options.retry_timeout_ms / 1000,
            options.credentials,
            options.tls_settings,
        )
        self._sink = table_options(table.output)
        self._prepared: TableLog | None = None
        self._queues: list[MessageQueue] = []
        self._queues_at: float | None = None
        self._told: Offsets = {}
        self._published: set[str] = set()
        self._registered = RegisteredRules(
            self._cluster, rules.group, rules.archived, monotonic=self._monotonic
        )
        self._moved: tuple[object, float] | None = None

    # --- Turns ---

    def turn(self) -> Turn:
        """Commit at most one batch. Raises RocketMQError, OSError and the table's errors."""
        log = self._log()
        files = private_files(log, self._rules.group)
        plans = PlanLog(files)
        self._step("read the table")
        newest = plans.last()
        offsets, committed = committed_offsets(log, self._rules.group)
        if newest is not None and not self._is_mine(newest, committed):
            self._tell(offsets)
            return Turn(is_standby=True)
        if newest is None or newest.number <= committed:
            self._tell(offsets)
            newest = self._decide(plans, offsets, committed + 1)
            if newest is None:
                write_state(files, self.state)
                return Turn()
        self._carry_out(log, newest)
        self._tell(newest.offsets())
        self._step("tidy")
        plans.tidy(newest.number)
        write_state(files, self.state)
        return Turn(sum(item.messages for item in newest.ranges()), has_more=not newest.is_complete)

    def maintain_when_due(self) -> None:
        """Maintain the table if its time has come. Raises as `maintain_table`."""
        every_s = self.table.maintain_s
        if every_s is None or now_ms() - self.state.maintained_at_ms < every_s * 1000:
            return
        self._step("maintain")
        maintain_table(self.table)
        self.state.maintained_at_ms = now_ms()
        write_state(private_files(self._log(), self._rules.group), self.state)

    def failed(self, error: Exception) -> None:
        """Record an error for `skylark lake status`, if the store can be written."""
        self.state.errors += 1
        self.state.error = f"{type(error).__name__}: {error}"
        self.state.error_at_ms = now_ms()
        if self._prepared is not None:
            try:
                write_state(private_files(self._prepared, self._rules.group), self.state)
            except OSError:
                return  # the error is in the service's log and metrics

    def _log(self) -> TableLog:
        """The table, made if there is none."""
        if self._prepared is None:
            settings = table_sink.read_options(self._sink)
            log = settings.log()
            if self.table.decode is None or not log.exists():
                rejects = {} if self.table.decode is None else {REJECTS: BinaryType()}
                table_sink.prepare(settings, spark_schema(COLUMNS | rejects))
            self._prepared = log
            before = read_state(private_files(self._prepared, self._rules.group))
            self.state.complete_at_ms = before.complete_at_ms
            self.state.committed_at_ms = before.committed_at_ms
            self.state.maintained_at_ms = before.maintained_at_ms
        return self._prepared

    def _step(self, name: str) -> None:
        self.state.step, self.state.at_ms = name, now_ms()
        self._on_step(name)

    def _is_mine(self, newest: BatchPlan, committed: int) -> bool:
        """Whether this instance goes on with the table, or takes it over."""
        if newest.instance == self._instance:
            return True
        now, seen = self._monotonic(), (newest.number, committed)
        if self._moved is None or self._moved[0] != seen:
            self._moved = (seen, now)
        return now - self._moved[1] >= max(TAKE_OVER_TURNS * self.table.delay_s, TAKE_OVER_MIN_S)

    # --- Steps ---

    def _decide(self, plans: PlanLog, offsets: Offsets, number: int) -> BatchPlan | None:
        """Plan the next batch; None if there are no messages, or another instance was first."""
        self._step("plan")
        at_ms = now_ms()
        queues = self._find_queues()
        new = [queue for queue in queues if queue not in offsets]
        lows, highs = self._origin.min_offsets(queues), self._origin.max_offsets(queues)
        # A queue that ends before its offset was made anew, with its topic.
        start = {
            queue: lows[queue] if queue in new or offsets[queue] > highs[queue] else offsets[queue]
            for queue in queues
        }
        waiting = clamped(ranges_between(start, highs), lows, self._losses)
        self.state.waiting, self.state.lost = sum(item.messages for item in waiting), self._losses.lost
        self._tell({queue: start[queue] for queue in new})
        if not waiting:
            self.state.complete_at_ms, self.state.error = at_ms, ""
            return None
        ranges = limit_bytes(waiting, self._sizes(waiting), self.table.batch_bytes, self._origin.end_within)
        plan = BatchPlan(
            number=number,
            instance=self._instance,
            at_ms=at_ms,
            is_complete=ranges == waiting,
            moved=to_nested({item.queue: item.from_offset for item in ranges}),
            end=to_nested({**offsets, **start, **{item.queue: item.to_offset for item in ranges}}),
        )
        self._step("decide")
        return plan if plans.create(plan) else None

    def _carry_out(self, log: TableLog, plan: BatchPlan) -> None:
        """Write and commit a batch, unless it is committed meanwhile."""
        self._step("write")
        ranges = plan.ranges()
        batch = BatchName(self._query, plan.number)
        name = f"lake-{plan.number:012d}"
        order = WriteOrder(self._sink, self._source, name, ranges, self._sizes(ranges))
        files = self._engine.write(order) if self.table.decode is None else self._write_decoded(log, order)
        self._step("commit")
        progress = CommitProgress(batch.application, batch.number, JOB, plan.end, "")
        if not commit_batch(log, batch, files, progress=progress):
            for file in files:
                log.written.delete(file.path)
        self._step("committed")
        messages = sum(item.messages for item in ranges)
        self.state.messages += messages
        self.state.waiting = max(self.state.waiting - messages, 0)
        self.state.batches += 1
        self.state.committed_at_ms, self.state.error = now_ms(), ""
        if plan.is_complete:
            self.state.complete_at_ms = plan.at_ms

    def _write_decoded(self, log: TableLog, order: WriteOrder) -> list[TableFile]:
        """Write with the fields of bodies as columns, and add to the table those that it lacks.

        A column that is added before its rows are committed is null until then, and is there if the batch is
        written again.
        """
        there = arrow_schema(schema_of(log))
        known = {
            field.name.removeprefix(PREFIX): field.type for field in there if field.name.startswith(PREFIX)
        }
        columns = JsonColumns(known)
        files = write_decoded(order, columns)
        log.add_columns(pa.schema([(f"{PREFIX}{name}", kind) for name, kind in columns.kinds.items()]))
        return files

    def _tell(self, offsets: Offsets) -> None:
        """Commit the group's offsets where they changed: the broker then may delete what is before them."""
        changed = {queue: at for queue, at in offsets.items() if self._told.get(queue) != at}
        if changed:
            self._step("tell the broker")
            known = set(self._find_queues())
            self._cluster.commit_offsets(
                self._rules.group, {queue: at for queue, at in changed.items() if queue in known}
            )
            self._told.update(changed)

    def _find_queues(self) -> list[MessageQueue]:
        """The queues of the table's topics, new ones included."""
        now = self._monotonic()
        if self._queues_at is None or now - self._queues_at >= ROUTES_AGE_MAX_S:
            topics = lake_topics(self._rules, self.table, self._cluster)
            found: list[MessageQueue] = []
            for topic in topics:
                try:
                    found += self._origin.queues(topic)
                except NoRoute:
                    continue  # deleted since the topics were listed
            self._queues, self._queues_at = found, now
            self.state.topics = len(topics)
            self._publish(topics)
            self._registered.keep()
        return self._queues

    def _publish(self, topics: Sequence[str]) -> None:
        """Let consumers know where the topics are archived, for messages that the log has no longer."""
        if not self._published.issuperset(topics):
            try:
                self._cluster.publish_tables(dict.fromkeys(topics, str(self.table.output)))
            except RocketMQError as error:
                events.warning("cannot publish the table at the name servers error=%s", error)
                return
            self._published = set(topics)

    def _sizes(self, ranges: Sequence[OffsetRange]) -> list[float]:
        """Mean bytes of a record of each range."""
        large = [item for item in ranges if item.messages >= SAMPLED_ROWS_MIN]
        sampled = dict(zip(large, self._origin.record_bytes(large), strict=True)) if large else {}
        return [sampled.get(item, float(RECORD_BYTES_GUESS)) for item in ranges]
