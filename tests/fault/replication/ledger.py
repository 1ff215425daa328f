"""A load on a master, and what must be true of every broker that is master after it.

Only SEND_OK is a promise; what was answered otherwise may be there or not, but then once, and in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from skylark.errors import BrokerError, RocketMQError, TopicNotExist
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.offset import GetMaxOffset
from skylark.protocol.requests.send import SendMessageV2
from skylark.protocol.requests.topic import GetTopicConfig
from tests.support.broker import BrokerClient, until

QUEUES = 4
IN_FLIGHT = 8
Place = tuple[int, int]  # queue and queue offset


@dataclass
class Ledger:
    """All that was tried, promised and seen, over all lives of both brokers."""

    attempted: set[bytes] = field(default_factory=set)
    promised: dict[Place, bytes] = field(default_factory=dict)
    seen: dict[Place, bytes] = field(default_factory=dict)
    others: int = 0
    """Sends that were answered, but not with SEND_OK."""

    def promise(self, place: Place, body: bytes) -> None:
        assert self.promised.setdefault(place, body) == body, f"{place} was given out twice"
        assert self.seen.get(place, body) == body, f"{place} was seen as another message"

    def see(self, place: Place, body: bytes) -> None:
        assert self.seen.setdefault(place, body) == body, f"{place} was another message before"
        assert self.promised.get(place, body) == body, f"{place} was promised to another message"
        assert body in self.attempted

    async def check(self, address: str) -> int:
        """Compare with all that a broker has; returns how many messages that are."""
        stored = 0
        async with BrokerClient(address, "checking@1") as client:

            async def shows_topic() -> bool:
                try:
                    await client.ask(GetTopicConfig("T"))
                    await client.ask(GetMaxOffset("T", 0))
                except TopicNotExist:  # a slave hears of topics a little later
                    return False
                except (
                    BrokerError
                ) as error:  # one that was a master shows it only when it has the offsets, too
                    if error.code != ResponseCode.SYSTEM_BUSY:
                        raise
                    return False
                return True

            await until(shows_topic)
            for queue_id in range(QUEUES):
                messages = await client.pull_all("T", queue_id, group="Checking")
                offsets = [each.queue_offset for each in messages]
                assert offsets == list(range(len(messages))), "gap or repetition in a queue"
                self._check_queue(queue_id, [bytes(each.body) for each in messages])
                stored += len(messages)
        return stored

    def _check_queue(self, queue_id: int, bodies: list[bytes]) -> None:
        for kind, known in (("promised", self.promised), ("seen", self.seen)):
            for (owner, queue_offset), body in known.items():
                if owner == queue_id:
                    assert queue_offset < len(bodies), f"{kind} message lost: {body[:20]!r}"
                    assert bodies[queue_offset] == body, f"offset {queue_offset} holds another message"
        assert set(bodies) <= self.attempted
        assert len(set(bodies)) == len(bodies), "a message is there twice"
        last: dict[tuple[int, int], int] = {}
        for body in bodies:
            life, _, sender, number = map(int, body.split()[:4])
            # Each sender waits for an answer before its next message.
            assert number > last.get((life, sender), -1), "messages changed their order"
            last[life, sender] = number


async def produce(address: str, ledger: Ledger, life: int, queue_id: int) -> None:
    """Send to one queue, several at a time, until the connection is lost."""
    async with BrokerClient(address, f"producer{queue_id}@{life}") as client:

        async def send_one_by_one(sender: int) -> None:
            for number in itertools.count():
                body = b"%d %d %d %d " % (life, queue_id, sender, number) + b"x" * (number * 8 % 2000)
                ledger.attempted.add(body)
                request = SendMessageV2(
                    producer_group="PG", topic="T", default_topic="TBW102", default_topic_queue_nums=QUEUES,
                    queue_id=queue_id, sys_flag=0, born_timestamp=1, flag=0, body=body,
                )  # fmt: skip
                result = await client.ask(request, timeout_s=90)
                if result.code == ResponseCode.SUCCESS:
                    ledger.promise((queue_id, result.reply.queue_offset), body)
                else:
                    ledger.others += 1

        await asyncio.gather(*(send_one_by_one(sender) for sender in range(IN_FLIGHT)))


async def consume(address: str, ledger: Ledger, queue_id: int) -> None:
    """Follow one queue, until the connection is lost."""
    async with BrokerClient(address, f"consumer{queue_id}@1") as client:
        at = 0
        while True:
            try:
                messages = await client.pull("T", queue_id, at, suspend_ms=1000)
            except TopicNotExist:  # the first send makes it
                await asyncio.sleep(0.01)
                continue
            for message in messages:
                ledger.see((queue_id, message.queue_offset), bytes(message.body))
                at = message.queue_offset + 1


@contextlib.asynccontextmanager
async def load(address: str, ledger: Ledger, life: int, *, promises: int = 50) -> AsyncIterator[None]:
    """Produce and consume beside whatever is done, until the connections are lost or it is left."""
    work = [produce(address, ledger, life, queue_id) for queue_id in range(QUEUES)]
    work += [consume(address, ledger, queue_id) for queue_id in range(QUEUES)]
    before = len(ledger.promised)
    tasks = [asyncio.create_task(each) for each in work]

    def is_under_way() -> bool:
        for task in tasks:
            if task.done():
                task.result()
        return len(ledger.promised) >= before + promises

    try:
        await until(is_under_way, timeout_s=60)
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        # A lost connection, or the end of the test; no broken promise.
        assert isinstance(result, RocketMQError | asyncio.CancelledError), result
