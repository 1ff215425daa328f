"""Collects Prometheus metrics from a broker's tables on each scrape."""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from skylark.broker.clients import ACTIVELY, POPPING, ConsumerGroups, ProducerGroups
from skylark.broker.delayed.timers import Timers
from skylark.broker.group_topics import GroupTopics
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.long_polling import LongPolling
from skylark.broker.monitoring.metric_specs import COMMON_LABELS, METRICS
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.pop.pops import Pops
from skylark.broker.replication.master import ReplicationMaster
from skylark.broker.replication.role import Role
from skylark.broker.topics import MESSAGE_TYPE, TopicTable
from skylark.broker.transactions.coordinator import TransactionCoordinator
from skylark.clock import Clock
from skylark.errors import RocketMQError
from skylark.model import names
from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SCHEDULE_TOPIC
from skylark.protocol.bodies import PERM_READ_WRITE, TopicConfig
from skylark.protocol.codes import RequestCode, ResponseCode, version_name
from skylark.remoting.latency import UNKNOWN_CODE, RequestLatencies
from skylark.remoting.pages import security_warnings
from skylark.remoting.server_metrics import SECURITY, security_samples
from skylark.remoting.tls import ServerTls
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)

T = TypeVar("T")
Add = Callable[..., None]

SERIES_MAX = 1000
"""Topics, and pairs of topics and groups, that have series: the busiest ones."""
HISTOGRAMS_MAX = 100
"""Topics that have histograms, which are many lines each."""
AGES_MAX = 1000
"""Queues whose oldest message is read from the log per scrape, for the groups with the greatest lag."""
PAIRS_AT_ONCE = 64
"""Pairs read before the thread yields to the loop."""
READS_MAX = 20
"""Attempts to read a table that grows meanwhile."""
MODES = {ACTIVELY: "pull", POPPING: "pop"}
STORAGE = ("local", "disk")
PROTOCOL_TYPE = "remoting"
WAITING_TYPES = {SCHEDULE_TOPIC: "delay", names.TIMER_TOPIC: "delay", names.HALF_TOPIC: "transaction"}
"""Message types of the system topics that hold one type."""
TIMER_BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)


class MetricFamilies:
    """The metrics of one scrape, each with the labels that all have."""

    def __init__(self, *common: str) -> None:
        self._common = common
        self.families: list[Metric] = []

    def family(self, name: str) -> Add:
        """Begin a metric; return what adds a sample: its value, then the values of its own labels."""
        spec = METRICS[name]
        is_ours = not name.startswith("rocketmq_")
        common = () if is_ours else self._common
        labels = [*(() if is_ours else COMMON_LABELS), *spec.labels]
        made: GaugeMetricFamily | CounterMetricFamily
        if spec.kind == "gauge":
            made = GaugeMetricFamily(name, spec.text, labels=labels)
        else:
            made = CounterMetricFamily(name, spec.text, labels=labels)
        self.families.append(made)
        return lambda value, *own: made.add_metric([*common, *own], value)

    def histogram(self, name: str) -> Add:
        """The same for a histogram: it has the counts of its ranges and the sum of all values."""
        spec = METRICS[name]
        made = HistogramMetricFamily(name, spec.text, labels=[*COMMON_LABELS, *spec.labels])
        bounds = [*(f"{bound:.1f}" for bound in spec.bounds), "+Inf"]  # written as RocketMQ does
        self.families.append(made)

        def add(counts: list[int], total: int, *own: str) -> None:
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            made.add_metric([*self._common, *own], buckets, total)

        return add


class QueueBacklog(NamedTuple):
    """How far a group has come in one queue."""

    queue_id: int
    consumed: int
    pulled: int
    end: int


class GroupBacklog(NamedTuple):
    """How far a group has come in a topic."""

    topic: str
    group: str
    queues: list[QueueBacklog]
    in_flight: int | None = None
    """Messages delivered to a group that pops, and not acknowledged. The committed offset may be ahead."""

    @property
    def lag(self) -> int:
        if self.in_flight is not None:
            return self.ready + self.in_flight
        return sum(queue.end - queue.consumed for queue in self.queues)

    @property
    def ready(self) -> int:
        return sum(queue.end - queue.pulled for queue in self.queues)


@dataclass(frozen=True, slots=True, eq=False)
class MetricsCollector:
    """Reads a broker's tables on each scrape. Any thread: it changes nothing."""

    live: LiveSettings[BrokerSettings]
    clock: Clock
    role: Role
    store: MessageStore
    replication: ReplicationMaster
    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    consumers: ConsumerGroups
    group_topics: GroupTopics
    producers: ProducerGroups
    long_polling: LongPolling
    pops: Pops
    held_pops: Callable[[], int]
    """Returns the pops and notifications that are held."""
    transactions: TransactionCoordinator
    timers: Timers
    stats: BrokerStats
    latencies: RequestLatencies
    watermarks: Callable[[], dict[str, int]]
    """Returns the requests in flight by RocketMQ's processor names."""
    auth_refusals: Mapping[str, int]
    """Requests that the gate refused, by reason."""
    tls: ServerTls | None
    is_insecure: Callable[[], bool]
    """Returns whether everybody on the network may use the broker."""

    def collect(self) -> Iterator[Metric]:
        settings = self.live.current
        page = MetricFamilies(settings.cluster, "broker", settings.name)
        of_role = self._of_slave if self.role.is_slave else self._of_slaves
        for part in (
            self._of_tables,
            self._of_traffic,
            self._of_requests,
            self._of_connections,
            self._of_security,
            self._of_groups,
            self._of_dead_letters,
            self._of_pops,
            self._of_storage,
            self._of_transactions,
            self._of_timers,
            of_role,
        ):
            try:
                part(page)
            except RuntimeError:  # better than a broker that seems to be down
                log.warning("tables change too fast, some metrics are missing", exc_info=True)
        yield from page.families

    # --- Health ---

    def fault(self) -> str | None:
        """Return why no message can be stored, or None."""
        refused = self.store.refusal()
        return None if refused is None else refused.reason

    def idle_reason(self) -> str | None:
        """Return why a healthy broker does not serve now, or None."""
        if self.role.is_slave:
            return None if self.role.slave.sees_master else "not connected to its master"
        if not self.live.current.permission & PERM_READ_WRITE:
            return "its permission is neither to be read nor to be written"
        return None

    def warnings(self) -> list[str]:
        """Return what is wrong with the security of this broker, a line each."""
        return security_warnings(self.tls, self.live.current.host if self.is_insecure() else "")

    # --- Security ---

    def _of_security(self, page: MetricFamilies) -> None:
        families = {name: page.family(name) for name in SECURITY}
        refusals = settled(lambda: dict(self.auth_refusals))
        for name, labels, value in security_samples(self.tls, refusals, is_insecure=self.is_insecure()):
            families[name](value, *labels)

    # --- Tables and traffic ---

    def _of_tables(self, page: MetricFamilies) -> None:
        page.family("rocketmq_broker_permission")(self.live.current.permission)
        page.family("rocketmq_topic_number")(len(self.topics))
        page.family("rocketmq_consumer_group_number")(len(self.groups))
        marks = page.family("rocketmq_processor_watermark")
        for processor, count in settled(self.watermarks).items():
            marks(count, processor)
        page.family("skylark_held_pulls")(self.long_polling.count)
        page.family("skylark_held_pops")(self.held_pops())
        page.family("skylark_messages_refused_total")(self.stats.refused)
        page.family("skylark_pulls_empty_total")(self.stats.misses.calls)

    def _of_traffic(self, page: MetricFamilies) -> None:
        stats = self.stats
        messages = page.family("rocketmq_messages_in_total")
        size = page.family("rocketmq_throughput_in_total")
        for topic, counter in most(stats.topic_puts):
            labels = self._topic_labels(topic)
            messages(counter.count, *labels)
            size(counter.size, *labels)
        sizes = page.histogram("rocketmq_message_size")
        for topic, counter in most(stats.topic_puts, HISTOGRAMS_MAX):
            sizes(counter.sizes, counter.size, *self._topic_labels(topic))
        messages = page.family("rocketmq_messages_out_total")
        size = page.family("rocketmq_throughput_out_total")
        for (topic, group), counter in most(stats.group_gets):
            pair = self._pair_labels(topic, group)
            messages(counter.count, *pair)
            size(counter.size, *pair)
        sent_back = page.family("skylark_messages_sent_back_total")
        for (topic, group), counter in most(stats.send_backs):
            sent_back(counter.count, topic, group)
        buried = page.family("rocketmq_send_to_dlq_messages_total")
        dead_letters = {
            topic: counter
            for topic, counter in list(stats.topic_puts.items())
            if topic.startswith(DEAD_LETTER_TOPIC_PREFIX)
        }
        for topic, counter in most(dead_letters):
            group = topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
            buried(counter.count, group, topic, self._is_system(topic, group))

    def _of_requests(self, page: MetricFamilies) -> None:
        latency = page.histogram("rocketmq_rpc_latency")
        for (code, response_code, was_held, result), times in list(self.latencies.table.items()):
            labels = (_name(RequestCode, code), _name(ResponseCode, response_code), _text(was_held), result)
            latency(times.counts, times.sum, PROTOCOL_TYPE, *labels)
        creations = list(self.stats.creations.items())
        for what in ("topic", "consumer_group"):
            took = page.histogram(f"rocketmq_{what}_create_execution_time")
            for creation, times in creations:
                if creation.what == what:
                    status = "success" if creation.succeeded else "failure"
                    took(times.counts, times.sum, status, _text(creation.is_system))

    def _topic_labels(self, topic: str) -> tuple[str, str, str]:
        config = self.topics.get(topic)
        declared = None if config is None else config.attributes.get(MESSAGE_TYPE)
        message_type = (declared or WAITING_TYPES.get(topic, "normal")).lower()
        return topic, message_type, self._is_system(topic)

    def _is_system(self, topic: str, group: str = "") -> str:
        return _text(self.topics.is_system(topic) or names.is_system_group(group))

    def _pair_labels(self, topic: str, group: str) -> tuple[str, str, str, str]:
        return (topic, group, self._is_system(topic, group), _text(topic.startswith(RETRY_TOPIC_PREFIX)))

    # --- Clients ---

    def _of_connections(self, page: MetricFamilies) -> None:
        table = settled(lambda: self.producers.table(now=self.clock.monotonic(), now_ms=0))
        producers = Tally(
            (each.language.lower(), version_name(each.version).lower(), PROTOCOL_TYPE)
            for infos in table.data.values()
            for each in infos
        )
        add = page.family("rocketmq_producer_connections")
        for labels, count in producers.most_common(SERIES_MAX):
            add(count, *labels)
        consumers = Tally(self._consumers())
        add = page.family("rocketmq_consumer_connections")
        for of_group, count in consumers.most_common(SERIES_MAX):
            add(count, *of_group)
        add = page.family("skylark_subscription_kinds")
        kinds = settled(self.consumers.subscription_counts)
        for group, count in heapq.nlargest(SERIES_MAX, kinds.items(), key=lambda item: item[1]):
            add(count, group)

    def _consumers(self) -> Iterator[tuple[str, ...]]:
        """The labels of each that is connected."""
        consumers = self.consumers
        for config in in_turns(self.groups.all()):
            group = config.group_name
            online = consumers.group(group)
            if online is not None:
                mode = MODES.get(online.consume_type or "", "push")
                of_group = (PROTOCOL_TYPE, group, mode, self._is_system("", group))
                for client in settled(partial(consumers.clients, group)):
                    yield client.language.lower(), version_name(client.version).lower(), *of_group

    # --- Lag ---

    def _of_groups(self, page: MetricFamilies) -> None:
        lag = page.family("rocketmq_consumer_lag_messages")
        lag_age = page.family("rocketmq_consumer_lag_latency")
        inflight = page.family("rocketmq_consumer_inflight_messages")
        ready = page.family("rocketmq_consumer_ready_messages")
        ready_age = page.family("rocketmq_consumer_queueing_latency")
        looked_up = 0
        for backlog in heapq.nlargest(SERIES_MAX, self._backlogs(), key=lambda backlog: backlog.lag):
            labels = self._pair_labels(backlog.topic, backlog.group)
            lag(backlog.lag, *labels)
            inflight(backlog.lag - backlog.ready, *labels)
            ready(backlog.ready, *labels)
            looked_up += len(backlog.queues)
            if looked_up <= AGES_MAX:
                consumed = [(queue.queue_id, queue.consumed) for queue in backlog.queues]
                pulled = [(queue.queue_id, queue.pulled) for queue in backlog.queues]
                lag_age(self._age_ms(backlog.topic, consumed), *labels)
                ready_age(self._age_ms(backlog.topic, pulled), *labels)

    def _backlogs(self) -> Iterator[GroupBacklog]:
        """Yield the backlog of each group, in the topics that it has still to consume."""
        known = dict.fromkeys((config.group_name for config in settled(self.groups.all)), ())
        for group, topics in in_turns({**known, **self.offsets.topics_by_group()}.items()):
            for topic in in_turns(settled(partial(self.group_topics.of, group, topics))):
                config = self.topics.get(topic)
                if config is not None:
                    yield self._backlog(group, config)

    def _of_dead_letters(self, page: MetricFamilies) -> None:
        dead_letters = page.family("skylark_dead_letters")
        waiting = (
            (topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX), config)
            for config in in_turns(settled(self.topics.all))
            if (topic := config.topic_name).startswith(DEAD_LETTER_TOPIC_PREFIX)
        )
        counts = ((self._backlog(group, config).lag, group) for group, config in waiting)
        for count, group in heapq.nlargest(SERIES_MAX, counts):
            dead_letters(count, group)

    def _backlog(self, group: str, config: TopicConfig) -> GroupBacklog:
        topic = config.topic_name
        queues = [self._queue_backlog(topic, group, each) for each in range(config.write_queue_nums)]
        return GroupBacklog(topic, group, queues, self.pops.batches.in_flight.get((topic, group)))

    def _of_pops(self, page: MetricFamilies) -> None:
        pops = self.pops
        written = page.family("rocketmq_pop_revive_in_message_total")
        for labels, count in settled(partial(pops.log.written.most_common, SERIES_MAX)):
            written(count, *labels)
        read = page.family("rocketmq_pop_revive_out_message_total")
        for (group, topic, queue_id, kind), count in settled(
            partial(pops.revival.read.most_common, SERIES_MAX)
        ):
            read(count, group, topic, str(queue_id), kind)
        retried = page.family("rocketmq_pop_revive_retry_messages_total")
        for of_group, count in settled(partial(pops.retries.written.most_common, SERIES_MAX)):
            retried(count, *of_group)
        behind = page.family("rocketmq_pop_revive_lag")
        late = page.family("rocketmq_pop_revive_latency")
        for queue_id, records, late_ms in settled(lambda: list(pops.revival.lags())):
            behind(records, str(queue_id))
            late(late_ms, str(queue_id))
        page.family("rocketmq_pop_offset_buffer_size")(pops.batches.held_lanes)
        page.family("rocketmq_pop_checkpoint_buffer_size")(len(pops.batches))

    def _queue_backlog(self, topic: str, group: str, queue_id: int) -> QueueBacklog:
        store, offsets = self.store, self.offsets
        end = store.max_offset(topic, queue_id)
        # Deleted messages and offsets beyond the end do not count as lag.
        consumed = min(
            max(offsets.query(topic, group, queue_id) or 0, store.min_offset(topic, queue_id)), end
        )
        pulled = min(max(offsets.pulled(topic, group, queue_id) or 0, consumed), end)
        return QueueBacklog(queue_id, consumed, pulled, end)

    def _age_ms(self, topic: str, places: Iterable[tuple[int, int]]) -> int:
        """Return the age of the oldest of these messages; 0 if there is none."""
        store = self.store
        times = (readable(partial(store.store_timestamp, topic, *place)) for place in places)
        first = min((stored for stored in times if stored is not None), default=None)
        return 0 if first is None else max(self.clock.now_ms() - first, 0)

    # --- Store, timers, transactions ---

    def _of_storage(self, page: MetricFamilies) -> None:
        store = self.store
        appended, flushed, first = store.appended_offset, store.flushed_offset, store.log.min_offset
        page.family("rocketmq_storage_size")(appended - first, *STORAGE)
        page.family("rocketmq_storage_flush_behind_bytes")(max(appended - flushed, 0), *STORAGE)
        behind = max(appended - store.confirmed_offset, 0)
        page.family("rocketmq_storage_dispatch_behind_bytes")(behind, *STORAGE)
        stored = readable(partial(store.reader.store_timestamp, first)) if appended > first else None
        age_ms = 0 if stored is None else max(self.clock.now_ms() - stored, 0)
        page.family("rocketmq_storage_message_reserve_time")(age_ms, *STORAGE)
        page.family("skylark_log_min_offset")(first)
        page.family("skylark_log_appended_offset")(appended)
        page.family("skylark_log_flushed_offset")(flushed)
        page.family("skylark_archive_files_held")(store.housekeeper.unread.held)
        page.family("skylark_archive_files_lost_total")(store.housekeeper.unread.lost)
        page.family("skylark_store_writable")(int(store.refusal() is None))

    def _of_transactions(self, page: MetricFamilies) -> None:
        transactions = self.transactions
        half = page.family("rocketmq_half_messages")
        for topic, count in heapq.nlargest(
            SERIES_MAX, settled(transactions.open_by_topic).items(), key=lambda item: item[1]
        ):
            half(count, topic)
        ended = (("commit", transactions.commits), ("rollback", transactions.rollbacks))
        for word, counts in ended:
            total = page.family(f"rocketmq_{word}_messages_total")
            for topic, count in settled(partial(counts.most_common, SERIES_MAX)):
                total(count, topic)
        took = page.histogram("rocketmq_finish_message_latency")
        for topic, times in most(transactions.commit_times, HISTOGRAMS_MAX):
            took(times.counts, times.sum, topic)

    def _of_timers(self, page: MetricFamilies) -> None:
        timers = self.timers
        behind = timers.queue_behind
        page.family("rocketmq_timer_enqueue_lag")(behind, *STORAGE)
        oldest = [(0, timers.queue_offset)] if behind else []
        page.family("rocketmq_timer_enqueue_latency")(self._age_ms(names.TIMER_TOPIC, oldest), *STORAGE)
        page.family("rocketmq_timer_dequeue_lag")(timers.waiting, *STORAGE)
        page.family("rocketmq_timer_dequeue_latency")(timers.behind_ms, *STORAGE)
        for word, counts in (("enqueue", timers.enqueued), ("dequeue", timers.dequeued)):
            total = page.family(f"rocketmq_timer_{word}_total")
            for topic, count in settled(partial(counts.most_common, SERIES_MAX)):
                total(count, topic, *STORAGE)
        by_topic = page.family("rocketmq_timing_messages")
        for topic, timed in most(settled(timers.metrics).timing_count):
            by_topic(timed.count, topic, *STORAGE)
        snapshot = page.family("rocketmq_timer_message_snapshot")
        now_ms = self.clock.now_ms()
        for first_s, end_s in pairwise((0, *TIMER_BOUNDS_S)):
            waiting = timers.wheel.waiting_between(now_ms + first_s * 1000, now_ms + end_s * 1000)
            snapshot(waiting, str(end_s), *STORAGE)
        delays = page.histogram("rocketmq_delay_message_latency")
        for topic, times in most(timers.delays, HISTOGRAMS_MAX):
            delays(times.counts, times.sum, topic, *STORAGE)

    # --- Replication ---

    def _of_slaves(self, page: MetricFamilies) -> None:
        """What a master knows of its slaves."""
        lags = self.replication.lags()
        page.family("skylark_slaves")(len(lags))
        in_bytes, in_seconds = (page.family(f"skylark_slave_lag_{unit}") for unit in ("bytes", "seconds"))
        for address, lag_bytes, lag_s in lags:
            in_bytes(lag_bytes, address)
            in_seconds(lag_s, address)

    def _of_slave(self, page: MetricFamilies) -> None:
        """What a slave knows of itself."""
        slave = self.role.slave
        page.family("skylark_master_connected")(int(slave.sees_master))
        page.family("skylark_master_connections_total")(slave.connections)
        page.family("skylark_master_lag_bytes")(slave.lag_bytes)
        page.family("skylark_master_lag_seconds")(slave.lag_s(self.clock.now_ms()))


def most(table: dict[Any, Any], series_max: int | None = None) -> list[tuple[Any, Any]]:
    """The busiest entries of a table, as many as there may be series."""
    items = list(table.items())
    if series_max is None:
        series_max = SERIES_MAX
    if len(items) <= series_max:
        return items
    return heapq.nlargest(series_max, items, key=lambda item: item[1].count)


def settled(read: Callable[[], T]) -> T:
    """Read a table that the loop may change; retry if its size changed."""
    for _ in range(READS_MAX - 1):
        try:
            return read()
        except RuntimeError:  # changed size during iteration
            time.sleep(0)
    return read()


def readable(read: Callable[[], T]) -> T | None:
    """Return the result of a read; None if the log no longer has it, or the store is closing."""
    try:
        return read()
    except (OSError, ValueError, RocketMQError) as error:
        log.debug("not measured: %s", error)
        return None


def in_turns(items: Iterable[T]) -> Iterator[T]:
    """Iterate, and yield to the loop periodically."""
    for number, item in enumerate(items, 1):
        yield item
        if number % PAIRS_AT_ONCE == 0:
            time.sleep(0)


def _name(codes: type[IntEnum], code: int) -> str:
    if code == UNKNOWN_CODE:
        return "unknown"
    try:
        return codes(code).name.lower()
    except ValueError:
        return str(code)


def _text(value: bool) -> str:
    return "true" if value else "false"
