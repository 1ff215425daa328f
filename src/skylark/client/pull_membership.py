"""A pull consumer as its session and brokers see it: what they are told, and what they may ask."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from skylark.client.offset_table import read_reset_body
from skylark.client.process_queue import MEBIBYTE
from skylark.client.pulled_queue import PulledQueue
from skylark.client.routing import TopicRoute
from skylark.client.session import CONSUMER, BrokerHandler
from skylark.client.subscription import Subscription
from skylark.protocol.bodies import ConsumerData, MessageQueue, encode_body
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.offset import GetConsumerStatusFromClient, ResetConsumerClientOffset
from skylark.protocol.stats_bodies import ConsumerRunningInfo, ConsumerStatus, ProcessQueueInfo
from skylark.settings.pull_consumer import PullConsumerSettings

CONSUME_TYPE = "CONSUME_ACTIVELY"


class Pulling(Protocol):
    """What is needed of the consumer."""

    settings: PullConsumerSettings

    @property
    def group(self) -> str: ...

    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...

    @property
    def assigned(self) -> Collection[MessageQueue]: ...

    @property
    def name_servers(self) -> tuple[str, ...]: ...

    @property
    def held(self) -> Mapping[MessageQueue, PulledQueue]: ...

    def look_again(self) -> None: ...

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None: ...


class PullMembership:
    """Implements `session.Member`. Loop thread."""

    kind = CONSUMER

    def __init__(self, consumer: Pulling) -> None:
        self._consumer = consumer

    @property
    def group(self) -> str:
        return self._consumer.group

    def heartbeat_data(self) -> ConsumerData:
        settings = self._consumer.settings
        return ConsumerData(
            group_name=self.group,
            consume_type=CONSUME_TYPE,
            message_model=settings.model.value,
            consume_from_where=settings.consume_from.value,
            subscription_data_set=[wanted.data() for wanted in self._consumer.subscriptions.values()],
        )

    def topics(self) -> Iterable[str]:
        return {*self._consumer.subscriptions, *(queue.topic for queue in self._consumer.assigned)}

    def on_route_change(self, route: TopicRoute) -> None:
        if route.topic in self._consumer.subscriptions:
            self._consumer.look_again()

    def on_connected(self, address: str) -> None:
        self._consumer.look_again()

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
        }

    def _members_changed(self, command: RemotingCommand, address: str) -> None:
        self._consumer.look_again()

    async def _reset(self, command: RemotingCommand, address: str) -> None:
        request = ResetConsumerClientOffset.from_command(command)
        await self._consumer.reset(read_reset_body(bytes(request.body)))

    def _status(self, command: RemotingCommand, address: str) -> RemotingCommand:
        topic = GetConsumerStatusFromClient.from_command(command).topic
        positions = {
            queue: held.position
            for queue, held in self._consumer.held.items()
            if queue.topic == topic and held.position is not None
        }
        return command.reply(body=encode_body(ConsumerStatus(message_queue_table=positions)))

    def _running_info(self, command: RemotingCommand, address: str) -> RemotingCommand:
        consumer = self._consumer
        info = ConsumerRunningInfo(
            properties={
                "consumerGroup": self.group,
                "PROP_CONSUME_TYPE": CONSUME_TYPE,
                "PROP_NAMESERVER_ADDR": "".join(f"{server};" for server in consumer.name_servers),
            },
            subscription_set=[wanted.data() for wanted in consumer.subscriptions.values()],
            mq_table={
                queue: ProcessQueueInfo(
                    commit_offset=-1 if held.done is None else held.done,
                    cached_msg_count=held.message_count,
                    cached_msg_size_in_mi_b=held.message_bytes // MEBIBYTE,
                )
                for queue, held in consumer.held.items()
            },
        )
        return command.reply(body=encode_body(info))
