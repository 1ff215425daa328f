"""Single messages and queue entries for administrators: 12, 33, 321. Records are sent as stored."""

from __future__ import annotations

from skylark.broker.error_replies import system_error
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.model.message import KEY_SEPARATOR, find_keys, find_unique_key
from skylark.model.record import split
from skylark.protocol.bodies import ConsumeQueueUnit, ConsumeQueueUnits, SubscriptionData, encode_body
from skylark.protocol.codes import NO_CODE_REMARK, RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.pull import (
    QueryConsumeQueue,
    QueryMessage,
    QueryMessageReply,
    ViewMessageById,
)
from skylark.remoting.server import Peer
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.index import IndexQueryResult
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import ENTRY

UNITS_MAX = 10_000
"""Of one answer."""
"""RocketMQ's remark on some answers, which are successes all the same."""


def record_at(store: MessageStore, physical_offset: int) -> bytes | None:
    """The record that starts there, if one does. Waits for the disk."""
    try:
        record = store.reader.record_at(physical_offset)
        # A body may look like a record; what it says of its own place it cannot know.
        return record if split(record).head[6] == physical_offset else None
    except (OffsetOutOfRange, CorruptRecord):
        return None


async def query_message(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = QueryMessage.from_command(command)
    settings = broker.live.current
    wanted = settings.query_messages if request.unique_key else request.max_num
    maximum = max(0, min(wanted, settings.store.query_messages_max))
    # Half of a frame: the answer's reader has a limit like ours.
    bytes_max = settings.frame_bytes_max // 2
    found, records = await broker.read_cold(lambda: _find(broker.store, request, maximum, bytes_max))
    fields = QueryMessageReply(found.last_timestamp, found.last_physical_offset).to_fields()
    if not records:
        remark = "can not find message, maybe time range not correct"
        return command.reply(ResponseCode.QUERY_NOT_FOUND, remark, fields=fields)
    return command.reply(fields=fields, body=b"".join(records))


def _find(
    store: MessageStore, request: QueryMessage, maximum: int, bytes_max: int
) -> tuple[IndexQueryResult, list[bytes]]:
    """What the index says of a key, and the records that do carry it: it knows only hashes."""
    if store.index is None:
        return IndexQueryResult([], 0, 0), []
    store.build_index()
    found = store.index.query(
        request.topic, request.key, maximum, request.begin_timestamp, request.end_timestamp
    )
    records: list[bytes] = []
    taken = 0
    for physical_offset in found.physical_offsets:
        record = record_at(store, physical_offset)
        if record is None or not _carries(record, request.topic, request.key):
            continue
        taken += len(record)
        if records and taken > bytes_max:
            break
        records.append(record)
    return found, records


def _carries(record: bytes, topic: str, key: str) -> bool:
    parts = split(record)
    wanted, keys = key.encode(), find_keys(parts.properties) or b""
    return parts.topic == topic.encode() and (
        wanted == find_unique_key(parts.properties) or wanted in keys.split(KEY_SEPARATOR.encode())
    )


async def view_message(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    physical_offset = ViewMessageById.from_command(command).physical_offset
    record = await broker.read_cold(lambda: record_at(broker.store, physical_offset))
    if record is None:
        raise system_error(f"can not find message by the offset, {physical_offset}")
    return command.reply(body=record)


async def query_consume_queue(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = QueryConsumeQueue.from_command(command)
    queue = broker.store.queues.get((request.topic, request.queue_id))
    if queue is None:
        raise system_error(f"{request.queue_id}@{request.topic} is not exist!")
    low, high = queue.min_offset, queue.max_offset
    if not low <= request.index < high:
        remark = f"Index {request.index} of {request.queue_id}@{request.topic} is not exist!"
        return command.reply(ResponseCode.SUCCESS, remark)
    count = min(request.count, UNITS_MAX, high - request.index)
    units = await broker.read_cold(lambda: _units(queue, request.index, count))
    subscription, filter_data = _subscription(broker, request.consumer_group, request.topic)
    body = ConsumeQueueUnits(
        queue_data=units,
        min_queue_index=low,
        max_queue_index=high,
        subscription_data=subscription,
        filter_data=filter_data,
    )
    return command.reply(ResponseCode.SUCCESS, NO_CODE_REMARK, body=encode_body(body))


def _units(queue: ConsumeQueue, first: int, count: int) -> list[ConsumeQueueUnit]:
    units: list[ConsumeQueueUnit] = []
    while len(units) < count:
        data = queue.units(first + len(units), count - len(units))
        if not data:
            break
        units += [
            ConsumeQueueUnit(physic_offset=physical_offset, physic_size=size, tags_code=code)
            for physical_offset, size, code in ENTRY.iter_unpack(data)
        ]
    return units


def _subscription(
    broker: BrokerState, group: str | None, topic: str
) -> tuple[SubscriptionData | None, str | None]:
    """What a group that is named wants, and a word on it as RocketMQ has it."""
    if group is None:
        return None, None
    subscription = broker.consumers.subscription(group, topic)
    if subscription is None:
        return None, f"{group}@{topic} is not online!"
    data = broker.consumer_filters.get(group, topic)
    return subscription.data, "null" if data is None else encode_body(data).decode()


ROUTES: dict[RequestCode, BrokerHandler] = {
    RequestCode.QUERY_MESSAGE: query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_CONSUME_QUEUE: query_consume_queue,
}
