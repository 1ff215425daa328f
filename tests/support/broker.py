"""Our name server and our broker inside a test: free ports, small files, short intervals, a client to ask.

async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
    await client.send("T", b"body")
    assert [message.body for message in await client.pull("T")] == [b"body"]
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from skylark.broker.broker import Broker
from skylark.clock import Clock
from skylark.model.message import StoredMessage, encode_properties, pack_host
from skylark.model.message_id import offset_message_id
from skylark.model.record import decode_all
from skylark.namesrv.server import NameServer
from skylark.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests.client import Heartbeat, HeartbeatReply
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from skylark.protocol.requests.send import SendMessageV2, SendReply
from skylark.protocol.signature import Signer
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.tls_client import ClientTls
from skylark.settings import BrokerSettings, NameServerSettings, StoreSettings
from skylark.settings.credentials import Credentials
from skylark.store.disk import Disk

T = TypeVar("T")

HOST = "127.0.0.1"
ASK_TIMEOUT_S = 30.0
GROUP = "CG"


def broker_settings(
    directory: Path, *, store: Mapping[str, Any] | None = None, **changes: Any
) -> BrokerSettings:
    """Small files and intervals of a hundredth of the real ones, changed as asked."""
    files = {
        "path": directory,
        "commit_log_file_bytes": 16 << 20,
        "consume_queue_file_bytes": 20 * 10_000,
        "index_slots": 1024,
        "index_items": 8192,
        "flush_interval_ms": 10,
        **(store or {}),
    }
    settings = {
        "port": 0,
        "metrics_port": 0,
        "register_interval_ms": 300,
        "register_timeout_ms": 1000,
        "hold_check_interval_ms": 50,
        "client_scan_interval_ms": 100,
        "offset_persist_interval_ms": 50,
        "delay_offset_persist_interval_ms": 100,
        "metadata_gather_ms": 1,
        "shutdown_timeout_ms": 1000,
        **changes,
    }
    return BrokerSettings(store=StoreSettings(**files), **settings)


@contextlib.asynccontextmanager
async def running_broker(
    directory: Path,
    *,
    clock: Clock | None = None,
    disk: Disk | None = None,
    store: Mapping[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Broker]:
    """Run a broker on free ports, its store in `directory`; without a name server unless one is given."""
    broker = Broker(broker_settings(directory, store=store, **changes), clock=clock, disk=disk)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


@contextlib.asynccontextmanager
async def running_name_server(directory: Path, **changes: Any) -> AsyncIterator[NameServer]:
    """Run a name server on a free port."""
    settings = NameServerSettings(**{"port": 0, "kv_config_path": directory / "kvConfig.json", **changes})
    server = NameServer(settings)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def running_cluster(directory: Path, **changes: Any) -> AsyncIterator[tuple[NameServer, Broker]]:
    """Run a name server and a broker that is registered with it."""
    async with (
        running_name_server(directory) as name_server,
        running_broker(directory / "store", name_servers=name_server.address, **changes) as broker,
    ):
        await until(lambda: bool(broker.registration.registered))
        yield name_server, broker


async def until(condition: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = 60) -> None:
    """Wait for a condition, or for a question whose answer is yes."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            await asyncio.sleep(0.005)


def offset_id(message: StoredMessage) -> str:
    """Return the id by which a broker finds a message."""
    host, _, port = message.store_host.rpartition(":")
    return offset_message_id(pack_host(host, int(port)), message.physical_offset)


def subscription(
    topic: str, expression: str = "*", version: int = 1, expression_type: str = "TAG"
) -> SubscriptionData:
    return SubscriptionData(
        topic=topic, sub_string=expression, sub_version=version, expression_type=expression_type
    )


def consumer(
    group: str = GROUP, topics: Sequence[str | SubscriptionData] = ("T",), **changes: Any
) -> ConsumerData:
    """What a heartbeat says of one group, as a push consumer does."""
    subscriptions = [subscription(topic) if isinstance(topic, str) else topic for topic in topics]
    members = {
        "consume_type": "CONSUME_PASSIVELY",
        "message_model": "CLUSTERING",
        "consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
        **changes,
    }
    return ConsumerData(group_name=group, subscription_data_set=subscriptions, **members)


class BrokerClient:
    """One connection to one server. What the server asks of its own is kept in `asked`, and answered by
    `on_request`, which answers nothing unless it is replaced."""

    def __init__(
        self,
        address: str,
        client_id: str = "client@1",
        *,
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.asked: list[RemotingCommand] = []
        self.on_request: Callable[[RemotingCommand], RemotingCommand | None] = lambda command: None
        signer = None if credentials is None else Signer(credentials)
        self._pool = ConnectionPool(
            on_request=self._keep, connect_timeout_s=ASK_TIMEOUT_S, signer=signer, tls=tls
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    def _keep(self, _: object, command: RemotingCommand) -> RemotingCommand | None:
        self.asked.append(command)
        return self.on_request(command)

    async def ask(self, request: Request[T], *, timeout_s: float = ASK_TIMEOUT_S) -> T:
        """Raises BrokerError for an answer that is a refusal."""
        return await self._pool.call(self.address, request, timeout_s=timeout_s)

    async def tell(self, request: Request[Any]) -> None:
        """Send a request that wants no answer."""
        await self._pool.notify(self.address, request)

    def hang_up(self) -> None:
        self._pool.drop(self.address)

    async def heartbeat(
        self, *consumers: ConsumerData, producers: Sequence[str] = (), fingerprint: int = 0, **members: Any
    ) -> HeartbeatReply:
        data = HeartbeatData(
            client_id=self.client_id,
            consumer_data_set=list(consumers),
            producer_data_set=[ProducerData(group_name=group) for group in producers],
            heartbeat_fingerprint=fingerprint,
            **members,
        )
        return await self.ask(Heartbeat(data))

    async def send(
        self,
        topic: str,
        body: bytes,
        queue_id: int = 0,
        *,
        properties: Mapping[str, str] | None = None,
        **members: Any,
    ) -> SendReply:
        """Send one message to a topic that makes itself; `members` are the header's others."""
        values = {
            "producer_group": "PG",
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "sys_flag": 0,
            "born_timestamp": round(time.time() * 1000),
            "flag": 0,
            **members,
        }
        text = encode_properties(properties or {}).decode()
        request = SendMessageV2(topic=topic, queue_id=queue_id, body=body, properties=text, **values)
        return (await self.ask(request)).reply

    async def pull(
        self,
        topic: str,
        queue_id: int = 0,
        queue_offset: int = 0,
        *,
        group: str = GROUP,
        expression: str = "*",
        suspend_ms: int = 0,
        max_messages: int = 32,
    ) -> list[StoredMessage]:
        """Return what is there; with `suspend_ms` wait that long for something. Raises BrokerError."""
        request = PullMessage(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            max_msg_nums=max_messages,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
            commit_offset=0,
            suspend_timeout_ms=suspend_ms,
            sub_version=0,
            subscription=expression,
        )
        result = await self.ask(request, timeout_s=ASK_TIMEOUT_S + suspend_ms / 1000)
        return list(decode_all(result.records)) if result.code == ResponseCode.SUCCESS else []

    async def pull_all(self, topic: str, queue_id: int = 0, *, group: str = GROUP) -> list[StoredMessage]:
        """Return all that a queue holds."""
        messages: list[StoredMessage] = []
        while part := await self.pull(topic, queue_id, len(messages), group=group):
            messages += part
        return messages
