"""Answers to request messages: 324 and 325. They go to the client that waits for them (326)."""

from __future__ import annotations

import logging

from skylark.broker.error_replies import SLAVE_REMARK, invalid_parameter, system_busy
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.broker.topics import describe
from skylark.errors import RocketMQError
from skylark.model.message import (
    PROPERTY_REPLY_TO,
    PutMessage,
    decode_properties,
    encode_properties,
    format_host,
)
from skylark.model.record import offset_message_id
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.send import (
    PushReplyMessageToClient,
    SendReplyMessage,
    SendReplyMessageV2,
)
from skylark.remoting.server import Peer
from skylark.store.append_result import AppendedRecord

log = logging.getLogger(__name__)

PROPERTY_PUSH_TIME = "PUSH_REPLY_TIME"
PUSH_TIMEOUT_S = 10.0
"""RocketMQ's; the client that asked has given up by then."""

Reply = SendReplyMessage | SendReplyMessageV2


async def send_reply(broker: BrokerState, peer: Peer, command: RemotingCommand) -> None:
    """Hand a reply on, keep it, and say what came of both."""
    if broker.role.is_slave:
        raise system_busy(SLAVE_REMARK)
    since = peer.active_at
    kind = SendReplyMessage if command.code == RequestCode.SEND_REPLY_MESSAGE else SendReplyMessageV2
    message = _message(broker, peer, request := kind.from_command(command))
    properties = decode_properties(message.properties)
    remark = await _push(broker, peer, request, properties)
    message_id, queue_offset = "0", 0
    if broker.live.current.store_replies:
        results = broker.store.append([message])
        broker.stats.count_puts(results)
        if isinstance(stored := results[0], AppendedRecord):
            message_id = offset_message_id(broker.store_host, stored.physical_offset)
            queue_offset = stored.queue_offset
    if not command.is_oneway:
        code = ResponseCode.SUCCESS if remark is None else ResponseCode.SYSTEM_ERROR
        peer.write(
            broker.send_replies.stored(
                command.opaque, message_id.encode(), message.queue_id, queue_offset, code=code, remark=remark
            )
        )
        broker.latencies.count(command.code, code, since)


def _message(broker: BrokerState, peer: Peer, request: Reply) -> PutMessage:
    """The reply as it is kept. Raises BrokerError for a topic or a queue that cannot be written to."""
    config = broker.topics.for_send(
        request.topic,
        request.default_topic,
        request.default_topic_queue_nums,
        unit_mode=request.unit_mode,
        now_ms=broker.clock.now_ms(),
    )
    queue_id = request.queue_id
    if queue_id < 0:
        queue_id = broker.random_queue(config.write_queue_nums)
    elif queue_id >= max(config.write_queue_nums, config.read_queue_nums):
        raise invalid_parameter(
            f"request queueId[{queue_id}] is illegal, {describe(config)} Producer: {peer.address}"
        )
    settings = broker.live.current
    properties = decode_properties(request.properties.encode())
    properties |= {"MSG_REGION": settings.region, "TRACE_ON": str(settings.trace_on).lower()}
    return PutMessage(
        request.topic, queue_id, bytes(request.body), encode_properties(properties), request.flag,
        request.sys_flag, request.born_timestamp, peer.packed_host, request.reconsume_times, wait=False,
    )  # fmt: skip


async def _push(broker: BrokerState, peer: Peer, request: Reply, properties: dict[str, str]) -> str | None:
    """Give a reply to the client that waits for it; return why that failed, in RocketMQ's words."""
    client_id = properties.get(PROPERTY_REPLY_TO)
    if client_id is None:
        return f"reply message properties[{PROPERTY_REPLY_TO}] is null"
    channel = broker.producers.channel(client_id)
    if not isinstance(channel, Peer) or channel.is_closed:
        return f"push reply message fail, channel of <{client_id}> not found."
    now_ms = broker.clock.now_ms()
    text = encode_properties({**properties, PROPERTY_PUSH_TIME: str(now_ms)}).decode()
    pushed = PushReplyMessageToClient(
        producer_group=request.producer_group,
        topic=request.topic,
        default_topic=request.default_topic,
        default_topic_queue_nums=request.default_topic_queue_nums,
        queue_id=request.queue_id,
        sys_flag=request.sys_flag,
        born_timestamp=request.born_timestamp,
        flag=request.flag,
        born_host=format_host(peer.packed_host),
        store_host=format_host(broker.store_host),
        store_timestamp=now_ms,
        properties=text,
        reconsume_times=request.reconsume_times,
        unit_mode=request.unit_mode,
        body=request.body,
    )
    try:
        await channel.call(pushed, timeout_s=PUSH_TIMEOUT_S)
    except RocketMQError as error:
        log.warning("reply not taken client=%s reason=%s", client_id, error)
        return f"push reply message to {client_id} fail."
    return None


ROUTES: dict[RequestCode, BrokerHandler] = {
    RequestCode.SEND_REPLY_MESSAGE: send_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: send_reply,
}
