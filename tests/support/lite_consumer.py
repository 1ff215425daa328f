"""A client that consumes lite topics by raw requests, for tests."""

from __future__ import annotations

import asyncio

from skylark.model.message import StoredMessage
from skylark.model.record import decode_all
from skylark.protocol.codes import ResponseCode
from skylark.protocol.pop_handle import PopHandle
from skylark.protocol.requests.lite import (
    PARTIAL_ADD,
    LiteSubscriptionChange,
    LiteSubscriptionChanges,
    LiteSubscriptionCtl,
    OffsetOption,
    PopLiteMessage,
)
from skylark.protocol.requests.pop import AckMessage, ChangeMessageInvisibleTime
from tests.support.broker import BrokerClient

PARENT, GROUP = "parent", "LG"


class LiteConsumer:
    """A client of a group by raw requests."""

    def __init__(self, client: BrokerClient, client_id: str = "c1", group: str = GROUP) -> None:
        self.client = client
        self.client_id = client_id
        self.group = group

    async def change(self, action: str, *lite_topics: str, start: OffsetOption | None = None) -> None:
        change = LiteSubscriptionChange(
            action, self.client_id, self.group, PARENT, list(lite_topics), offset_option=start
        )
        await self.client.ask(LiteSubscriptionCtl(LiteSubscriptionChanges([change])))

    async def subscribe(self, *lite_topics: str, start: OffsetOption | None = None) -> None:
        await self.change(PARTIAL_ADD, *lite_topics, start=start)

    async def pop(self, *, poll_ms: int = 0, count: int = 32, invisible_ms: int = 60_000) -> list[LitePopped]:
        result = await self.client.ask(
            PopLiteMessage(self.client_id, self.group, PARENT, count, invisible_ms, poll_ms)
        )
        if result.code != ResponseCode.SUCCESS:
            return []
        assert result.reply is not None
        counts = (result.reply.order_count_info or "").split(";")
        return [
            LitePopped(
                self, message, int(times),
                PopHandle(0, result.reply.pop_time, invisible_ms, result.reply.revive_queue_id, "0", "b", 0,
                          int(message.properties["INNER_MULTI_QUEUE_OFFSET"])),
            )
            for message, times in zip(decode_all(result.records), counts, strict=True)
        ]  # fmt: skip

    async def take(self, count: int) -> list[str]:
        """Pop and acknowledge until so many messages have come."""
        found: list[str] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                for popped in await self.pop(poll_ms=1000):
                    found.append(popped.text)
                    await popped.acknowledge()
        return found


class LitePopped:
    """A popped message."""

    def __init__(
        self, consumer: LiteConsumer, message: StoredMessage, delivered: int, handle: PopHandle
    ) -> None:
        self.consumer = consumer
        self.message = message
        self.delivered = delivered
        self.handle = handle

    @property
    def text(self) -> str:
        return self.message.body.decode()

    @property
    def lite_topic(self) -> str:
        return self.message.properties["__LITE_TOPIC"]

    async def acknowledge(self) -> None:
        await self.consumer.client.ask(
            AckMessage(
                self.consumer.group,
                PARENT,
                0,
                self.handle.encode(),
                self.handle.queue_offset,
                self.lite_topic,
            )
        )

    async def change_invisible_time(self, invisible_ms: int, *, suspend: bool = False) -> None:
        await self.consumer.client.ask(
            ChangeMessageInvisibleTime(
                self.consumer.group, PARENT, 0, self.handle.encode(), self.handle.queue_offset, invisible_ms,
                self.lite_topic, suspend,
            )
        )  # fmt: skip
