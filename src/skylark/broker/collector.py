"""Numbers for Prometheus, read from a broker's tables when somebody scrapes.

Nothing is counted for the metrics' sake: the tables are there anyway. The thread that scrapes reads them
while the loop changes them, lets the loop have its turn in between, and never makes it wait.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from skylark.broker.attributes import MESSAGE_TYPE
from skylark.broker.clients import Client
from skylark.broker.handlers.stats_admin import subscribed
from skylark.broker.state import BrokerState
from skylark.errors import RocketMQError
from skylark.metrics import COMMON_LABELS, METRICS
from skylark.model import names
from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

log = logging.getLogger(__name__)

T = TypeVar("T")
Add = Callable[..., None]

SERIES_MAX = 1000
"""Topics, and pairs of topics and groups, with series of their own: those with the most messages."""
AGES_MAX = 1000
"""Queues whose oldest message is looked up in the log in one scrape, for the groups with the most to do."""
PAIRS_AT_ONCE = 64
"""Then the loop has its turn."""
READS_MAX = 20
"""A table that grew while it was read is read again, so often."""
STORAGE = ("local", "disk")
PROTOCOL_TYPE = "remoting"


class Page:
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


class Stand(NamedTuple):
    """How far a group has come in one queue."""

    queue_id: int
    consumed: int
    pulled: int
    end: int


class GroupStand(NamedTuple):
    """How far a group has come in a topic."""

    topic: str
    group: str
    queues: list[Stand]

    @property
    def lag(self) -> int:
        return sum(queue.end - queue.consumed for queue in self.queues)

    @property
    def ready(self) -> int:
        return sum(queue.end - queue.pulled for queue in self.queues)


class BrokerCollector:
    """Reads the broker's tables when somebody scrapes. Any thread: numbers are read, nothing is changed."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        settings = self._broker.live.current
        page = Page(settings.cluster, "broker", settings.name)
        of_role = self._of_slave if self._broker.role.is_slave else self._of_slaves
        for part in (
            self._of_tables,
            self._of_traffic,
            self._of_connections,
            self._of_groups,
            self._of_storage,
            self._of_waiting,
            of_role,
        ):
            try:
                part(page)
            except RuntimeError:  # a missing part is better than a broker that seems to be down
                log.warning("tables change too fast, some metrics are left out", exc_info=True)
        yield from page.families

    # --- Tables and traffic ---

    def _of_tables(self, page: Page) -> None:
        broker = self._broker
        page.family("rocketmq_broker_permission")(broker.live.current.permission)
        page.family("rocketmq_topic_number")(len(broker.topics))
        page.family("rocketmq_consumer_group_number")(len(broker.groups))
        page.family("skylark_held_pulls")(broker.long_polling.count)
        page.family("skylark_messages_refused_total")(broker.stats.refused)
        page.family("skylark_pulls_empty_total")(broker.stats.misses.calls)

    def _of_traffic(self, page: Page) -> None:
        stats = self._broker.stats
        messages = page.family("rocketmq_messages_in_total")
        size = page.family("rocketmq_throughput_in_total")
        for topic, counter in most(stats.topic_puts):
            labels = (topic, self._message_type(topic), self._is_system(topic))
            messages(counter.count, *labels)
            size(counter.size, *labels)
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

    def _message_type(self, topic: str) -> str:
        config = self._broker.topics.get(topic)
        declared = None if config is None else config.attributes.get(MESSAGE_TYPE)
        return (declared or "unspecified").lower()

    def _is_system(self, topic: str, group: str = "") -> str:
        is_system_group = group.startswith(names.SYSTEM_GROUP_PREFIX) or group in names.SYSTEM_GROUPS
        return _text(self._broker.topics.is_system(topic) or is_system_group)

    def _pair_labels(self, topic: str, group: str) -> tuple[str, str, str, str]:
        return (topic, group, self._is_system(topic, group), _text(topic.startswith(RETRY_TOPIC_PREFIX)))

    # --- Clients ---

    def _of_connections(self, page: Page) -> None:
        broker = self._broker
        table = settled(lambda: broker.producers.table(now=broker.clock.monotonic(), now_ms=0))
        producers = Tally(
            (each.language, str(each.version), PROTOCOL_TYPE)
            for infos in table.data.values()
            for each in infos
        )
        add = page.family("rocketmq_producer_connections")
        for labels, count in producers.most_common(SERIES_MAX):
            add(count, *labels)
        consumers = Tally(
            (client.language, str(client.version), PROTOCOL_TYPE, group, mode, self._is_system("", group))
            for group, mode, client in self._consumers()
        )
        add = page.family("rocketmq_consumer_connections")
        for of_group, count in consumers.most_common(SERIES_MAX):
            add(count, *of_group)

    def _consumers(self) -> Iterator[tuple[str, str, Client]]:
        consumers = self._broker.consumers
        for config in in_turns(self._broker.groups.all()):
            group = config.group_name
            online = consumers.group(group)
            if online is not None:
                for client in settled(partial(consumers.clients, group)):
                    yield group, (online.message_model or "").lower(), client

    # --- Lag ---

    def _of_groups(self, page: Page) -> None:
        lag = page.family("rocketmq_consumer_lag_messages")
        lag_age = page.family("rocketmq_consumer_lag_latency")
        inflight = page.family("rocketmq_consumer_inflight_messages")
        ready = page.family("rocketmq_consumer_ready_messages")
        ready_age = page.family("rocketmq_consumer_queueing_latency")
        looked_up = 0
        for stand in heapq.nlargest(SERIES_MAX, self._stands(), key=lambda stand: stand.lag):
            labels = self._pair_labels(stand.topic, stand.group)
            lag(stand.lag, *labels)
            inflight(stand.lag - stand.ready, *labels)
            ready(stand.ready, *labels)
            looked_up += len(stand.queues)
            if looked_up <= AGES_MAX:
                lag_age(self._age_ms(stand.topic, ((q.queue_id, q.consumed) for q in stand.queues)), *labels)
                ready_age(self._age_ms(stand.topic, ((q.queue_id, q.pulled) for q in stand.queues)), *labels)

    def _stands(self) -> Iterator[GroupStand]:
        """How far each group is that ever committed, in the topics that it still subscribes."""
        broker = self._broker
        for group, topics in in_turns(broker.offsets.topics_by_group().items()):
            for topic in in_turns(settled(partial(subscribed, broker, group, topics))):
                config = broker.topics.get(topic)
                if config is not None:
                    queues = [
                        self._stand(topic, group, queue_id) for queue_id in range(config.write_queue_nums)
                    ]
                    yield GroupStand(topic, group, queues)

    def _stand(self, topic: str, group: str, queue_id: int) -> Stand:
        store, offsets = self._broker.store, self._broker.offsets
        end = store.max_offset(topic, queue_id)
        # What was deleted, or is claimed beyond the end, nobody waits for.
        consumed = min(
            max(offsets.query(topic, group, queue_id) or 0, store.min_offset(topic, queue_id)), end
        )
        pulled = min(max(offsets.pulled(topic, group, queue_id) or 0, consumed), end)
        return Stand(queue_id, consumed, pulled, end)

    def _age_ms(self, topic: str, places: Iterable[tuple[int, int]]) -> int:
        """How old the oldest of these messages is; 0 where there is none."""
        store = self._broker.store
        times = (readable(partial(store.store_timestamp, topic, *place)) for place in places)
        first = min((stored for stored in times if stored is not None), default=None)
        return 0 if first is None else max(self._broker.clock.now_ms() - first, 0)

    # --- Store, timers, transactions ---

    def _of_storage(self, page: Page) -> None:
        store = self._broker.store
        appended, flushed, first = store.appended_offset, store.flushed_offset, store.log.min_offset
        page.family("rocketmq_storage_size")(appended - first, *STORAGE)
        page.family("rocketmq_storage_flush_behind_bytes")(max(appended - flushed, 0), *STORAGE)
        behind = max(appended - store.confirmed_offset, 0)
        page.family("rocketmq_storage_dispatch_behind_bytes")(behind, *STORAGE)
        stored = readable(partial(store.reader.store_timestamp, first)) if appended > first else None
        age_ms = 0 if stored is None else max(self._broker.clock.now_ms() - stored, 0)
        page.family("rocketmq_storage_message_reserve_time")(age_ms, *STORAGE)
        page.family("skylark_log_min_offset")(first)
        page.family("skylark_log_appended_offset")(appended)
        page.family("skylark_log_flushed_offset")(flushed)
        page.family("skylark_store_writable")(int(store.refusal() is None))

    def _of_waiting(self, page: Page) -> None:
        timers, transactions = self._broker.timers, self._broker.transactions
        page.family("rocketmq_half_messages")(transactions.open_count)
        ended = (("commit", transactions.commits), ("rollback", transactions.rollbacks))
        for word, counts in ended:
            total = page.family(f"rocketmq_{word}_messages_total")
            for topic, count in settled(lambda counts=counts: counts.most_common(SERIES_MAX)):  # type: ignore[misc]
                total(count, topic)
        page.family("rocketmq_timer_enqueue_lag")(timers.queue_behind)
        page.family("rocketmq_timer_dequeue_latency")(timers.behind_ms)
        page.family("skylark_timed_messages")(timers.waiting)
        by_topic = page.family("rocketmq_timing_messages")
        for topic, timed in most(settled(timers.metrics).timing_count):
            by_topic(timed.count, topic)

    # --- Replication ---

    def _of_slaves(self, page: Page) -> None:
        """What a master knows of its slaves."""
        lags = self._broker.replication.lags()
        page.family("skylark_slaves")(len(lags))
        in_bytes, in_seconds = (page.family(f"skylark_slave_lag_{unit}") for unit in ("bytes", "seconds"))
        for address, lag_bytes, lag_s in lags:
            in_bytes(lag_bytes, address)
            in_seconds(lag_s, address)

    def _of_slave(self, page: Page) -> None:
        """What a slave knows of itself."""
        slave = self._broker.slave_status
        page.family("skylark_master_connected")(int(slave.sees_master))
        page.family("skylark_master_connections_total")(slave.connections)
        page.family("skylark_master_lag_bytes")(slave.lag_bytes)
        page.family("skylark_master_lag_seconds")(slave.lag_s(self._broker.clock.now_ms()))


def most(table: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The busiest entries of a table."""
    items = list(table.items())
    if len(items) <= SERIES_MAX:
        return items
    return heapq.nlargest(SERIES_MAX, items, key=lambda item: item[1].count)


def settled(read: Callable[[], T]) -> T:
    """Read a table that the loop may change meanwhile: where its size changed, once more."""
    for _ in range(READS_MAX - 1):
        try:
            return read()
        except RuntimeError:  # changed size during iteration
            time.sleep(0)
    return read()


def readable(read: Callable[[], T]) -> T | None:
    """What is in the log; None if it is not any more, or the store is being closed."""
    try:
        return read()
    except (OSError, ValueError, RocketMQError) as error:
        log.debug("not measured: %s", error)
        return None


def in_turns(items: Iterable[T]) -> Iterator[T]:
    """Go through items, and let the loop have its turn now and then."""
    for number, item in enumerate(items, 1):
        yield item
        if number % PAIRS_AT_ONCE == 0:
            time.sleep(0)


def _text(value: bool) -> str:
    return "true" if value else "false"
