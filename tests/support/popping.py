"""A client that pops by raw requests, for tests of pop consumption."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skylark.model.message import StoredMessage
from skylark.model.record import decode_all
from skylark.protocol.codes import ResponseCode
from skylark.protocol.pop_handle import PopHandle, read_starts
from skylark.protocol.requests.pop import (
    AckMessage,
    BatchAck,
    BatchAckBody,
    BatchAckMessage,
    ChangeMessageInvisibleTime,
    PopMessage,
    PopReply,
    bits_of,
)
from skylark.settings.broker import PopSettings, TimerSettings
from tests.support.broker import GROUP, BrokerClient

QUICK_TIMERS = TimerSettings(precision_ms=100)


def quick_pops(**changes: Any) -> dict[str, Any]:
    """Settings of a broker whose pops take a tenth of the usual time; `changes` are those of pops."""
    return {"timers": QUICK_TIMERS, "pop": PopSettings(**{"revive_interval_ms": 20, **changes})}


@dataclass
class Popped:
    """A popped message and its handle."""

    message: StoredMessage
    handle: PopHandle

    @property
    def body(self) -> bytes:
        return self.message.body


@dataclass
class PopOf:
    """The result of a pop."""

    code: int
    reply: PopReply | None
    messages: list[Popped]

    @property
    def bodies(self) -> list[bytes]:
        return [each.body for each in self.messages]


class Popper:
    """Pops one topic for one group."""

    def __init__(self, client: BrokerClient, topic: str = "T", group: str = GROUP) -> None:
        self.client = client
        self.topic = topic
        self.group = group

    async def pop(
        self,
        count: int = 32,
        *,
        invisible_ms: int = 60_000,
        poll_ms: int = 0,
        queue_id: int = -1,
        expression: str = "*",
        expression_type: str = "TAG",
        order: bool = False,
        attempt_id: str | None = None,
        init_mode: int = 0,
    ) -> PopOf:
        result = await self.client.ask(
            PopMessage(
                self.group, self.topic, queue_id, count, invisible_ms, poll_ms, round(time.time() * 1000),
                init_mode, expression_type, expression, order, attempt_id,
            ),
            timeout_s=30 + poll_ms / 1000,
        )  # fmt: skip
        found: list[Popped] = []
        if result.code == ResponseCode.SUCCESS:
            assert result.reply is not None
            starts = read_starts(result.reply.start_offset_info)
            for message in decode_all(result.records):
                text = message.properties.get("POP_CK")
                handle = (
                    PopHandle.decode(text)
                    if text is not None
                    else PopHandle(
                        starts["0", message.queue_id], result.reply.pop_time, result.reply.invisible_time,
                        result.reply.revive_queue_id, "0", "broker-a", message.queue_id, message.queue_offset,
                    )
                )  # fmt: skip
                found.append(Popped(message, handle))
        return PopOf(result.code, result.reply, found)

    async def ack(self, *popped: Popped) -> None:
        """Acknowledge messages one by one."""
        for each in popped:
            handle = each.handle
            topic = handle.popped_from(self.topic, self.group)
            await self.client.ask(
                AckMessage(self.group, topic, handle.queue_id, handle.encode(), handle.queue_offset)
            )

    async def ack_together(self, popped: Sequence[Popped]) -> None:
        by_batch: dict[tuple[int, int, str], list[PopHandle]] = {}
        for each in popped:
            handle = each.handle
            by_batch.setdefault((handle.queue_id, handle.start_offset, handle.retry), []).append(handle)
        acks = []
        for handles in by_batch.values():
            first = handles[0]
            bits = bits_of(first.start_offset, [handle.queue_offset for handle in handles])
            acks.append(
                BatchAck(
                    self.group, self.topic, first.retry, first.start_offset, first.queue_id,
                    first.revive_queue_id, first.pop_time, first.invisible_time, bits,
                )
            )  # fmt: skip
        await self.client.ask(BatchAckMessage(BatchAckBody(acks, "broker-a")))

    async def change(self, popped: Popped, invisible_ms: int) -> Popped:
        """Change the invisible time; return the message with its new handle."""
        handle = popped.handle
        topic = handle.popped_from(self.topic, self.group)
        reply = await self.client.ask(
            ChangeMessageInvisibleTime(
                self.group, topic, handle.queue_id, handle.encode(), handle.queue_offset, invisible_ms
            )
        )
        return Popped(
            popped.message, handle.changed(reply.pop_time, reply.invisible_time, reply.revive_queue_id)
        )
