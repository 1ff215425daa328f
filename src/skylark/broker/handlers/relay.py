"""Questions to a consumer that tools ask through the broker: 307, 309. Both sides' words are passed on."""

from __future__ import annotations

from typing import ClassVar

from skylark.broker.error_replies import system_error
from skylark.broker.handlers.message_queries import record_at
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.errors import RequestTimeout, RocketMQError
from skylark.model.record import parse_offset_message_id
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import VERSION, Buffer, RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests.client import ConsumeMessageDirectly, GetConsumerRunningInfo
from skylark.remoting.server import Peer

RELAY_TIMEOUT_S = 10.0
ANSWERING_VERSION = 62
"""RocketMQ 3.1.8: older clients do not know these questions."""


class _Relayed(Request[RemotingCommand], frozen=True):
    """A request whose fields and answer the broker does not look into."""

    fields: dict[str, str]
    body: Buffer

    def to_command(self, *, oneway: bool = False) -> RemotingCommand:
        return RemotingCommand(code=self.code, version=VERSION, fields=self.fields, body=self.body)

    def result(self, reply: RemotingCommand) -> RemotingCommand:
        return reply


class _RunningInfo(_Relayed, frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_RUNNING_INFO


class _Consume(_Relayed, frozen=True):
    code: ClassVar[RequestCode] = RequestCode.CONSUME_MESSAGE_DIRECTLY


async def get_running_info(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = GetConsumerRunningInfo.from_command(command)
    relayed = _RunningInfo(fields=command.fields, body=command.body)
    return await _relay(broker, command, request.consumer_group, request.client_id, relayed)


async def consume_directly(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """Have one consumer consume a message now, which is read here."""
    request = ConsumeMessageDirectly.from_command(command)
    fields = {**command.fields, "brokerName": broker.live.current.name}
    topic = broker.topics.get(request.topic or "")
    if topic is not None:
        fields["topicSysFlag"] = str(topic.topic_sys_flag)
    group = broker.groups.find(request.consumer_group, now_ms=broker.clock.now_ms())
    if group is not None:
        fields["groupSysFlag"] = str(group.group_sys_flag)
    try:
        physical_offset = parse_offset_message_id(request.msg_id or "")[1]
    except ValueError as error:
        raise system_error(str(error)) from None
    record = await broker.read_cold(lambda: record_at(broker.store, physical_offset))
    if record is None:
        raise system_error(f"can not find message by the offset, {physical_offset}")
    relayed = _Consume(fields=fields, body=record)
    return await _relay(broker, command, request.consumer_group, request.client_id or "", relayed)


async def _relay(
    broker: BrokerState, command: RemotingCommand, group: str, client_id: str, request: _Relayed
) -> RemotingCommand:
    """Ask a consumer, and answer what it answers. Raises BrokerError 1 if it is not there."""
    client = broker.consumers.client(group, client_id)
    if client.version < ANSWERING_VERSION:
        raise system_error(
            f"The Consumer <{client_id}> Version <{client.version}> too low to finish, "
            "please upgrade it to V3_1_8_SNAPSHOT"
        )
    assert isinstance(client.channel, Peer)
    try:
        reply = await client.channel.call(request, timeout_s=RELAY_TIMEOUT_S)
    except RequestTimeout as error:
        remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
        return command.reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
    except RocketMQError as error:
        raise system_error(f"invoke consumer <{group}> <{client_id}> Exception: {error}") from None
    return command.reply(reply.code, reply.remark, fields=reply.fields, body=reply.body)


ROUTES: dict[RequestCode, BrokerHandler] = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: get_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
}
