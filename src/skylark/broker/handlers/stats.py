"""Progress of producers and consumers: 202, 208, 303, 315, 317. Times of messages are read from the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from skylark.broker.error_replies import system_error, topic_not_exist
from skylark.broker.handlers.sliced_encoding import queue_entry, read_each
from skylark.broker.monitoring.stats import Counter, CounterGrowth
from skylark.broker.offsets import SEPARATOR
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.protocol.bodies import (
    BrokerStatsData,
    ConsumeTimeSpan,
    GroupOffset,
    MessageQueue,
    StatsSnapshot,
    TopicConfig,
    TopicOffset,
    encode_body,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.admin import GetBrokerConsumeStats, ViewBrokerStatsData
from skylark.protocol.requests.group import GetConsumeStats, QueryConsumeTimeSpan
from skylark.protocol.requests.topic import GetTopicStatsInfo
from skylark.remoting.server import Peer

NO_TIME = -1


def existing_topic(broker: BrokerState, topic: str) -> TopicConfig:
    """Raises BrokerError 17."""
    config = broker.topics.get(topic)
    if config is None:
        raise topic_not_exist(f"topic[{topic}] not exist")
    return config


def queues_of(broker: BrokerState, topic: str, count: int) -> list[MessageQueue]:
    name = broker.live.current.name
    return [MessageQueue(topic=topic, broker_name=name, queue_id=queue_id) for queue_id in range(count)]


def last_stored(broker: BrokerState, queue: MessageQueue, queue_offset: int) -> int | None:
    """When the message before an offset was stored. Waits for the disk."""
    return broker.store.store_timestamp(queue.topic, queue.queue_id, queue_offset - 1)


# --- Topics ---


async def get_topic_stats(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    topic = GetTopicStatsInfo.from_command(command).topic
    config = existing_topic(broker, topic)

    def entry(queue: MessageQueue) -> bytes:
        high = broker.store.max_offset(topic, queue.queue_id)
        offset = TopicOffset(
            min_offset=broker.store.min_offset(topic, queue.queue_id),
            max_offset=high,
            last_update_timestamp=last_stored(broker, queue, high) or 0,
        )
        return queue_entry(queue, offset)

    queues = queues_of(broker, topic, max(config.read_queue_nums, config.write_queue_nums))
    table = b",".join(await read_each(broker, queues, entry))
    rate = _rate(broker, broker.stats.topic_puts.get(topic))
    return command.reply(body=b'{"offsetTable":{%b},"topicPutTps":%b}' % (table, encode_body(rate)))


# --- Groups ---


async def get_consume_stats(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = GetConsumeStats.from_command(command)
    group = request.consumer_group
    topics = [topic for topic in (request.topic_list or "").split(";") if topic]
    if not topics:
        asked = [request.topic] if request.topic else broker.offsets.topics_of(group)
        topics = subscribed(broker, group, asked)
    configs = [config for topic in topics if (config := broker.topics.get(topic)) is not None]
    queues = [
        queue for config in configs for queue in queues_of(broker, config.topic_name, config.read_queue_nums)
    ]
    offsets = await read_each(broker, queues, partial(group_offset, broker, group))
    rate = sum(_group_rate(broker, config.topic_name, group) for config in configs)
    return command.reply(body=await _encode_stats(broker, queues, offsets, rate))


async def get_all_consume_stats(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    only_ordered = GetBrokerConsumeStats.from_command(command).is_order
    topics_by_group = broker.offsets.topics_by_group()
    parts: list[bytes] = []
    lag = inflight = 0
    for config in broker.groups.all():
        group = config.group_name
        tables: list[bytes] = []
        for topic in subscribed(broker, group, topics_by_group.get(group, ())):
            known = broker.topics.get(topic)
            if known is None or (only_ordered and not known.order):
                continue
            queues = queues_of(broker, topic, known.write_queue_nums)
            offsets = await read_each(broker, queues, partial(group_offset, broker, group))
            lag += sum(offset.broker_offset - offset.consumer_offset for offset in offsets)
            inflight += sum(offset.pull_offset - offset.consumer_offset for offset in offsets)
            tables.append(await _encode_stats(broker, queues, offsets, _group_rate(broker, topic, group)))
        parts.append(b"{%b:[%b]}" % (encode_body(group), b",".join(tables)))
    body = b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}'
    return command.reply(body=body % (encode_body(broker.address), b",".join(parts), lag, inflight))


def subscribed(broker: BrokerState, group: str, topics: Iterable[str]) -> list[str]:
    """Those of the topics that a group still subscribes; all, if it is not online."""
    online = broker.consumers.group(group)
    if online is None or not online.subscriptions:
        return list(topics)
    return [topic for topic in topics if broker.consumers.subscription(group, topic) is not None]


def group_offset(broker: BrokerState, group: str, queue: MessageQueue) -> GroupOffset:
    """How far a group has come in a queue. Waits for the disk."""
    topic, queue_id = queue.topic, queue.queue_id
    consumed = max(0, broker.offsets.query(topic, group, queue_id) or 0)
    return GroupOffset(
        broker_offset=broker.store.max_offset(topic, queue_id),
        consumer_offset=consumed,
        pull_offset=max(consumed, broker.offsets.pulled(topic, group, queue_id) or 0),
        last_timestamp=last_stored(broker, queue, consumed) or 0,
    )


async def _encode_stats(
    broker: BrokerState, queues: list[MessageQueue], offsets: list[GroupOffset], rate: float
) -> bytes:
    entries = await read_each(
        broker, list(zip(queues, offsets, strict=True)), lambda item: queue_entry(*item)
    )
    return b'{"consumeTps":%b,"offsetTable":{%b}}' % (encode_body(float(rate)), b",".join(entries))


async def get_time_spans(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """Of each queue: when its messages were stored, and how long the next one has waited for the group."""
    request = QueryConsumeTimeSpan.from_command(command)
    config = existing_topic(broker, request.topic)
    now_ms = broker.clock.now_ms()
    queues = queues_of(broker, request.topic, config.write_queue_nums)
    spans = await read_each(
        broker, queues, lambda queue: encode_body(_time_span(broker, request.group, queue, now_ms))
    )
    return command.reply(body=b'{"consumeTimeSpanSet":[%b]}' % b",".join(spans))


def _time_span(broker: BrokerState, group: str, queue: MessageQueue, now_ms: int) -> ConsumeTimeSpan:
    store, topic, queue_id = broker.store, queue.topic, queue.queue_id
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    first = store.earliest_timestamp(topic, queue_id)
    last = last_stored(broker, queue, high)
    consumed = broker.offsets.query(topic, group, queue_id) or 0
    at = last_stored(broker, queue, consumed) if consumed > 0 else first
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


def local_time(time_ms: int) -> str:
    """`2026-11-15#05:05:08:566`."""
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d#%H:%M:%S}:{milliseconds:03}"


# --- Counters ---


def view_stats(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = ViewBrokerStatsData.from_command(command)
    find = COUNTERS.get(request.stats_name)
    counter = find(broker, request.stats_key) if find is not None else None
    if counter is None:
        raise system_error(f"The stats <{request.stats_name}> <{request.stats_key}> not exist")
    now, in_bytes = broker.clock.monotonic(), request.stats_name.endswith("_SIZE")
    data = BrokerStatsData(
        stats_minute=_snapshot(counter.last_minute(now, bytes_wanted=in_bytes)),
        stats_hour=_snapshot(counter.last_hour(now, bytes_wanted=in_bytes)),
        stats_day=_snapshot(counter.last_day(now, bytes_wanted=in_bytes)),
    )
    return command.reply(body=encode_body(data))


def _snapshot(growth: CounterGrowth) -> StatsSnapshot:
    return StatsSnapshot(sum=growth.sum, tps=growth.per_second, avgpt=growth.per_call)


def _of_topic(broker: BrokerState, key: str) -> Counter | None:
    return broker.stats.topic_puts.get(key)


def _of_group(broker: BrokerState, key: str) -> Counter | None:
    topic, _, group = key.partition(SEPARATOR)
    return broker.stats.group_gets.get((topic, group))


def _of_send_backs(broker: BrokerState, key: str) -> Counter | None:
    topic, _, group = key.partition(SEPARATOR)
    return broker.stats.send_backs.get((topic, group))


def _of_all_puts(broker: BrokerState, key: str) -> Counter | None:
    return broker.stats.puts if key == broker.live.current.cluster else None


def _of_all_gets(broker: BrokerState, key: str) -> Counter | None:
    return broker.stats.gets if key == broker.live.current.cluster else None


COUNTERS: dict[str, Callable[[BrokerState, str], Counter | None]] = {
    "TOPIC_PUT_NUMS": _of_topic,
    "TOPIC_PUT_SIZE": _of_topic,
    "GROUP_GET_NUMS": _of_group,
    "GROUP_GET_SIZE": _of_group,
    "SNDBCK_PUT_NUMS": _of_send_backs,
    "BROKER_PUT_NUMS": _of_all_puts,
    "BROKER_GET_NUMS": _of_all_gets,
}
"""RocketMQ's names of what we count. Keys are a topic, `topic@group`, or the cluster."""


def _rate(broker: BrokerState, counter: Counter | None) -> float:
    return counter.rate(broker.clock.monotonic()) if counter is not None else 0.0


def _group_rate(broker: BrokerState, topic: str, group: str) -> float:
    return _rate(broker, broker.stats.group_gets.get((topic, group)))


ROUTES: dict[RequestCode, BrokerHandler] = {
    RequestCode.GET_TOPIC_STATS_INFO: get_topic_stats,
    RequestCode.GET_CONSUME_STATS: get_consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: get_all_consume_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: get_time_spans,
    RequestCode.VIEW_BROKER_STATS_DATA: view_stats,
}
