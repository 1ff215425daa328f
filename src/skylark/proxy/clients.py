"""Connected gRPC clients: their settings and streams, and their registration at the brokers.

A client has connections of its own to the brokers of its topics, so that brokers know it as they know every
other client: it is listed, expires, and receives their requests (39, 307, 309), which go to its stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from skylark.errors import BadBody, CorruptRecord, RocketMQError
from skylark.model.java import java_hash
from skylark.model.message import PROPERTY_REAL_TOPIC, PROPERTY_UNIQUE_KEY
from skylark.model.record import decode
from skylark.model.tag_expression import split_tags
from skylark.protocol.bodies import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    encode_body,
)
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    Heartbeat,
    UnregisterClient,
)
from skylark.protocol.requests.lite import (
    COMPLETE_REMOVE,
    LiteSubscriptionChange,
    LiteSubscriptionChanges,
    LiteSubscriptionCtl,
    NotifyUnsubscribeLite,
)
from skylark.protocol.requests.transaction import CheckTransactionState
from skylark.proxy.call import Call, Send
from skylark.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from skylark.proxy.message_codec import to_message
from skylark.proxy.schema import ClientType, Code, FilterType, v2
from skylark.proxy.status import status
from skylark.proxy.transaction_id import TransactionId
from skylark.remoting.connection_pool import ClientConnection, ConnectionPool
from skylark.remoting.link import Answer
from skylark.settings.proxy import ProxySettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

REGISTER_INTERVAL_S = 20.0
"""Least interval of heartbeats to a broker that knows the client."""
REGISTER_RETRY_S = 0.5
REGISTER_RETRY_S_MAX = 20.0
"""Delays before a client is announced again to brokers that missed it: the first, doubled up to the last."""
SWEEP_MS_MAX = 5000
CLIENTS_MAX = 100_000
_VERDICTS = {Code.OK: "CR_SUCCESS", Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER"}
_CONSUME_TYPES = {
    ClientType.SIMPLE_CONSUMER: "CONSUME_ACTIVELY",
    ClientType.PUSH_CONSUMER: "CONSUME_PASSIVELY",
    ClientType.LITE_PUSH_CONSUMER: "CONSUME_PASSIVELY",
}


class GrpcClient:
    """One client, by its id. `settings` are as the server completed them; None before the first."""

    def __init__(self, call: Call) -> None:
        self.client_id = call.client_id
        self.language = call.language
        self.source = (call.host, call.port)
        self.settings: Any = None
        self.seen_at = 0.0
        self.stream: Send | None = None
        self.pool: ConnectionPool | None = None
        self.registered_at = 0.0
        self.registered: set[str] = set()
        """Addresses of brokers that know it."""
        self.registration: asyncio.Task[None] | None = None
        self.answers: dict[str, asyncio.Future[Any]] = {}
        """Commands that wait for the client's answer, by nonce."""

    @property
    def topics(self) -> list[str]:
        """Topics that it publishes or subscribes."""
        if self.settings is None:
            return []
        if self.settings.HasField("publishing"):
            return [topic.name for topic in self.settings.publishing.topics]
        return [entry.topic.name for entry in self.settings.subscription.subscriptions]

    @property
    def group(self) -> str:
        """The group of a consumer; empty for a producer."""
        if self.settings is None or not self.settings.HasField("subscription"):
            return ""
        name: str = self.settings.subscription.group.name
        return name

    @property
    def is_lite(self) -> bool:
        """Whether it consumes lite topics."""
        return self.settings is not None and self.settings.client_type == ClientType.LITE_PUSH_CONSUMER

    def heartbeat_data(self) -> HeartbeatData:
        """Return the heartbeat for brokers: a producer is in a group of each topic's name."""
        if not self.group:
            return HeartbeatData(self.client_id, [ProducerData(topic) for topic in self.topics], [])
        consumer = ConsumerData(
            group_name=self.group,
            consume_type=_CONSUME_TYPES.get(self.settings.client_type, "CONSUME_PASSIVELY"),
            message_model="LITE_SELECTIVE" if self.is_lite else "CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=[_subscription(each) for each in self.settings.subscription.subscriptions],
        )
        return HeartbeatData(self.client_id, [], [consumer])


def _subscription(entry: Any) -> SubscriptionData:
    text = entry.expression.expression or "*"
    if entry.expression.type == FilterType.SQL:
        return SubscriptionData(topic=entry.topic.name, sub_string=text, expression_type="SQL92")
    tags = split_tags(text) or ()
    return SubscriptionData(
        topic=entry.topic.name,
        sub_string=text,
        tags_set=list(tags),
        code_set=[java_hash(tag) for tag in tags],
    )


class ClientTable:
    """All clients of a proxy. Loop thread."""

    def __init__(self, settings: ProxySettings, cluster: Cluster, tasks: Tasks) -> None:
        self._settings = settings
        self._cluster = cluster
        self._tasks = tasks
        self._clients: dict[str, GrpcClient] = {}
        self._nonces = itertools.count(1)
        self.on_gone: Callable[[str], Awaitable[None]] | None = None
        """Called with the id of a client that left or expired."""

    def start(self) -> None:
        sweep_ms = min(SWEEP_MS_MAX, self._settings.client_expiry_ms)
        loop = asyncio.get_running_loop()
        self._tasks.every(sweep_ms, lambda: self.expire(loop.time()), "expire gRPC clients")

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[GrpcClient]:
        return iter(self._clients.values())

    def get(self, client_id: str) -> GrpcClient | None:
        return self._clients.get(client_id)

    def connected(self, call: Call) -> GrpcClient:
        """Return the client of a call, made if it is new."""
        client = self._clients.get(call.client_id)
        if client is None:
            client = self._clients[call.client_id] = GrpcClient(call)
            if len(self._clients) > CLIENTS_MAX:
                self._drop(next(iter(self._clients.values())))
        client.seen_at = asyncio.get_running_loop().time()
        client.source = (call.host, call.port)
        return client

    def seen(self, client: GrpcClient) -> None:
        """Note a sign of life; tell brokers that do not know the client, or heard long ago."""
        now = asyncio.get_running_loop().time()
        client.seen_at = now
        is_lost = client.pool is not None and any(
            client.pool.open_connection(address) is None for address in client.registered
        )
        if is_lost or now - client.registered_at >= REGISTER_INTERVAL_S:
            self.register(client)

    def register(self, client: GrpcClient) -> None:
        """Tell the brokers of its topics about a client, in the background, until all know it."""
        client.registered_at = asyncio.get_running_loop().time()
        if client.pool is None:
            client.pool = self._cluster.open_pool(
                lambda connection, command: self._asked(client, connection, command),
                client.language,
                client.source,
            )
        if client.registration is not None:
            client.registration.cancel()
        client.registration = self._tasks.spawn(self._register(client, client.pool), "register gRPC client")

    async def _register(self, client: GrpcClient, pool: ConnectionPool) -> None:
        data = client.heartbeat_data()
        if not data.producer_data_set and not data.consumer_data_set:
            return
        delay_s = REGISTER_RETRY_S
        while not await self._tell_brokers(client, pool, data):
            # A client sends heartbeats every 10 s: checks of its transactions cannot wait for the next one.
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, REGISTER_RETRY_S_MAX)

    async def _tell_brokers(self, client: GrpcClient, pool: ConnectionPool, data: HeartbeatData) -> bool:
        """Send a heartbeat to each broker of the client's topics. True if there are any, and all know it."""
        addresses = await self._cluster.masters(client.topics)
        for address in client.registered - addresses:
            pool.drop(address)
        client.registered = addresses
        is_known = bool(addresses)
        for address in addresses:
            try:
                await pool.call(address, Heartbeat(data), timeout_s=REQUEST_TIMEOUT_S)
            except RocketMQError as error:
                is_known = False
                log.info(
                    "client not registered client=%s broker=%s error=%s", client.client_id, address, error
                )
        return is_known

    async def terminate(self, client_id: str) -> None:
        """Forget a client and unregister it."""
        client = self._clients.get(client_id)
        if client is not None:
            await self._leave(client)

    def _drop(self, client: GrpcClient) -> None:
        self._tasks.spawn(self._leave(client), "unregister gRPC client")

    async def _leave(self, client: GrpcClient) -> None:
        if self._clients.get(client.client_id) is client:
            del self._clients[client.client_id]
        if self.on_gone is not None:
            await self.on_gone(client.client_id)
        if client.registration is not None:
            client.registration.cancel()  # or a heartbeat could follow the request below
        pool, client.pool = client.pool, None
        if pool is None:
            return
        if client.is_lite:
            for topic in client.topics:
                with contextlib.suppress(RocketMQError):
                    await self._change_lite(
                        pool, client, LiteSubscriptionChange(action=COMPLETE_REMOVE, topic=topic)
                    )
        data = client.heartbeat_data()
        groups = [(each.group_name, None) for each in data.producer_data_set]
        consumers = [(None, each.group_name) for each in data.consumer_data_set]
        for address in client.registered:
            for producer, consumer in [*groups, *consumers]:
                request = UnregisterClient(client.client_id, producer, consumer)
                with contextlib.suppress(RocketMQError):
                    if pool.open_connection(address) is not None:
                        await pool.call(address, request, timeout_s=REQUEST_TIMEOUT_S)
        await pool.close()

    async def change_lite(self, client: GrpcClient, change: LiteSubscriptionChange) -> None:
        """Tell the brokers of a parent topic which lite topics a client wants. Raises RocketMQError."""
        if client.pool is None:
            self.register(client)
        assert client.pool is not None
        await self._cluster.route(change.topic)
        await self._change_lite(client.pool, client, change)

    async def _change_lite(
        self, pool: ConnectionPool, client: GrpcClient, change: LiteSubscriptionChange
    ) -> None:
        change.client_id, change.group = client.client_id, client.group
        request = LiteSubscriptionCtl(LiteSubscriptionChanges([change]))
        for address in await self._cluster.masters([change.topic]):
            await pool.call(address, request, timeout_s=REQUEST_TIMEOUT_S)

    async def close(self) -> None:
        """Unregister all clients."""
        await asyncio.gather(*(self._leave(client) for client in list(self._clients.values())))

    def expire(self, now: float) -> None:
        """Drop the clients that were last seen too long before `now`, in seconds of the loop."""
        oldest = now - self._settings.client_expiry_ms / 1000
        for client in list(self._clients.values()):
            if client.seen_at < oldest:
                log.info("client expired client=%s", client.client_id)
                self._drop(client)

    # --- Requests of brokers ---

    def _asked(
        self, client: GrpcClient, connection: ClientConnection, command: RemotingCommand
    ) -> Answer | Awaitable[Answer]:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            return self._check_transaction(client, connection.address, command)
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return self._running_info(client, command)
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return self._verify(client, command)
        if command.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
            return self._unsubscribe_lite(client, command)
        return None

    async def _unsubscribe_lite(self, client: GrpcClient, command: RemotingCommand) -> None:
        lite_topic = NotifyUnsubscribeLite.from_command(command).lite_topic
        notice = v2.NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
        await self._send(client, v2.TelemetryCommand(notify_unsubscribe_lite_command=notice))

    async def _check_transaction(self, client: GrpcClient, address: str, command: RemotingCommand) -> None:
        request = CheckTransactionState.from_command(command)
        try:
            stored = decode(request.body)
            # The record is that of the half topic; the topic in the header differs between brokers.
            topic = stored.properties.get(PROPERTY_REAL_TOPIC) or stored.topic
            message = to_message(stored, topic, attempt=stored.reconsume_times + 1)
        except (CorruptRecord, BadBody) as error:
            log.warning("half message of a check cannot be read client=%s error=%s", client.client_id, error)
            return
        unique_key = stored.properties.get(PROPERTY_UNIQUE_KEY) or request.transaction_id or ""
        broker = request.broker_name or self._cluster.broker_at(address)
        transaction = TransactionId(broker, request.queue_offset, request.physical_offset, unique_key)
        await self._send(
            client,
            v2.TelemetryCommand(
                recover_orphaned_transaction_command=v2.RecoverOrphanedTransactionCommand(
                    message=message, transaction_id=str(transaction)
                )
            ),
        )

    async def _running_info(self, client: GrpcClient, command: RemotingCommand) -> RemotingCommand:
        info = ConsumerRunningInfo(
            properties={
                "consumerGroup": client.group,
                "PROP_CLIENT_VERSION": client.settings.user_agent.version if client.settings else "",
            }
        )
        if GetConsumerRunningInfo.from_command(command).jstack_enable:
            nonce = str(next(self._nonces))
            print_trace = v2.PrintThreadStackTraceCommand(nonce=nonce)
            answer = await self._ask(
                client, nonce, v2.TelemetryCommand(print_thread_stack_trace_command=print_trace)
            )
            if answer is None:
                return command.reply(ResponseCode.SYSTEM_BUSY, "call remote timeout")
            info.jstack = answer.thread_stack_trace.thread_stack_trace
        return command.reply(body=encode_body(info))

    async def _verify(self, client: GrpcClient, command: RemotingCommand) -> RemotingCommand:
        request = ConsumeMessageDirectly.from_command(command)
        stored = decode(request.body)
        message = to_message(stored, request.topic or stored.topic, attempt=stored.reconsume_times + 1)
        nonce = str(next(self._nonces))
        wanted = v2.VerifyMessageCommand(nonce=nonce, message=message)
        answer = await self._ask(client, nonce, v2.TelemetryCommand(verify_message_command=wanted))
        if answer is None:
            return command.reply(ResponseCode.SYSTEM_BUSY, "call remote timeout")
        result = ConsumeDirectlyResult(
            consume_result=_VERDICTS.get(answer.status.code, "CR_RETURN_NULL"), remark="from gRPC client"
        )
        return command.reply(body=encode_body(result))

    async def _ask(self, client: GrpcClient, nonce: str, command: Any) -> Any:
        """Return the client's answer to a command, None if there is none in time."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        client.answers[nonce] = answer
        try:
            async with asyncio.timeout(self._settings.relay_timeout_ms / 1000):
                await self._send(client, command)
                return await answer
        except TimeoutError:
            return None
        finally:
            del client.answers[nonce]

    async def _send(self, client: GrpcClient, command: Any) -> None:
        """Send a command on the client's stream; without a stream it is lost, as brokers ask again."""
        if not command.HasField("status"):
            command.status.CopyFrom(status(Code.OK))
        if client.stream is None:
            log.info("command dropped, the client has no stream client=%s", client.client_id)
            return
        await client.stream(command)

    def answered(self, client: GrpcClient, nonce: str, command: Any) -> None:
        """Pass a client's answer to the call that waits for it."""
        answer = client.answers.get(nonce)
        if answer is not None and not answer.done():
            answer.set_result(command)
