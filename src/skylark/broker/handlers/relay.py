"""Requests of tools to a consumer, relayed by the broker: 307, 309."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from skylark.broker.clients import ConsumerGroups
from skylark.broker.error_replies import system_error
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.handlers.message_queries import record_at
from skylark.broker.handlers.served_requests import serves_command
from skylark.broker.record_loader import ReadCold
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import RequestTimeout, RocketMQError
from skylark.model.message_id import parse_offset_message_id
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import VERSION, Buffer, RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests.client import ConsumeMessageDirectly, GetConsumerRunningInfo
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.message_store import MessageStore

RELAY_TIMEOUT_S = 10.0
ANSWERING_VERSION = 62
"""RocketMQ 3.1.8: older clients do not serve these requests."""


class _Relayed(Request[RemotingCommand], frozen=True):
    """A request whose fields and reply the broker passes on unread."""

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


@dataclass(frozen=True, slots=True, eq=False)
class RelayHandlers:
    live: LiveSettings[BrokerSettings]
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroups
    consumers: ConsumerGroups
    read_cold: ReadCold

    @serves_command(RequestCode.GET_CONSUMER_RUNNING_INFO)
    async def get_running_info(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        request = GetConsumerRunningInfo.from_command(command)
        relayed = _RunningInfo(fields=command.fields, body=command.body)
        return await self._relay(command, request.consumer_group, request.client_id, relayed)

    @serves_command(RequestCode.CONSUME_MESSAGE_DIRECTLY, needs_copy=True)
    async def consume_directly(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        """Make a consumer consume a stored message now."""
        request = ConsumeMessageDirectly.from_command(command)
        fields = {**command.fields, "brokerName": self.live.current.name}
        topic = self.topics.get(request.topic or "")
        if topic is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self.groups.find(request.consumer_group, now_ms=self.clock.now_ms())
        if group is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        try:
            physical_offset = parse_offset_message_id(request.msg_id or "")[1]
        except ValueError as error:
            raise system_error(str(error)) from None
        record = await self.read_cold(lambda: record_at(self.store, physical_offset))
        if record is None:
            raise system_error(f"can not find message by the offset, {physical_offset}")
        relayed = _Consume(fields=fields, body=record)
        return await self._relay(command, request.consumer_group, request.client_id or "", relayed)

    async def _relay(
        self, command: RemotingCommand, group: str, client_id: str, request: _Relayed
    ) -> RemotingCommand:
        """Send a request to a consumer, and reply with its reply. Raises BrokerError 1 if it is offline."""
        client = self.consumers.client(group, client_id)
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
