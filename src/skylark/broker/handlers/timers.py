"""Timed messages: taking one back (370), what waits (61), and how far the wheel is (60)."""

from __future__ import annotations

from skylark.broker.delayed.timed_messages import RecallHandle, recall_message
from skylark.broker.error_replies import (
    FAQ,
    SLAVE_REMARK,
    illegal_operation,
    no_permission,
    slave_not_available,
    system_error,
    topic_not_exist,
)
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.errors import BrokerError
from skylark.protocol.bodies import PERM_WRITE, encode_body
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.send import RecallMessage, RecallReply
from skylark.remoting.server import Peer
from skylark.store.append_result import Refused

HANDLE_REMARK = "recall handle is invalid"


def recall(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Take back a message whose time has not come: another one for the same time cancels it."""
    request = RecallMessage.from_command(command)
    region = broker.live.current.region
    try:
        handle = _check(broker, request)
        _put(broker, peer, handle, request.producer_group or "")
    except BrokerError as error:
        return command.reply(error.code, error.remark, fields={"MSG_REGION": region})
    reply = RecallReply(msg_id=handle.unique_key, region=region)
    return command.reply(fields=reply.to_fields())


def _check(broker: BrokerState, request: RecallMessage) -> RecallHandle:
    """Return what is to be taken back. Raises BrokerError."""
    settings = broker.live.current
    if not settings.timers.recall or not settings.timers.enabled:
        raise no_permission("recall failed, operation is forbidden")
    if broker.role.is_slave:
        raise slave_not_available(SLAVE_REMARK)
    now_ms = broker.clock.now_ms()
    if now_ms < settings.accept_sends_from_ms or not settings.permission & PERM_WRITE:
        raise BrokerError.for_code(
            ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
        )
    if broker.topics.get(request.topic) is None:
        raise topic_not_exist(f"recall failed, topic[{request.topic}] not exist{FAQ}")
    try:
        handle = RecallHandle.decode(request.recall_handle)
    except ValueError:
        raise illegal_operation(HANDLE_REMARK) from None
    if handle.topic != request.topic:
        raise illegal_operation("recall failed, topic not match")
    if handle.broker != settings.name:
        raise illegal_operation("recall failed, broker service not available")
    if not 0 < handle.deliver_ms - now_ms < settings.timers.max_delay_s * 1000:
        raise illegal_operation("recall failed, timestamp invalid")
    return handle


def _put(broker: BrokerState, peer: Peer, handle: RecallHandle, group: str) -> None:
    message, properties = recall_message(handle, group, peer.packed_host, broker.clock.now_ms())
    broker.timers.admit(message, properties)
    results = broker.store.append([message])
    broker.stats.count_puts(results)
    if isinstance(result := results[0], Refused):
        raise system_error(f"recall failed, {result.status.name}: {result.reason}")


def get_check_point(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    if not broker.live.current.timers.enabled:
        raise system_error("The checkpoint is null")
    return command.reply(body=broker.timers.check.encode())


def get_metrics(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    if not broker.live.current.timers.enabled:
        raise system_error("The timer message store is null")
    return command.reply(body=encode_body(broker.timers.metrics()))


ROUTES: dict[RequestCode, BrokerHandler] = {
    RequestCode.RECALL_MESSAGE: recall,
    RequestCode.GET_TIMER_CHECK_POINT: get_check_point,
    RequestCode.GET_TIMER_METRICS: get_metrics,
}
