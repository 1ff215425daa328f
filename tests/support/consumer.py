"""Consumers against our own servers inside a test: intervals of a hundredth, topics, committed offsets.

async with consumer_rig(tmp_path) as rig:
    await rig.topic("T", 4)
    await rig.send("T", b"body")
    async with rig.consumer("G", "T", got.extend):
        await until(lambda: len(got) == 1)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from skylark.broker.broker import Broker
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.received_message import ReceivedMessage
from skylark.model.names import retry_topic
from skylark.model.record import BATCH_ELEMENT, LENGTH
from skylark.namesrv.server import NameServer
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.group import UpdateAndCreateSubscriptionGroup
from skylark.protocol.requests.offset import QueryConsumerOffset, UpdateConsumerOffset
from skylark.protocol.requests.send import SendBatchMessage
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.settings.client import ClientSettings, ConsumeFrom, PushConsumerSettings
from tests.support.broker import BrokerClient, running_broker, running_name_server, until
from tests.support.fake_broker import FakeBroker

HUNDREDTH = 100
AT_FULL_LENGTH = frozenset(
    """
    consume_timeout_ms pull_timeout_ms hold_ms stop_wait_ms offset_timeout_ms lock_timeout_ms
    send_back_timeout_ms pull_idle_max_ms lock_expiry_ms unlock_delay_ms
    """.split()
)
"""Limits rather than intervals: on a slow machine a hundredth of them would be reached by mere slowness."""
IMMEDIATE_LEVELS = " ".join(["0s"] * 18)
"""Delay levels of a broker that retries at once."""


BATCH_MESSAGES = 250


def batch_element(body: bytes) -> bytes:
    """One message without properties, as batches hold it."""
    size = BATCH_ELEMENT.size + len(body) + LENGTH.size
    return BATCH_ELEMENT.pack(size, 0, 0, 0, len(body)) + body + LENGTH.pack(0)


def fast(**changes: Any) -> PushConsumerSettings:
    """Settings with a hundredth of the intervals, changed as asked; new groups begin at the start."""
    whole = PushConsumerSettings()
    intervals: dict[str, Any] = {
        field.name: max(getattr(whole, field.name) // HUNDREDTH, 1)
        for field in fields(whole)
        if field.name.endswith("_ms") and field.name not in AT_FULL_LENGTH and getattr(whole, field.name)
    }
    intervals["suspend_ms"] = 10
    return PushConsumerSettings(**{"consume_from": ConsumeFrom.FIRST_OFFSET, **intervals, **changes})


FAST_CLIENT: dict[str, Any] = {"route_refresh_interval_ms": 300, "heartbeat_interval_ms": 300}


@dataclass
class ConsumerRig:
    """A name server, a broker, and a plain client of the latter."""

    name_server: NameServer
    broker: Broker
    client: BrokerClient

    async def topic(self, name: str, queues: int = 4) -> None:
        """Make a topic, or change its number of queues, and wait until the name server knows."""
        await self.client.ask(
            UpdateAndCreateTopic(
                topic=name,
                default_topic="TBW102",
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                order=False,
            )
        )

    async def send(self, topic: str, *bodies: bytes, queue_id: int | None = None, **members: Any) -> None:
        """Send messages, round robin over the queues unless one is named."""
        queues = self.broker.topics.get(topic)
        count = queues.write_queue_nums if queues is not None else 4
        for number, body in enumerate(bodies):
            await self.client.send(topic, body, number % count if queue_id is None else queue_id, **members)

    async def fill(self, topic: str, queue_id: int, *bodies: bytes) -> None:
        """Send many messages to one queue, a few hundred at a time."""
        for start in range(0, len(bodies), BATCH_MESSAGES):
            elements = b"".join(map(batch_element, bodies[start : start + BATCH_MESSAGES]))
            await self.client.ask(
                SendBatchMessage(
                    producer_group="PG",
                    topic=topic,
                    default_topic="TBW102",
                    default_topic_queue_nums=4,
                    queue_id=queue_id,
                    sys_flag=0,
                    born_timestamp=1,
                    flag=0,
                    batch=True,
                    body=elements,
                )
            )

    def consumer(
        self,
        group: str,
        topic: str | None = None,
        listener: Callable[..., Any] | None = None,
        expression: str = "*",
        *,
        client: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncPushConsumer:
        """Make a consumer; `settings` are those of `fast`, `client` those of the client."""
        arguments = {name: settings.pop(name) for name in ("strategy", "offset_store") if name in settings}
        consumer = AsyncPushConsumer(
            group,
            namesrv=self.name_server.address,
            settings=fast(**settings),
            client=ClientSettings(**{**FAST_CLIENT, **(client or {})}),
            **arguments,
        )
        if topic is not None:
            consumer.subscribe(topic, expression, listener)
        return consumer

    async def committed(self, group: str, topic: str, queue_id: int = 0) -> int:
        """The offset that the broker has for a group."""
        return await self.client.ask(QueryConsumerOffset(group, topic, queue_id))

    async def commit(self, group: str, topic: str, queue_offset: int, queue_id: int = 0) -> None:
        """Say for a group, which is made if needed, how far it is."""
        await self.client.ask(UpdateAndCreateSubscriptionGroup(SubscriptionGroupConfig(group)))
        await self.client.ask(UpdateConsumerOffset(group, topic, queue_id, queue_offset))

    async def until_committed(
        self, group: str, topic: str, queue_offset: int, queue_id: int = 0, *, timeout_s: float = 60
    ) -> None:
        async def reached() -> bool:
            return await self.committed(group, topic, queue_id) == queue_offset

        await until(reached, timeout_s=timeout_s)


@contextlib.asynccontextmanager
async def consumer_rig(directory: Path, **changes: Any) -> AsyncIterator[ConsumerRig]:
    """Run a name server and a broker that retries at once."""
    store = {"delay_levels": IMMEDIATE_LEVELS, **changes.pop("store", {})}
    async with (
        running_name_server(directory) as name_server,
        running_broker(
            directory / "store", name_servers=name_server.address, store=store, **changes
        ) as broker,
        BrokerClient(broker.address) as client,
    ):
        yield ConsumerRig(name_server, broker, client)


class WatchedCall(NamedTuple):
    """A request of a client, when it left, and the name of the task that sent it."""

    at: float
    request: Any
    task: str


def watch_calls(consumer: AsyncPushConsumer, code: int) -> list[WatchedCall]:
    """Keep the requests of one code that a running consumer sends from now on."""
    pool = consumer._running().session.pool
    call, kept = pool.call, list[WatchedCall]()

    async def watched(address: str, request: Any, **options: Any) -> Any:
        if request.code == code:
            task = asyncio.current_task()
            kept.append(WatchedCall(time.monotonic(), request, task.get_name() if task else ""))
        return await call(address, request, **options)

    pool.call = watched  # type: ignore[method-assign]
    return kept


async def eventually(condition: Callable[[], object], *, timeout_s: float = 60) -> None:
    """Wait until something holds, or is not empty."""
    await until(lambda: bool(condition()), timeout_s=timeout_s)


async def until_count(things: Sized, count: int, *, timeout_s: float = 60) -> None:
    """Wait until there are so many."""
    await until(lambda: len(things) >= count, timeout_s=timeout_s)


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


async def until_owned(consumer: AsyncPushConsumer, *topics: str, count: int | None = None) -> None:
    """Wait until a consumer has queues of these topics, or so many of them."""

    def owned() -> bool:
        own = [queue for queue in consumer.queues() if queue.topic in topics]
        return len(own) == count if count is not None else {queue.topic for queue in own} == set(topics)

    await until(owned)


async def until_retrying(consumer: AsyncPushConsumer) -> None:
    """Wait until a consumer has its retry topic, so that retries come at once."""
    await until_owned(consumer, retry_topic(consumer.group))


async def until_shared(
    consumers: Sequence[AsyncPushConsumer], topic: str, queues: int, *, timeout_s: float = 60
) -> None:
    """Wait until the queues of a topic are shared out evenly, each with one owner and at work."""
    share, more = divmod(queues, len(consumers))
    expected = sorted([share + 1] * more + [share] * (len(consumers) - more))

    def shared() -> bool:
        held = [[queue for queue in consumer.queues() if queue.topic == topic] for consumer in consumers]
        everything = [queue for queues_of_one in held for queue in queues_of_one]
        counts = sorted(map(len, held))
        return counts == expected and len(set(everything)) == len(everything) == queues

    await until(shared, timeout_s=timeout_s)


# --- With a fake broker ---


def consumer_of(
    fake: FakeBroker,
    listener: Callable[..., Any],
    expression: str = "*",
    *,
    client: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncPushConsumer:
    """Make a consumer of topic T, with the settings of `fast`, for a fake broker."""
    consumer = AsyncPushConsumer(
        "G",
        namesrv=fake.address,
        settings=fast(**settings),
        client=ClientSettings(**{**FAST_CLIENT, **(client or {})}),
    )
    consumer.subscribe("T", expression, listener)
    return consumer


def pulls(fake: FakeBroker, topic: str = "T") -> list[RemotingCommand]:
    """The pulls of a topic that a fake broker got."""
    return [
        command for command in fake.asked_for(RequestCode.PULL_MESSAGE) if command.fields["topic"] == topic
    ]
