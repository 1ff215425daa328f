"""Offsets of groups and queues: 14, 15, 29 to 32, 43, 45, 222, 223, 308, 314."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from skylark.broker.clients import ConnectedClient, ConsumerGroups
from skylark.broker.delayed.delay_levels import DelayLevels
from skylark.broker.error_replies import (
    group_not_exist,
    invalid_parameter,
    metadata_is_copied,
    system_error,
    topic_not_exist,
)
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.handlers.served_requests import (
    HandlerReply,
    serves,
    serves_code,
    serves_command,
)
from skylark.broker.handlers.sliced_encoding import read_each
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.pop.ordered_batches import OrderedBatches
from skylark.broker.record_loader import ReadCold
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import BrokerError, RocketMQError
from skylark.protocol.bodies import (
    ConsumerStatus,
    CorrectionOffsets,
    MessageQueue,
    QueueOffset,
    QueueOffsetList,
    QueueOffsets,
    TopicConfig,
    encode_body,
)
from skylark.protocol.codes import NO_CODE_REMARK, LanguageCode, RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand, TypedCommand
from skylark.protocol.frame_templates import plain_reply
from skylark.protocol.requests.offset import (
    CloneGroupOffset,
    GetConsumerStatusFromClient,
    GetEarliestMsgStoreTime,
    GetMaxOffset,
    GetMinOffset,
    InvokeBrokerToGetConsumerStatus,
    InvokeBrokerToResetOffset,
    OffsetReply,
    QueryConsumerOffset,
    QueryCorrectionOffset,
    ResetConsumerClientOffset,
    SearchOffsetByTimestamp,
    TimestampReply,
    UpdateConsumerOffset,
)
from skylark.remoting.latency import ONEWAY, SUCCESS, RequestLatencies
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)

BY_CLIENTS_VERSION = 28
"""RocketMQ 3.0.7: the first client that accepts offsets from the broker, and reports its own."""
RESET_REMARK = "Offset has been previously reset"
CLIENT_TIMEOUT_S = 5.0
NO_MESSAGE = -1
"""The time of the first message of an empty queue."""
UNSET = -1
"""No offset."""


@dataclass(frozen=True, slots=True, eq=False)
class OffsetHandlers:
    live: LiveSettings[BrokerSettings]
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    ordered: OrderedBatches
    consumers: ConsumerGroups
    delay_levels: DelayLevels
    latencies: RequestLatencies
    read_cold: ReadCold

    # --- Offsets of groups ---

    @serves(QueryConsumerOffset, needs_copy=True)
    def query_offset(self, request: QueryConsumerOffset) -> OffsetReply | Coroutine[Any, Any, OffsetReply]:
        """Return a group's offset in a queue; a new group may start at 0 if the log still has message 0."""
        queue_offset = self.offsets.query(request.topic, request.consumer_group, request.queue_id)
        if queue_offset is not None and queue_offset >= 0:
            return OffsetReply(queue_offset)
        if request.set_zero_if_not_found is False:
            raise _not_found("Not found, do not set to zero, maybe this group boot first")
        return self._query_first(request)

    async def _query_first(self, request: QueryConsumerOffset) -> OffsetReply:
        if await self.read_cold(lambda: self._has_first_in_memory(request.topic, request.queue_id)):
            return OffsetReply(0)
        raise _not_found("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")

    def _has_first_in_memory(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue has message 0, in memory. Any thread."""
        queue = self.store.queues.get((topic, queue_id))
        if queue is None or queue.min_offset > 0 or queue.max_offset == 0:
            return False
        unit = queue.entry(0)
        return unit is not None and self.store.reader.hot.holds(unit[0], unit[1])

    def update_offsets(self, peer: Peer, commands: list[TypedCommand[UpdateConsumerOffset]]) -> None:
        """Commit offsets that came together. A hot request: `request_routes` adds it as a batch."""
        now_ms = self.clock.now_ms()
        replies = []
        answers: Counter[tuple[int, bool]] = Counter()
        for command in commands:
            code, remark = self._update_offset(command.request, now_ms)
            answers[code, command.is_oneway] += 1
            if not command.is_oneway:
                replies.append(plain_reply(command.opaque, code, remark))
        if replies:
            peer.write(*replies)
        for (code, is_oneway), count in answers.items():
            result = ONEWAY if is_oneway else SUCCESS
            self.latencies.count(commands[0].code, code, peer.active_at, count, result=result)

    def _update_offset(self, request: UpdateConsumerOffset, now_ms: int) -> tuple[int, str | None]:
        group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
        try:
            if group not in self.groups:
                raise group_not_exist(f"Group {group} not exist!")
            if self.topics.get(topic) is None:
                raise topic_not_exist(f"Topic {topic} not exist!")
            if queue_id is None:
                raise invalid_parameter(f"QueueId is null, topic is {topic}")
            if request.commit_offset is None:
                raise invalid_parameter(f"Offset is null, topic is {topic}")
            if self.offsets.is_reset_pending(topic, group, queue_id):
                return ResponseCode.SUCCESS, RESET_REMARK
            self.offsets.commit(topic, group, queue_id, request.commit_offset, now_ms=now_ms)
        except BrokerError as error:
            return error.code, error.remark
        return ResponseCode.SUCCESS, None

    @serves(CloneGroupOffset, on_slave=metadata_is_copied)
    def clone_offsets(self, request: CloneGroupOffset) -> None:
        """Copy a group's offsets to another group, in one topic or, unlike RocketMQ, in all of its topics.

        Topics that the online source group no longer subscribes are skipped, unless `offline`.
        """
        source = self.consumers.group(request.src_group)
        topics = [request.topic] if request.topic else self.offsets.topics_of(request.src_group)
        if source is not None and source.subscriptions and not request.offline:
            topics = [topic for topic in topics if topic in source.subscriptions]
        existing = [topic for topic in topics if self.topics.get(topic) is not None]
        self.offsets.clone(request.src_group, request.dest_group, existing)

    @serves(QueryCorrectionOffset)
    def query_corrections(self, request: QueryCorrectionOffset) -> CorrectionOffsets:
        """Return per queue the offset of the slowest group, and where the compared group is even slower."""
        excluded = [group for group in (request.filter_groups or "").split(",") if group]
        corrections = self.offsets.corrections(
            request.topic,
            request.compare_group,
            excluded,
            lambda queue_id: self.store.min_offset(request.topic, queue_id),
        )
        return CorrectionOffsets(correction_offsets=corrections)

    @serves_code(RequestCode.GET_ALL_CONSUMER_OFFSET, needs_copy=True)
    async def get_all_offsets(self) -> bytes:
        """Return all committed offsets, with the batches that are popped in order, for slaves."""
        encode, encode_batches = self.offsets.snapshot(), self.ordered.snapshot()
        if not len(self.ordered):
            return await self.read_cold(encode)

        def both() -> bytes:
            order_info = msgspec.json.encode(encode_batches().decode())
            return encode()[:-1] + b',\n"consumerOrderInfo":' + order_info + b"}"

        return await self.read_cold(both)

    @serves_code(RequestCode.GET_ALL_DELAY_OFFSET)
    def get_all_delay_offsets(self) -> bytes:
        """Return the progress of all delay levels, for slaves."""
        return self.delay_levels.snapshot()()

    # --- Offsets of queues ---

    @serves(GetMaxOffset, needs_copy=True)
    def get_max_offset(self, request: GetMaxOffset) -> OffsetReply:
        """Return a queue's end for readers: unconfirmed messages do not count, even if asked for."""
        return OffsetReply(self.store.max_offset(request.topic, request.queue_id))

    @serves(GetMinOffset, needs_copy=True)
    def get_min_offset(self, request: GetMinOffset) -> HandlerReply:
        return HandlerReply(
            remark="", fields=OffsetReply(self.store.min_offset(request.topic, request.queue_id))
        )

    @serves(SearchOffsetByTimestamp, needs_copy=True)
    async def search_offset(self, request: SearchOffsetByTimestamp) -> OffsetReply:
        """Find the first message stored at a time or later or, with UPPER, the last one stored by then."""
        topic, queue_id, upper = request.topic, request.queue_id, request.boundary_type or ""
        return OffsetReply(
            await self.read_cold(
                lambda: self.store.offset_by_time(
                    topic, queue_id, request.timestamp, upper=upper.upper() == "UPPER"
                )
            )
        )

    @serves(GetEarliestMsgStoreTime, needs_copy=True)
    async def get_earliest_time(self, request: GetEarliestMsgStoreTime) -> TimestampReply:
        timestamp = await self.read_cold(
            lambda: self.store.earliest_timestamp(request.topic, request.queue_id)
        )
        return TimestampReply(timestamp if timestamp is not None else NO_MESSAGE)

    # --- Resets ---

    @serves_command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, on_slave=metadata_is_copied)
    async def reset_offsets(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        """Move a group to a time, to the end of all queues, or to an offset in one; reply with the offsets.

        Its members learn of it with their next pull or, if the settings say so, are notified at once.
        """
        request = InvokeBrokerToResetOffset.from_command(command)
        if not self.live.current.server_side_reset:
            return await self._reset_by_clients(command, request)
        config = self.topics.get(request.topic)
        if config is None:
            raise topic_not_exist(f"Topic {request.topic} does not exist")
        if request.group not in self.groups:
            raise group_not_exist(f"Group {request.group} does not exist")
        if request.queue_id >= 0 and request.queue_offset not in (None, UNSET):
            targets = {request.queue_id: self._checked_target(request)}
        else:
            queue_ids = [request.queue_id] if request.queue_id >= 0 else range(config.read_queue_nums)
            targets = await self._find_targets(request, queue_ids)
        if not targets:
            raise system_error("No queues to reset.")
        self.offsets.reset(request.topic, request.group, targets)
        return command.reply(body=encode_body(self._by_queue(request.topic, targets)))

    def _checked_target(self, request: InvokeBrokerToResetOffset) -> int:
        target = request.queue_offset
        assert target is not None
        low = self.store.min_offset(request.topic, request.queue_id)
        high = self.store.max_offset(request.topic, request.queue_id)
        if not low <= target <= high + 1:
            raise system_error(f"Target offset {target} not in consume queue range [{low}-{high}]")
        return target

    async def _find_targets(
        self, request: InvokeBrokerToResetOffset, queue_ids: Sequence[int]
    ) -> dict[int, int]:
        """Find the offset of the request's time in each queue; a negative time means the end."""
        store, topic, timestamp = self.store, request.topic, request.timestamp
        if timestamp < 0:
            return {queue_id: store.max_offset(topic, queue_id) for queue_id in queue_ids}
        found = await read_each(
            self.read_cold, queue_ids, lambda queue_id: store.offset_by_time(topic, queue_id, timestamp)
        )
        return dict(zip(queue_ids, found, strict=True))

    def _by_queue(self, topic: str, offsets: Mapping[int, int]) -> QueueOffsets:
        name = self.live.current.name
        return QueueOffsets(
            offset_table={MessageQueue(topic, name, queue_id): at for queue_id, at in offsets.items()}
        )

    async def _reset_by_clients(
        self, command: RemotingCommand, request: InvokeBrokerToResetOffset
    ) -> RemotingCommand:
        """Notify all members of their new offsets; they drop their messages and commit the offsets."""
        topic, group = request.topic, request.group
        config = self.topics.get(topic)
        if config is None:
            raise system_error(f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}")
        committed = self._committed_everywhere(config, group)
        targets = await self._find_targets(request, list(committed))
        if not request.is_force:
            targets = {queue_id: min(target, committed[queue_id]) for queue_id, target in targets.items()}
        clients = self.consumers.clients(group)
        if not clients:
            raise BrokerError.for_code(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
                f"Timestamp: {request.timestamp}",
            )
        _check_versions(clients)
        offsets = self._by_queue(topic, targets)
        in_list = command.language == LanguageCode.CPP.name
        told = ResetConsumerClientOffset(
            topic, group, request.timestamp, body=encode_body(_as_list(offsets) if in_list else offsets)
        )
        for client in clients:
            if isinstance(client.channel, Peer):
                client.channel.notify(told)
        return command.reply(remark=NO_CODE_REMARK, body=encode_body(offsets))

    def _committed_everywhere(self, config: TopicConfig, group: str) -> dict[int, int]:
        committed = {}
        for queue_id in range(config.write_queue_nums):
            queue_offset = self.offsets.query(config.topic_name, group, queue_id)
            if queue_offset is None or queue_offset == UNSET:
                raise system_error(f"THe consumer group <{group}> not exist")
            committed[queue_id] = queue_offset
        return committed

    @serves(InvokeBrokerToGetConsumerStatus)
    async def get_consumer_status(self, request: InvokeBrokerToGetConsumerStatus) -> HandlerReply:
        """Ask the members of a group, or one of them, for their offsets in a topic."""
        clients = self.consumers.clients(request.group)
        if not clients:
            raise system_error(f"No Any Consumer online in the consumer group: [{request.group}]")
        _check_versions(clients)
        asked = [client for client in clients if request.client_addr in (None, "", client.client_id)]
        question = GetConsumerStatusFromClient(request.topic, request.group)
        answers = await asyncio.gather(*(_ask(client, question) for client in asked))
        status = ConsumerStatus(
            consumer_table={
                client.client_id: answer.message_queue_table
                for client, answer in zip(asked, answers, strict=True)
                if answer is not None
            }
        )
        return HandlerReply(remark=NO_CODE_REMARK, body=status)


def _not_found(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.QUERY_NOT_FOUND, remark)


def _check_versions(clients: Iterable[ConnectedClient]) -> None:
    for client in clients:
        if client.version < BY_CLIENTS_VERSION:
            raise system_error(f"the client does not support this feature. version={client.version}")


def _as_list(offsets: QueueOffsets) -> QueueOffsetList:
    return QueueOffsetList(
        offset_table=[
            QueueOffset(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id, offset=at)
            for queue, at in offsets.offset_table.items()
        ]
    )


async def _ask(client: ConnectedClient, question: GetConsumerStatusFromClient) -> ConsumerStatus | None:
    assert isinstance(client.channel, Peer)
    try:
        return await client.channel.call(question, timeout_s=CLIENT_TIMEOUT_S)
    except RocketMQError as error:
        log.warning("cannot get offsets of consumer client=%s reason=%s", client.client_id, error)
        return None
