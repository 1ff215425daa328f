"""Replies to request messages: 324 and 325. They are pushed to the client that waits for them (326)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from skylark.broker.clients import ProducerGroups
from skylark.broker.error_replies import invalid_parameter, messages_are_copied
from skylark.broker.handlers.served_requests import serves_command
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.topics import TopicTable, describe, random_queue
from skylark.clock import Clock
from skylark.errors import RocketMQError
from skylark.model.message import (
    PROPERTY_REPLY_TO,
    PutMessage,
    decode_properties,
    encode_properties,
    format_host,
)
from skylark.model.message_id import offset_message_id
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.frame_templates import SendReplies
from skylark.protocol.requests.send import (
    PushReplyMessageToClient,
    SendReplyMessage,
    SendReplyMessageV2,
)
from skylark.remoting.latency import RequestLatencies
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import AppendedRecord
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)

PROPERTY_PUSH_TIME = "PUSH_REPLY_TIME"
PUSH_TIMEOUT_S = 10.0
"""As in RocketMQ; the requesting client has timed out by then."""

Reply = SendReplyMessage | SendReplyMessageV2


@dataclass(frozen=True, slots=True, eq=False)
class ReplyHandlers:
    live: LiveSettings[BrokerSettings]
    clock: Clock
    store: MessageStore
    topics: TopicTable
    producers: ProducerGroups
    stats: BrokerStats
    send_replies: SendReplies
    latencies: RequestLatencies
    host: bytes
    """The broker's address as records hold it."""

    @serves_command(RequestCode.SEND_REPLY_MESSAGE, on_slave=messages_are_copied)
    @serves_command(RequestCode.SEND_REPLY_MESSAGE_V2, on_slave=messages_are_copied)
    async def send_reply(self, peer: Peer, command: RemotingCommand) -> None:
        """Push a reply to the client that waits for it, store it, and answer how both went."""
        since = peer.active_at
        kind = SendReplyMessage if command.code == RequestCode.SEND_REPLY_MESSAGE else SendReplyMessageV2
        message = self._message(peer, request := kind.from_command(command))
        properties = decode_properties(message.properties)
        remark = await self._push(peer, request, properties)
        message_id, queue_offset = "0", 0
        if self.live.current.store_replies:
            results = self.store.append([message])
            self.stats.count_puts(results)
            if isinstance(stored := results[0], AppendedRecord):
                message_id = offset_message_id(self.host, stored.physical_offset)
                queue_offset = stored.queue_offset
        if not command.is_oneway:
            code = ResponseCode.SUCCESS if remark is None else ResponseCode.SYSTEM_ERROR
            peer.write(
                self.send_replies.stored(
                    command.opaque,
                    message_id.encode(),
                    message.queue_id,
                    queue_offset,
                    code=code,
                    remark=remark,
                )
            )
            self.latencies.count(command.code, code, since)

    def _message(self, peer: Peer, request: Reply) -> PutMessage:
        """Make the message to store. Raises BrokerError for a topic or queue that is not writable."""
        config = self.topics.for_send(
            request.topic,
            request.default_topic,
            request.default_topic_queue_nums,
            unit_mode=request.unit_mode,
            now_ms=self.clock.now_ms(),
        )
        queue_id = request.queue_id
        if queue_id < 0:
            queue_id = random_queue(config.write_queue_nums)
        elif queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            raise invalid_parameter(
                f"request queueId[{queue_id}] is illegal, {describe(config)} Producer: {peer.address}"
            )
        settings = self.live.current
        properties = decode_properties(request.properties.encode())
        properties |= {"MSG_REGION": settings.region, "TRACE_ON": str(settings.trace_on).lower()}
        return PutMessage(
            request.topic, queue_id, bytes(request.body), encode_properties(properties), request.flag,
            request.sys_flag, request.born_timestamp, peer.packed_host, request.reconsume_times, wait=False,
        )  # fmt: skip

    async def _push(self, peer: Peer, request: Reply, properties: dict[str, str]) -> str | None:
        """Send a reply to its client; return RocketMQ's remark if that fails."""
        client_id = properties.get(PROPERTY_REPLY_TO)
        if client_id is None:
            return f"reply message properties[{PROPERTY_REPLY_TO}] is null"
        channel = self.producers.channel(client_id)
        if not isinstance(channel, Peer) or channel.is_closed:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self.clock.now_ms()
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
            store_host=format_host(self.host),
            store_timestamp=now_ms,
            properties=text,
            reconsume_times=request.reconsume_times,
            unit_mode=request.unit_mode,
            body=request.body,
        )
        try:
            await channel.call(pushed, timeout_s=PUSH_TIMEOUT_S)
        except RocketMQError as error:
            log.warning("cannot push reply client=%s reason=%s", client_id, error)
            return f"push reply message to {client_id} fail."
        return None
