"""Offsets of groups and queues: 14, 15, 29 to 32, 43, 45, 222, 223, 308, 314."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence

from skylark.broker.clients import ConnectedClient
from skylark.broker.error_replies import group_not_exist, invalid_parameter, system_error, topic_not_exist
from skylark.broker.handlers.sliced_encoding import read_each
from skylark.broker.state import BrokerHandler, BrokerState
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
from skylark.protocol.codes import LanguageCode, RequestCode, ResponseCode
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
from skylark.remoting.latency import ONEWAY, SUCCESS
from skylark.remoting.server import Peer

log = logging.getLogger(__name__)

BY_CLIENTS_VERSION = 28
"""Clients from 3.0.7 on move to offsets that the broker tells them, and tell their own."""
BY_CLIENTS_REMARK = "not set any response code"
"""What RocketMQ says when all went well with that."""
RESET_REMARK = "Offset has been previously reset"
CLIENT_TIMEOUT_S = 5.0
NO_MESSAGE = -1
"""The time of a queue's first message, if it has none."""
UNSET = -1
"""An offset that is none."""


def _offset_reply(command: RemotingCommand, queue_offset: int, remark: str | None = None) -> RemotingCommand:
    return command.reply(remark=remark, fields=OffsetReply(queue_offset).to_fields())


# --- Of groups ---


def query_offset(
    broker: BrokerState, peer: Peer, command: RemotingCommand
) -> RemotingCommand | Awaitable[RemotingCommand]:
    """Say where a group goes on in a queue; a new group starts at 0 if it is to and the log still has it."""
    request = QueryConsumerOffset.from_command(command)
    queue_offset = broker.offsets.query(request.topic, request.consumer_group, request.queue_id)
    if queue_offset is not None and queue_offset >= 0:
        return _offset_reply(command, queue_offset)
    if request.set_zero_if_not_found is False:
        raise _not_found("Not found, do not set to zero, maybe this group boot first")
    return _query_first(broker, command, request)


async def _query_first(
    broker: BrokerState, command: RemotingCommand, request: QueryConsumerOffset
) -> RemotingCommand:
    if await broker.read_cold(lambda: _has_first_in_memory(broker, request.topic, request.queue_id)):
        return _offset_reply(command, 0)
    raise _not_found("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")


def _not_found(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.QUERY_NOT_FOUND, remark)


def _has_first_in_memory(broker: BrokerState, topic: str, queue_id: int) -> bool:
    """Say whether message 0 of a queue is there and in memory. Any thread."""
    queue = broker.store.queues.get((topic, queue_id))
    if queue is None or queue.min_offset > 0 or queue.max_offset == 0:
        return False
    unit = queue.unit(0)
    return unit is not None and broker.store.reader.hot.holds(unit[0], unit[1])


def update_offsets(
    broker: BrokerState, peer: Peer, commands: list[TypedCommand[UpdateConsumerOffset]]
) -> None:
    """Commit offsets that came together."""
    now_ms = broker.clock.now_ms()
    replies = []
    answers: Counter[tuple[int, bool]] = Counter()
    for command in commands:
        code, remark = _update_offset(broker, command.request, now_ms)
        answers[code, command.is_oneway] += 1
        if not command.is_oneway:
            replies.append(plain_reply(command.opaque, code, remark))
    if replies:
        peer.write(*replies)
    for (code, is_oneway), count in answers.items():
        result = ONEWAY if is_oneway else SUCCESS
        broker.latencies.count(commands[0].code, code, peer.active_at, count, result=result)


def _update_offset(broker: BrokerState, request: UpdateConsumerOffset, now_ms: int) -> tuple[int, str | None]:
    group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
    try:
        if group not in broker.groups:
            raise group_not_exist(f"Group {group} not exist!")
        if broker.topics.get(topic) is None:
            raise topic_not_exist(f"Topic {topic} not exist!")
        if queue_id is None:
            raise invalid_parameter(f"QueueId is null, topic is {topic}")
        if request.commit_offset is None:
            raise invalid_parameter(f"Offset is null, topic is {topic}")
        if broker.offsets.is_reset_pending(topic, group, queue_id):
            return ResponseCode.SUCCESS, RESET_REMARK
        broker.offsets.commit(topic, group, queue_id, request.commit_offset, now_ms=now_ms)
    except BrokerError as error:
        return error.code, error.remark
    return ResponseCode.SUCCESS, None


def clone_offsets(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Let a group begin where another one stands, in one topic or, other than in RocketMQ, in all of its.

    Topics that the other group, being online, does not subscribe any more are passed over, unless `offline`.
    """
    request = CloneGroupOffset.from_command(command)
    source = broker.consumers.group(request.src_group)
    topics = [request.topic] if request.topic else broker.offsets.topics_of(request.src_group)
    if source is not None and source.subscriptions and not request.offline:
        topics = [topic for topic in topics if topic in source.subscriptions]
    existing = [topic for topic in topics if broker.topics.get(topic) is not None]
    broker.offsets.clone(request.src_group, request.dest_group, existing)
    return command.reply()


def query_corrections(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Say by queue how far the slowest group has come, and where the one compared with is slower still."""
    request = QueryCorrectionOffset.from_command(command)
    excluded = [group for group in (request.filter_groups or "").split(",") if group]
    corrections = broker.offsets.corrections(
        request.topic,
        request.compare_group,
        excluded,
        lambda queue_id: broker.store.min_offset(request.topic, queue_id),
    )
    return command.reply(body=encode_body(CorrectionOffsets(correction_offsets=corrections)))


async def get_all_offsets(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Give a slave all committed offsets."""
    return command.reply(body=await broker.read_cold(broker.offsets.snapshot()))


def get_all_delay_offsets(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Give a slave the progress of all delay levels."""
    return command.reply(body=broker.schedule.snapshot()())


# --- Of queues ---


def get_max_offset(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Say where a queue ends for readers: what is not confirmed does not count, even if it is asked for."""
    request = GetMaxOffset.from_command(command)
    return _offset_reply(command, broker.store.max_offset(request.topic, request.queue_id))


def get_min_offset(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Say where a queue begins."""
    request = GetMinOffset.from_command(command)
    return _offset_reply(command, broker.store.min_offset(request.topic, request.queue_id), remark="")


async def search_offset(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Find the first message stored at a time or later or, by UPPER, the last one stored then or before."""
    request = SearchOffsetByTimestamp.from_command(command)
    upper = (request.boundary_type or "").upper() == "UPPER"
    return _offset_reply(
        command,
        await broker.read_cold(
            lambda: broker.store.offset_by_time(
                request.topic, request.queue_id, request.timestamp, upper=upper
            )
        ),
    )


async def get_earliest_time(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Say when the first message of a queue was stored."""
    request = GetEarliestMsgStoreTime.from_command(command)
    timestamp = await broker.read_cold(
        lambda: broker.store.earliest_timestamp(request.topic, request.queue_id)
    )
    reply = TimestampReply(timestamp if timestamp is not None else NO_MESSAGE)
    return command.reply(fields=reply.to_fields())


# --- Resets ---


async def reset_offsets(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Send a group to a time, to the end of all queues, or to an offset in one; the answer names the offsets.

    Its members hear of it at their next pull or, where the settings say so, at once and by themselves.
    """
    request = InvokeBrokerToResetOffset.from_command(command)
    if not broker.live.current.server_side_reset:
        return await _reset_by_clients(broker, command, request)
    config = broker.topics.get(request.topic)
    if config is None:
        raise topic_not_exist(f"Topic {request.topic} does not exist")
    if request.group not in broker.groups:
        raise group_not_exist(f"Group {request.group} does not exist")
    if request.queue_id >= 0 and request.queue_offset not in (None, UNSET):
        targets = {request.queue_id: _checked_target(broker, request)}
    else:
        queue_ids = [request.queue_id] if request.queue_id >= 0 else range(config.read_queue_nums)
        targets = await _find_targets(broker, request, queue_ids)
    if not targets:
        raise system_error("No queues to reset.")
    broker.offsets.reset(request.topic, request.group, targets)
    return command.reply(body=encode_body(_by_queue(broker, request.topic, targets)))


def _checked_target(broker: BrokerState, request: InvokeBrokerToResetOffset) -> int:
    target = request.queue_offset
    assert target is not None
    low = broker.store.min_offset(request.topic, request.queue_id)
    high = broker.store.max_offset(request.topic, request.queue_id)
    if not low <= target <= high + 1:
        raise system_error(f"Target offset {target} not in consume queue range [{low}-{high}]")
    return target


async def _find_targets(
    broker: BrokerState, request: InvokeBrokerToResetOffset, queue_ids: Sequence[int]
) -> dict[int, int]:
    """Find by queue where the request's time is; a time before all times means the end."""
    store, topic, timestamp = broker.store, request.topic, request.timestamp
    if timestamp < 0:
        return {queue_id: store.max_offset(topic, queue_id) for queue_id in queue_ids}
    found = await read_each(
        broker, queue_ids, lambda queue_id: store.offset_by_time(topic, queue_id, timestamp)
    )
    return dict(zip(queue_ids, found, strict=True))


def _by_queue(broker: BrokerState, topic: str, offsets: Mapping[int, int]) -> QueueOffsets:
    name = broker.live.current.name
    return QueueOffsets(
        offset_table={MessageQueue(topic, name, queue_id): at for queue_id, at in offsets.items()}
    )


async def _reset_by_clients(
    broker: BrokerState, command: RemotingCommand, request: InvokeBrokerToResetOffset
) -> RemotingCommand:
    """Tell all members where to go; they drop what they have and commit it themselves."""
    topic, group = request.topic, request.group
    config = broker.topics.get(topic)
    if config is None:
        raise system_error(f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}")
    committed = _committed_everywhere(broker, config, group)
    targets = await _find_targets(broker, request, list(committed))
    if not request.is_force:
        targets = {queue_id: min(target, committed[queue_id]) for queue_id, target in targets.items()}
    clients = broker.consumers.clients(group)
    if not clients:
        raise BrokerError.for_code(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
            f"Timestamp: {request.timestamp}",
        )
    _check_versions(clients)
    offsets = _by_queue(broker, topic, targets)
    in_list = command.language == LanguageCode.CPP.name
    told = ResetConsumerClientOffset(
        topic, group, request.timestamp, body=encode_body(_as_list(offsets) if in_list else offsets)
    )
    for client in clients:
        if isinstance(client.channel, Peer):
            client.channel.notify(told)
    return command.reply(remark=BY_CLIENTS_REMARK, body=encode_body(offsets))


def _committed_everywhere(broker: BrokerState, config: TopicConfig, group: str) -> dict[int, int]:
    committed = {}
    for queue_id in range(config.write_queue_nums):
        queue_offset = broker.offsets.query(config.topic_name, group, queue_id)
        if queue_offset is None or queue_offset == UNSET:
            raise system_error(f"THe consumer group <{group}> not exist")
        committed[queue_id] = queue_offset
    return committed


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


async def get_consumer_status(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Ask the members of a group, or one of them, how far they have come in a topic."""
    request = InvokeBrokerToGetConsumerStatus.from_command(command)
    clients = broker.consumers.clients(request.group)
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
    return command.reply(remark=BY_CLIENTS_REMARK, body=encode_body(status))


async def _ask(client: ConnectedClient, question: GetConsumerStatusFromClient) -> ConsumerStatus | None:
    assert isinstance(client.channel, Peer)
    try:
        return await client.channel.call(question, timeout_s=CLIENT_TIMEOUT_S)
    except RocketMQError as error:
        log.warning("consumer does not say its offsets client=%s reason=%s", client.client_id, error)
        return None


ROUTES: dict[RequestCode, BrokerHandler] = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_MAX_OFFSET: get_max_offset,
    RequestCode.GET_MIN_OFFSET: get_min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: get_earliest_time,
    RequestCode.GET_ALL_CONSUMER_OFFSET: get_all_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: get_all_delay_offsets,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offsets,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: get_consumer_status,
    RequestCode.QUERY_CORRECTION_OFFSET: query_corrections,
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
}
"""Without 15, the commit, which is a hot request: `update_offsets`."""
