"""What a lake holds and lacks, topic by topic, and the same as a metrics page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.table_archiver import (
    committed_offsets,
    lake_topics,
    open_table,
    private_files,
)
from skylark.pipelines.lake_service.table_state import TableState, read_state
from skylark.pipelines.listener import measure

STATES_AGE_MAX_S = 5.0


class TopicProgress(msgspec.Struct, frozen=True):
    """A topic and its table."""

    topic: str
    table: str
    committed: int
    """Messages before the committed offsets, over all queues; those that had expired before are included."""
    end: int
    """The same for the ends of the queues."""
    waiting: int
    delay_s: float
    """Age of the oldest message that is not archived."""
    committed_at_ms: int
    instance: str
    error: str


def topic_progress(rules: LakeRules, cluster: ClusterClient, now_ms: int) -> list[TopicProgress]:
    """Ask brokers and tables. Raises RocketMQError; a table that cannot be read is in `error`."""
    found: list[TopicProgress] = []
    for table in rules.tables:
        topics = lake_topics(rules, table, cluster)
        queues = [queue for topic in topics for queue in cluster.queues(topic)]
        try:
            log = open_table(table)
            offsets, _ = committed_offsets(log, rules.group)
            state = read_state(private_files(log, rules.group))
        except Exception as error:  # noqa: BLE001 - libraries of stores raise errors of their own kinds
            offsets, state = {}, TableState(error=f"cannot read the table: {error}")
        lows = cluster.min_offsets([queue for queue in queues if queue not in offsets])
        places = {queue: offsets.get(queue, lows.get(queue, 0)) for queue in queues}
        lags = measure(cluster, places, now_ms)
        for topic in topics:
            mine = [lag for lag in lags if lag.queue.topic == topic]
            committed = sum(places[lag.queue] for lag in mine)
            waiting = sum(lag.messages for lag in mine)
            found.append(
                TopicProgress(
                    topic=topic,
                    table=str(table.output),
                    committed=committed,
                    end=committed + waiting,
                    waiting=waiting,
                    delay_s=round(max((lag.seconds for lag in mine), default=0.0), 1),
                    committed_at_ms=state.committed_at_ms,
                    instance=state.instance,
                    error=state.error,
                )
            )
    return found


_GAUGES = {
    "topics": "Topics of the table.",
    "waiting": "Messages that were waiting when the brokers were last asked.",
    "messages": "Messages committed since the instance started.",
    "batches": "Batches committed since the instance started.",
    "lost": "Messages that brokers deleted before they were archived.",
    "errors": "Failed turns since the instance started.",
}
_TIMES = {
    "committed_at_ms": "Time of the last commit.",
    "complete_at_ms": "The table holds all messages stored before this time.",
    "maintained_at_ms": "Time of the last maintenance.",
}


class LakeMetrics(Collector):
    """The states of all tables for Prometheus. Any thread."""

    def __init__(self, rules: LakeRules) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._states: list[tuple[LakeTable, TableState | None]] = []

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise the page is made once when it is registered

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if time.monotonic() - self._read_at >= STATES_AGE_MAX_S:
                self._states = [(table, self._state(table)) for table in self._rules.tables]
                self._read_at = time.monotonic()
        up = GaugeMetricFamily("skylark_lake_readable", "Whether the table can be read.", labels=["table"])
        for table, state in self._states:
            up.add_metric([str(table.output)], float(state is not None))
        yield up
        for name, meaning in _GAUGES.items():
            yield self._family(name, f"skylark_lake_{name}", meaning, 1.0)
        for name, meaning in _TIMES.items():
            title = f"skylark_lake_{name.removesuffix('_at_ms')}_timestamp_seconds"
            yield self._family(name, title, meaning, 0.001)

    def _state(self, table: LakeTable) -> TableState | None:
        try:
            return read_state(private_files(open_table(table), self._rules.group))
        except Exception:  # noqa: BLE001 - libraries of stores raise errors of their own kinds
            return None

    def _family(self, field: str, title: str, meaning: str, unit: float) -> Metric:
        family = GaugeMetricFamily(title, meaning, labels=["table"])
        for table, state in self._states:
            if state is not None:
                family.add_metric([str(table.output)], getattr(state, field) * unit)
        return family
