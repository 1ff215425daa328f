"""Progress of producers and consumers: 202, 208, 303, 315, 317. Times of messages are read from the disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from skylark.broker.clients import ConsumerGroups
from skylark.broker.error_replies import system_error, topic_not_exist
from skylark.broker.group_topics import GroupTopics
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.handlers.served_requests import serves
from skylark.broker.handlers.sliced_encoding import queue_entry, read_each
from skylark.broker.monitoring.stats import BrokerStats, Counter, CounterGrowth
from skylark.broker.offsets import SEPARATOR, ConsumerOffsets
from skylark.broker.record_loader import ReadCold
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.model.names import retry_topic
from skylark.protocol.bodies import (
    BrokerStatsData,
    ConsumeTimeSpan,
    GroupOffset,
    MessageQueue,
    StatsSnapshot,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
    encode_body,
)
from skylark.protocol.requests.admin import GetBrokerConsumeStats, ViewBrokerStatsData
from skylark.protocol.requests.group import GetConsumeStats, QueryConsumeTimeSpan
from skylark.protocol.requests.topic import GetTopicStatsInfo
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.message_store import MessageStore

NO_TIME = -1


@dataclass(frozen=True, slots=True, eq=False)
class StatsHandlers:
    live: LiveSettings[BrokerSettings]
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    consumers: ConsumerGroups
    group_topics: GroupTopics
    stats: BrokerStats
    read_cold: ReadCold
    address: str

    def _existing_topic(self, topic: str) -> TopicConfig:
        config = self.topics.get(topic)
        if config is None:
            raise topic_not_exist(f"topic[{topic}] not exist")
        return config

    def _queues(self, topic: str, count: int) -> list[MessageQueue]:
        name = self.live.current.name
        return [MessageQueue(topic=topic, broker_name=name, queue_id=queue_id) for queue_id in range(count)]

    def _last_stored(self, queue: MessageQueue, queue_offset: int) -> int | None:
        """Return the store time of the message before an offset. May block."""
        return self.store.store_timestamp(queue.topic, queue.queue_id, queue_offset - 1)

    # --- Topics ---

    @serves(GetTopicStatsInfo)
    async def get_topic_stats(self, request: GetTopicStatsInfo) -> bytes:
        topic = request.topic
        config = self._existing_topic(topic)

        def entry(queue: MessageQueue) -> bytes:
            high = self.store.max_offset(topic, queue.queue_id)
            offset = TopicOffset(
                min_offset=self.store.min_offset(topic, queue.queue_id),
                max_offset=high,
                last_update_timestamp=self._last_stored(queue, high) or 0,
            )
            return queue_entry(queue, offset)

        queues = self._queues(topic, max(config.read_queue_nums, config.write_queue_nums))
        table = b",".join(await read_each(self.read_cold, queues, entry))
        rate = self._rate(self.stats.topic_puts.get(topic))
        return b'{"offsetTable":{%b},"topicPutTps":%b}' % (table, encode_body(rate))

    # --- Groups ---

    @serves(GetConsumeStats)
    async def get_consume_stats(self, request: GetConsumeStats) -> bytes:
        group = request.consumer_group
        topics = [topic for topic in (request.topic_list or "").split(";") if topic]
        if not topics:
            if request.topic:
                topics = self.consumers.subscribed(group, [request.topic])
            else:
                topics = self.group_topics.of(group, self.offsets.topics_of(group))
        configs = [config for topic in topics if (config := self.topics.get(topic)) is not None]
        queues = [
            queue for config in configs for queue in self._queues(config.topic_name, config.read_queue_nums)
        ]

        def entry(queue: MessageQueue) -> bytes:
            return queue_entry(queue, self._group_offset(group, queue))

        rate = sum(self._group_rate(config.topic_name, group) for config in configs)
        return _consume_stats(await read_each(self.read_cold, queues, entry), rate)

    @serves(GetBrokerConsumeStats)
    async def get_all_consume_stats(self, request: GetBrokerConsumeStats) -> bytes:
        topics_by_group = self.offsets.topics_by_group()

        def entry(config: SubscriptionGroupConfig) -> tuple[bytes, int, int]:
            group = config.group_name
            tables: list[bytes] = []
            lag = inflight = 0
            for topic in self.group_topics.of(group, topics_by_group.get(group, ())):
                known = self.topics.get(topic)
                if known is None or (request.is_order and not known.order):
                    continue
                queues = self._queues(topic, known.write_queue_nums)
                offsets = [self._group_offset(group, queue) for queue in queues]
                lag += sum(offset.broker_offset - offset.consumer_offset for offset in offsets)
                inflight += sum(offset.pull_offset - offset.consumer_offset for offset in offsets)
                tables.append(
                    _consume_stats(map(queue_entry, queues, offsets), self._group_rate(topic, group))
                )
            return b"{%b:[%b]}" % (encode_body(group), b",".join(tables)), lag, inflight

        entries = await read_each(self.read_cold, self.groups.all(), entry)
        body = b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}'
        return body % (
            encode_body(self.address),
            b",".join(part for part, _, _ in entries),
            sum(lag for _, lag, _ in entries),
            sum(inflight for _, _, inflight in entries),
        )

    def _group_offset(self, group: str, queue: MessageQueue) -> GroupOffset:
        """Return a group's progress in a queue. May block."""
        topic, queue_id = queue.topic, queue.queue_id
        committed = self.offsets.query(topic, group, queue_id)
        if committed is None and topic == retry_topic(group):
            committed = self.store.min_offset(topic, queue_id)  # where members begin
        consumed = max(0, committed or 0)
        return GroupOffset(
            broker_offset=self.store.max_offset(topic, queue_id),
            consumer_offset=consumed,
            pull_offset=max(consumed, self.offsets.pulled(topic, group, queue_id) or 0),
            last_timestamp=self._last_stored(queue, consumed) or 0,
        )

    @serves(QueryConsumeTimeSpan)
    async def get_time_spans(self, request: QueryConsumeTimeSpan) -> bytes:
        """Return for each queue the time range of its messages, and the age of the group's next message."""
        config = self._existing_topic(request.topic)
        now_ms = self.clock.now_ms()
        queues = self._queues(request.topic, config.write_queue_nums)
        spans = await read_each(
            self.read_cold, queues, lambda queue: encode_body(self._time_span(request.group, queue, now_ms))
        )
        return b'{"consumeTimeSpanSet":[%b]}' % b",".join(spans)

    def _time_span(self, group: str, queue: MessageQueue, now_ms: int) -> ConsumeTimeSpan:
        store, topic, queue_id = self.store, queue.topic, queue.queue_id
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        first = store.earliest_timestamp(topic, queue_id)
        last = self._last_stored(queue, high)
        consumed = self.offsets.query(topic, group, queue_id) or 0
        at = self._last_stored(queue, consumed) if consumed > 0 else first
        waiting = store.store_timestamp(topic, queue_id, max(consumed, low))
        times = [NO_TIME if time is None else time for time in (first, last, at)]
        return ConsumeTimeSpan(
            message_queue=queue,
            min_time_stamp=times[0],
            max_time_stamp=times[1],
            consume_time_stamp=times[2],
            delay_time=now_ms - waiting if waiting is not None else 0,
            min_time_stamp_str=local_time(times[0]),
            max_time_stamp_str=local_time(times[1]),
            consume_time_stamp_str=local_time(times[2]),
        )

    # --- Counters ---

    @serves(ViewBrokerStatsData)
    def view_stats(self, request: ViewBrokerStatsData) -> BrokerStatsData:
        counter = self._counter(request.stats_name, request.stats_key)
        if counter is None:
            raise system_error(f"The stats <{request.stats_name}> <{request.stats_key}> not exist")
        now, in_bytes = self.clock.monotonic(), request.stats_name.endswith("_SIZE")
        return BrokerStatsData(
            stats_minute=_snapshot(counter.last_minute(now, bytes_wanted=in_bytes)),
            stats_hour=_snapshot(counter.last_hour(now, bytes_wanted=in_bytes)),
            stats_day=_snapshot(counter.last_day(now, bytes_wanted=in_bytes)),
        )

    def _counter(self, name: str, key: str) -> Counter | None:
        """Find a counter by RocketMQ's name; the key is a topic, `topic@group`, or the cluster."""
        topic, _, group = key.partition(SEPARATOR)
        match name:
            case "TOPIC_PUT_NUMS" | "TOPIC_PUT_SIZE":
                return self.stats.topic_puts.get(key)
            case "GROUP_GET_NUMS" | "GROUP_GET_SIZE":
                return self.stats.group_gets.get((topic, group))
            case "SNDBCK_PUT_NUMS":
                return self.stats.send_backs.get((topic, group))
            case "BROKER_PUT_NUMS" if key == self.live.current.cluster:
                return self.stats.puts
            case "BROKER_GET_NUMS" if key == self.live.current.cluster:
                return self.stats.gets
        return None

    def _rate(self, counter: Counter | None) -> float:
        return counter.rate(self.clock.monotonic()) if counter is not None else 0.0

    def _group_rate(self, topic: str, group: str) -> float:
        return self._rate(self.stats.group_gets.get((topic, group)))


def _consume_stats(entries: Iterable[bytes], rate: float) -> bytes:
    return b'{"consumeTps":%b,"offsetTable":{%b}}' % (encode_body(float(rate)), b",".join(entries))


def local_time(time_ms: int) -> str:
    """`2026-11-15#05:05:08:566`."""
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d#%H:%M:%S}:{milliseconds:03}"


def _snapshot(growth: CounterGrowth) -> StatsSnapshot:
    return StatsSnapshot(sum=growth.sum, tps=growth.per_second, avgpt=growth.per_call)
