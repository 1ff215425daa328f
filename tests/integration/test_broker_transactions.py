"""Transactions on a running broker: ended, asked about, and kept over restarts and kills."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.broker.transactions.coordinator import RECENT_MAX
from skylark.errors import RocketMQError
from skylark.model import names
from skylark.model.record import decode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.send import SendReply
from skylark.protocol.requests.transaction import COMMIT, ROLLBACK, CheckTransactionState, EndTransaction
from skylark.settings.broker import TransactionSettings
from tests.integration.test_broker_kill import Process, listening
from tests.support.broker import BrokerClient, running_broker, until

QUICK = TransactionSettings(timeout_ms=20, check_interval_ms=50)
KILLS = 3
PER_LIFE = 60


class TransactionClient(BrokerClient):
    """A producer that knows from a message's number what becomes of it, and says so when asked."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "producer@1")
        self.questions: list[int] = []
        self._answers: set[asyncio.Task[None]] = set()
        self.on_request = self._asked

    def fate(self, number: int) -> int:
        return ROLLBACK if number % 3 == 1 else COMMIT

    async def send_half(self, number: int) -> SendReply:
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": f"K{number}"}
        return await self.send("T", b"%d" % number, properties=properties, sys_flag=4)

    async def end(self, number: int, reply: SendReply, how: int) -> None:
        """As clients do: without waiting for an answer."""
        await self.tell(
            EndTransaction(
                producer_group="PG",
                queue_offset=reply.queue_offset,
                physical_offset=int(reply.msg_id[-16:], 16),
                commit_or_rollback=how,
                msg_id=f"K{number}",
            )
        )

    def _asked(self, command: RemotingCommand) -> None:
        state = CheckTransactionState.from_command(command)
        number = int(decode(state.body).body)
        self.questions.append(number)
        answer = asyncio.create_task(self._answer(number, state))
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)

    async def _answer(self, number: int, state: CheckTransactionState) -> None:
        end = EndTransaction(
            producer_group="PG",
            queue_offset=state.queue_offset,
            physical_offset=state.physical_offset,
            commit_or_rollback=self.fate(number),
            msg_id=state.msg_id or "",
            from_transaction_check=True,
        )
        with contextlib.suppress(RocketMQError):
            await self.tell(end)


async def test_sf_076_half_messages_are_invisible_until_their_commit(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, TransactionClient(broker.address) as client:
        replies = [await client.send_half(number) for number in range(4)]
        assert [reply.transaction_id for reply in replies] == ["K0", "K1", "K2", "K3"]
        assert await client.pull("T") == []
        await client.end(1, replies[1], ROLLBACK)
        for _ in range(2):
            await client.end(2, replies[2], COMMIT)
        await until(lambda: len(broker.transactions.table) == 2)
        assert [message.body for message in await client.pull("T")] == [b"2"]
        # The second commit of the same one changed nothing.
        assert (broker.transactions.commits, broker.transactions.rollbacks) == ({"T": 1}, {"T": 1})


async def test_more_transactions_end_than_are_kept_in_memory(tmp_path: Path) -> None:
    """Those read a moment ago are not read again, and those of long ago are."""
    count = 2 * RECENT_MAX + 10
    async with running_broker(tmp_path) as broker, TransactionClient(broker.address) as client:
        replies = await asyncio.gather(*map(client.send_half, range(count)))
        broker.transactions.follow()
        assert 0 < len(broker.transactions._recent) <= RECENT_MAX
        order = random.Random(5).sample(range(count), count)
        for number in order:
            await client.end(number, replies[number], client.fate(number))
        await until(lambda: broker.transactions.open_count == 0)
        assert broker.transactions._recent == {}
        found = [int(message.body) for message in await client.pull_all("T")]
        assert found == [number for number in order if client.fate(number) == COMMIT]


async def test_producers_are_asked_also_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, TransactionClient(broker.address) as client:
        for number in range(6):
            await client.send_half(number)
    async with (
        running_broker(tmp_path, transactions=QUICK) as broker,
        TransactionClient(broker.address) as client,
    ):
        await client.heartbeat(producers=["PG"])
        await until(lambda: broker.transactions.open_count == 0)
        assert sorted(set(client.questions)) == list(range(6))
        delivered = await client.pull("T")
        assert sorted(int(message.body) for message in delivered) == [0, 2, 3, 5]
        await until(lambda: broker.offsets.query(names.HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0) is not None)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    settings = {"transactionTimeOut": 300, "transactionCheckInterval": 200, "transactionCheckMax": 1000}
    made = Process(tmp_path, **settings)
    yield made
    made.kill()


async def test_kills_lose_no_commit_and_make_none_twice(process: Process) -> None:
    """A third is committed at once, a third rolled back, a third only when asked; the broker dies often."""
    acknowledged: set[int] = set()
    for life in range(KILLS + 1):
        process.start()
        await listening(process)
        async with TransactionClient(process.address) as client:
            await client.heartbeat(producers=["PG"])
            if life < KILLS:
                await _work(client, range(life * PER_LIFE, (life + 1) * PER_LIFE), acknowledged)
                process.kill()
            else:
                await _settle(client, acknowledged)


async def _work(client: TransactionClient, numbers: range, acknowledged: set[int]) -> None:
    for number in numbers:
        reply = await client.send_half(number)
        acknowledged.add(number)
        if number % 3 != 2:
            await client.end(number, reply, client.fate(number))


async def _settle(client: TransactionClient, acknowledged: set[int]) -> None:
    expected = {number for number in acknowledged if client.fate(number) == COMMIT}
    delivered: Counter[int] = Counter()

    async def all_there() -> bool:
        messages = await client.pull_all("T")
        delivered.clear()
        delivered.update(int(message.body) for message in messages)
        await client.heartbeat(producers=["PG"])
        return delivered.keys() >= expected

    await until(all_there, timeout_s=90)
    # Whoever answers twice, or is asked once more, changes nothing.
    asked = len(client.questions)
    await asyncio.sleep(0.5)
    await all_there()
    assert delivered == Counter(expected), f"questions: {asked}, then {len(client.questions)}"
