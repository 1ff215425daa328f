"""Single messages and queue entries for administrators: 12, 33, 321. Records are sent as stored."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.broker.clients import ConsumerGroups
from skylark.broker.error_replies import system_error
from skylark.broker.filters.consumer_filters import ConsumerFilters
from skylark.broker.handlers.served_requests import HandlerReply, serves
from skylark.broker.record_loader import ReadCold
from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.model.message import find_keys, find_unique_key, split_keys
from skylark.model.record import split
from skylark.protocol.bodies import ConsumeQueueUnit, ConsumeQueueUnits, SubscriptionData, encode_body
from skylark.protocol.codes import NO_CODE_REMARK, ResponseCode
from skylark.protocol.requests.pull import (
    QueryConsumeQueue,
    QueryMessage,
    QueryMessageReply,
    ViewMessageById,
)
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.batch_consume_queue import BatchConsumeQueue, batch_entries
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.index import IndexQueryResult
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import ENTRY, ENTRY_BYTES

UNITS_MAX = 10_000
"""Queue entries of one reply."""


@dataclass(frozen=True, slots=True, eq=False)
class MessageQueryHandlers:
    live: LiveSettings[BrokerSettings]
    store: MessageStore
    consumers: ConsumerGroups
    consumer_filters: ConsumerFilters
    read_cold: ReadCold

    @serves(QueryMessage, needs_copy=True)
    async def query_message(self, request: QueryMessage) -> HandlerReply:
        settings = self.live.current
        wanted = settings.query_messages if request.unique_key else request.max_num
        maximum = max(0, min(wanted, settings.store.query_messages_max))
        # Half of a frame: the client has a frame limit like ours.
        bytes_max = settings.frame_bytes_max // 2
        found, records = await self.read_cold(lambda: _find(self.store, request, maximum, bytes_max))
        fields = QueryMessageReply(found.last_timestamp, found.last_physical_offset)
        if not records:
            remark = "can not find message, maybe time range not correct"
            return HandlerReply(ResponseCode.QUERY_NOT_FOUND, remark, fields)
        return HandlerReply(fields=fields, body=b"".join(records))

    @serves(ViewMessageById, needs_copy=True)
    async def view_message(self, request: ViewMessageById) -> bytes:
        record = await self.read_cold(lambda: record_at(self.store, request.physical_offset))
        if record is None:
            raise system_error(f"can not find message by the offset, {request.physical_offset}")
        return record

    @serves(QueryConsumeQueue, needs_copy=True)
    async def query_consume_queue(self, request: QueryConsumeQueue) -> HandlerReply:
        queue = self.store.queues.get((request.topic, request.queue_id))
        if queue is None:
            raise system_error(f"{request.queue_id}@{request.topic} is not exist!")
        low, high = queue.min_offset, queue.max_offset
        if not low <= request.index < high:
            return HandlerReply(
                remark=f"Index {request.index} of {request.queue_id}@{request.topic} is not exist!"
            )
        count = min(request.count, UNITS_MAX, high - request.index)
        units = await self.read_cold(lambda: _units(queue, request.index, count))
        subscription, filter_data = self._subscription(request.consumer_group, request.topic)
        body = ConsumeQueueUnits(
            queue_data=units,
            min_queue_index=low,
            max_queue_index=high,
            subscription_data=subscription,
            filter_data=filter_data,
        )
        return HandlerReply(remark=NO_CODE_REMARK, body=body)

    def _subscription(self, group: str | None, topic: str) -> tuple[SubscriptionData | None, str | None]:
        """Return the subscription of a group, and its filter as text, or RocketMQ's reason for none."""
        if group is None:
            return None, None
        subscription = self.consumers.subscription(group, topic)
        if subscription is None:
            return None, f"{group}@{topic} is not online!"
        data = self.consumer_filters.get(group, topic)
        return subscription.data, "null" if data is None else encode_body(data).decode()


def record_at(store: MessageStore, physical_offset: int) -> bytes | None:
    """Return the record that starts at a physical offset, or None. May block."""
    try:
        record = store.reader.record_at(physical_offset)
        # A message body may look like a record, but it cannot know its own physical offset.
        return record if split(record).head[6] == physical_offset else None
    except (OffsetOutOfRange, CorruptRecord):
        return None


def _find(
    store: MessageStore, request: QueryMessage, maximum: int, bytes_max: int
) -> tuple[IndexQueryResult, list[bytes]]:
    """Query the index, which only knows hashes, and return the records that do carry the key. May block."""
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
        wanted == find_unique_key(parts.properties) or wanted in split_keys(keys)
    )


def _units(queue: ConsumeQueue, first: int, count: int) -> list[ConsumeQueueUnit]:
    entries = bytearray()
    if isinstance(queue, BatchConsumeQueue):  # one for each record
        entries = batch_entries(queue, first, count, may_block=True)[0] or entries
    else:
        while len(entries) < count * ENTRY_BYTES:
            at = len(entries) // ENTRY_BYTES
            data = queue.entries(first + at, count - at)
            if not data:
                break
            entries += data
    return [
        ConsumeQueueUnit(physic_offset=physical_offset, physic_size=size, tags_code=code)
        for physical_offset, size, code in ENTRY.iter_unpack(entries)
    ]
