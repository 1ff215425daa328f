"""Pulls from a running broker: as Apache's answered them, held and woken, of many clients and slow ones."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.model.record import decode_all
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import encode
from skylark.protocol.requests.offset import GetMaxOffset
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage, PullResult
from skylark.settings import BrokerSettings
from skylark.settings.store import FlushMode
from tests.integration.broker_rig import Exchange, Wire, anonymous_bytes, exchanges, fast_address, wire
from tests.support.broker import BrokerClient, consumer, running_broker, subscription, until
from tests.unit.remoting.rig import LOOPS, run_on

PULLS = (11, 361)
SCENARIOS = ["probe-pull", "pull", "lite-pull", "binary-lite-pull", "producer-trace"]
ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+:\d+")
HOLD_S = 0.15  # a hundredth of what push consumers ask for


def pull(queue_offset: int, *, group: str = "CG", suspend_ms: int = 0, **fields: Any) -> PullMessage:
    values: dict[str, Any] = {
        "topic": "T",
        "queue_id": 0,
        "max_msg_nums": 32,
        "sys_flag": PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
        "subscription": "*",
        **fields,
    }
    return PullMessage(
        consumer_group=group,
        queue_offset=queue_offset,
        commit_offset=0,
        suspend_timeout_ms=suspend_ms,
        sub_version=0,
        **values,
    )


def frame(request: PullMessage, opaque: int = 0) -> bytes:
    command = request.to_command()
    command.opaque = opaque
    return b"".join(encode(command))


# --- As Apache's ---


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_captured_pulls_are_answered_as_apaches_broker_answered_them(
    tmp_path: Path, scenario: str
) -> None:
    compared = 0
    async with (
        running_broker(tmp_path, long_polling=False, short_polling_ms=20) as broker,
        BrokerClient(broker.address) as client,
        wire(broker.address) as main,
        wire(fast_address(broker)) as fast,
    ):
        await client.send("TopicTest", b"there from the start")
        for exchange in exchanges(scenario):
            if exchange.code in PULLS and exchange.answer is not None:
                await prepare(broker, client, exchange)
                await compare(fast if exchange.is_fast else main, exchange)
                compared += 1
    assert compared >= 3


async def prepare(broker: Broker, client: BrokerClient, exchange: Exchange) -> None:
    """Let the queue be as long as it was, its tags such that the same comes out, and the group online."""
    assert exchange.answer is not None
    fields, found = exchange.fields, exchange.answer["code"] == ResponseCode.SUCCESS
    topic, queue_id = fields["topic"], int(fields["queueId"])
    expression = fields.get("subscription") or "*"
    wanted = int(exchange.answer_fields.get("maxOffset", 0))
    tag = {} if expression == "*" or not found else {"TAGS": expression.split("||")[0].strip()}
    if fields.get("expressionType") == "SQL92" and found:
        await client.send(topic, b"for SQL", queue_id, properties={"a": "6"})
    while wanted and await client.ask(GetMaxOffset(topic, queue_id)) < wanted:
        await client.send(topic, b"x" * 100, queue_id, properties=tag, default_topic_queue_nums=8)
    if not int(fields["sysFlag"]) & PULL_SUBSCRIPTION and exchange.answer_fields:
        # Not all heartbeats were kept; what the group subscribed follows from what it got.
        expression = "*" if found else "NoSuchTag"
        version = max(time.time_ns() // 1000, int(fields["subVersion"]))
        group = fields["consumerGroup"]
        await client.heartbeat(consumer(group, [subscription(topic, expression, version)]))


async def compare(connection: Wire, exchange: Exchange) -> None:
    answer = await connection.ask(exchange.frame)
    assert exchange.answer is not None
    assert answer.code == exchange.answer["code"], answer.remark
    if exchange.remark.startswith("java."):
        return
    assert ADDRESS.sub("ADDRESS", answer.remark or "") == ADDRESS.sub("ADDRESS", exchange.remark)
    assert answer.fields.keys() == exchange.answer_fields.keys()
    if answer.code != ResponseCode.SUCCESS:
        assert answer.fields == exchange.answer_fields


# --- Holding and waking ---


async def test_sf_005_a_message_reaches_who_waits_for_it_within_200_ms(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as broker,
        BrokerClient(broker.address) as sender,
        BrokerClient(broker.address) as reader,
    ):
        await sender.send("T", b"first")
        elapsed = []
        for number in range(1, 8):
            waiting = asyncio.create_task(reader.ask(pull(number, suspend_ms=15_000), timeout_s=20))
            await until(lambda: broker.long_polling.count == 1)
            started = time.monotonic()
            await sender.send("T", b"%d" % number)
            result = await waiting
            elapsed.append(time.monotonic() - started)
            assert (result.code, result.reply.next_begin_offset) == (0, number + 1)
        # A machine that stands still for a moment does not do so seven times: nothing waits for a clock here.
        assert min(elapsed) < 0.2


async def test_sf_006_an_idle_consumer_is_answered_again_and_again(tmp_path: Path) -> None:
    """At a hundredth: by a timer per pull, for the regular check comes never here."""
    async with (
        running_broker(tmp_path, hold_check_interval_ms=60_000) as broker,
        BrokerClient(broker.address) as client,
    ):
        await client.send("T", b"x")
        started = time.monotonic()
        for round_number in range(1, 5):
            result = await client.ask(pull(1, suspend_ms=round(HOLD_S * 1000)))
            assert (result.code, result.reply.next_begin_offset) == (19, 1)
            elapsed = time.monotonic() - started
            assert elapsed >= HOLD_S * round_number - 0.001
        assert elapsed < HOLD_S * 4 + 20


@pytest.mark.nightly
async def test_sf_092_an_idle_pull_is_answered_after_15_s(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, hold_check_interval_ms=5_000) as broker,
        BrokerClient(broker.address) as client,
    ):
        await client.send("T", b"x")
        started = time.monotonic()
        result = await client.ask(pull(1, suspend_ms=15_000), timeout_s=30)
        assert result.code == 19
        assert time.monotonic() - started == pytest.approx(15, abs=1)


@pytest.mark.parametrize(
    ("interval_ms", "found_within_s"),
    [(50, 5), pytest.param(BrokerSettings().hold_check_interval_ms, 6, marks=pytest.mark.nightly)],
)
async def test_sf_092_without_a_notice_of_arrival_the_regular_check_finds_it(
    tmp_path: Path, interval_ms: int, found_within_s: float
) -> None:
    assert BrokerSettings().hold_check_interval_ms == 5000
    async with (
        running_broker(tmp_path, hold_check_interval_ms=interval_ms) as broker,
        BrokerClient(broker.address) as client,
        BrokerClient(broker.address) as reader,
    ):
        await client.send("T", b"x")
        broker.store.on_arrival = None
        waiting = asyncio.create_task(reader.ask(pull(1, suspend_ms=120_000), timeout_s=150))
        await until(lambda: broker.long_polling.count == 1)
        started = time.monotonic()
        await client.send("T", b"new")
        assert (await waiting).code == 0
        assert time.monotonic() - started < found_within_s


async def test_who_waits_for_a_tag_is_not_woken_by_another(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, hold_check_interval_ms=60_000) as broker,
        BrokerClient(broker.address) as client,
        BrokerClient(broker.address) as reader,
    ):
        await client.send("T", b"x", properties={"TAGS": "b"})
        request = pull(1, suspend_ms=15_000, subscription="a")
        waiting = asyncio.create_task(reader.ask(request, timeout_s=20))
        await until(lambda: broker.long_polling.count == 1)
        await client.send("T", b"no", properties={"TAGS": "b"})
        assert broker.long_polling.count == 1
        await client.send("T", b"yes", properties={"TAGS": "a"})
        result = await waiting
        assert (result.code, result.reply.next_begin_offset) == (0, 3)
        assert b"yes" in bytes(result.records)
        assert len(list(decode_all(result.records))) == 1


async def test_with_sync_flush_who_waits_is_woken_when_it_is_on_disk(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, store={"flush_mode": FlushMode.SYNC}) as broker,
        BrokerClient(broker.address) as client,
        BrokerClient(broker.address) as reader,
    ):
        await client.send("T", b"x")
        waiting = asyncio.create_task(reader.ask(pull(1, suspend_ms=15_000), timeout_s=20))
        await until(lambda: broker.long_polling.count == 1)
        await client.send("T", b"new")
        assert (await waiting).code == 0


# --- Limits ---


async def test_more_than_may_be_held_are_answered_at_once(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, held_pulls_max=10) as broker,
        BrokerClient(broker.address) as client,
        BrokerClient(broker.address) as reader,
    ):
        await client.send("T", b"x")
        asked = [asyncio.create_task(reader.ask(pull(1, suspend_ms=10_000), timeout_s=20)) for _ in range(15)]
        await until(lambda: sum(task.done() for task in asked) == 5)
        assert broker.long_polling.count == 10
        assert {task.result().code for task in asked if task.done()} == {19}
        await client.send("T", b"new")
        results: list[PullResult] = await asyncio.gather(*asked)
        assert sorted(result.code for result in results) == [0] * 10 + [19] * 5


async def test_long_expressions_count_as_bytes_held(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, held_bytes_max=1 << 20) as broker,
        BrokerClient(broker.address) as client,
        wire(broker.address) as greedy,
    ):
        await client.send("T", b"x")
        request = pull(1, suspend_ms=10_000, subscription="a" * 200_000)
        await greedy.send(b"".join(frame(request, number) for number in range(20)))
        answers = [await greedy.answer() for _ in range(15)]
        assert {answer.code for answer in answers} == {19}
        assert broker.long_polling.count == 5
        assert broker.long_polling.held_bytes < 1 << 20


async def test_a_connection_that_ends_frees_what_it_held(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"x")
        async with wire(broker.address) as leaver:
            request = pull(1, suspend_ms=15_000)
            await leaver.send(b"".join(frame(request, number) for number in range(100)))
            await until(lambda: broker.long_polling.count == 100)
        await until(lambda: broker.long_polling.count == 0)
        assert broker.long_polling.held_bytes == 0
        assert not broker.long_polling._by_peer


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_thousand_connections_hold_a_pull_each(tmp_path: Path, loop: str) -> None:

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
            await client.send("T", b"x")
            readers = [BrokerClient(broker.address, f"reader@{number}") for number in range(1000)]
            asked = []
            for start in range(0, 1000, 100):
                for number, reader in enumerate(readers[start : start + 100], start):
                    request = pull(1, group=f"CG{number % 10}", suspend_ms=240_000)
                    asked.append(asyncio.create_task(reader.ask(request, timeout_s=240)))
                await until(lambda: broker.long_polling.count == len(asked))
            assert len(broker._server.peers) == 1001
            await client.send("T", b"for all")
            results: list[PullResult] = await asyncio.gather(*asked)
            assert {(result.code, result.reply.next_begin_offset) for result in results} == {(0, 2)}
            assert broker.long_polling.count == 0
            for reader in readers:
                reader.hang_up()
            await until(lambda: len(broker._server.peers) == 1)

    run_on(loop, scenario(), timeout_s=240)


# --- Difficult clients ---


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_slow_consumer_takes_little_memory_and_harms_nobody(tmp_path: Path, loop: str) -> None:
    """It asks for 100 MiB and reads nothing for a while; others do not notice."""

    async def scenario() -> None:
        count = 400
        async with (
            running_broker(tmp_path) as broker,
            BrokerClient(broker.address) as client,
            wire(broker.address) as slow,
        ):
            for _ in range(32):
                await client.send("T", b"x" * 8000)
            before = anonymous_bytes()
            sending = asyncio.create_task(
                slow.send(b"".join(frame(pull(0), number) for number in range(count)))
            )
            await until(lambda: any(not peer.is_writable for peer in broker._server.peers))
            [peer] = [peer for peer in broker._server.peers if not peer.is_writable]
            elapsed = []
            for _ in range(50):
                started = time.monotonic()
                await client.send("U", b"fine")
                assert len(await client.pull("T", queue_offset=31)) == 1
                elapsed.append(time.monotonic() - started)
            assert statistics.median(elapsed) < 1
            assert peer._transport is not None
            assert peer._transport.get_write_buffer_size() < 8 << 20
            assert anonymous_bytes() - before < 48 << 20
            for opaque in range(count):  # it reads at last: nothing was lost
                answer = await slow.answer()
                assert (answer.opaque, answer.code) == (opaque, 0)
                assert len(answer.body) > 250_000
            await sending

    run_on(loop, scenario())


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_consumer_that_never_reads_is_cut_off_when_messages_arrive(tmp_path: Path, loop: str) -> None:

    async def scenario() -> None:
        async with (
            running_broker(tmp_path, write_bytes_max=4 << 20) as broker,
            BrokerClient(broker.address) as client,
            wire(broker.address) as deaf,
        ):
            await client.send("T", b"x")
            request = pull(1, suspend_ms=30_000)
            await deaf.send(b"".join(frame(request, number) for number in range(200)))
            await until(lambda: broker.long_polling.count == 200)
            await client.send("T", b"x" * 200_000)  # 40 MiB for a client that reads none of it
            await until(lambda: len(broker._server.peers) == 1)
            assert (await client.send("T", b"x")).queue_offset == 2

    run_on(loop, scenario())


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_client_that_comes_and_goes_leaves_nothing_behind(tmp_path: Path, loop: str) -> None:

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker, BrokerClient(broker.address, "steady@1") as steady:
            await steady.send("T", b"x")
            await steady.heartbeat(consumer())

            async def flap(number: int) -> None:
                async with BrokerClient(broker.address, f"flapping@{number % 3}") as client:
                    await client.heartbeat(consumer(), producers=["PG"])
                    await client.tell(pull(1, suspend_ms=15_000))
                    if number % 2:
                        await client.send("T", b"x", 1)

            for start in range(0, 200, 10):
                await asyncio.gather(*(flap(number) for number in range(start, start + 10)))
            await until(lambda: len(broker._server.peers) == 1)
            assert broker.long_polling.count == 0
            assert broker.consumers.client_ids("CG") == ["steady@1"]
            assert not broker._server.tasks
            assert broker._server.bytes_in_flight == 0
            assert (await steady.send("T", b"y")).queue_offset == 1
            assert len(await steady.pull_all("T", 1)) == 100

    run_on(loop, scenario())


# --- From the store ---


async def test_sf_093_any_offset_gives_the_record_that_is_there(tmp_path: Path) -> None:
    files = {"commit_log_file_bytes": 32 << 10, "consume_queue_file_bytes": 20 * 30}
    async with (
        running_broker(tmp_path, store=files) as broker,
        BrokerClient(broker.address) as client,
    ):
        await asyncio.gather(*(client.send("T", b"%d" % number) for number in range(500)))
        bodies = [message.body for message in await client.pull_all("T")]
        for offset in (0, 1, 29, 30, 31, 250, 499):
            [message] = await client.pull("T", queue_offset=offset, max_messages=1)
            assert (message.queue_offset, message.body) == (offset, bodies[offset])
    async with running_broker(tmp_path, store=files) as broker, BrokerClient(broker.address) as client:
        assert [message.body for message in await client.pull_all("T")] == bodies


async def test_sf_123_files_are_deleted_under_a_lagging_consumer(tmp_path: Path) -> None:
    files = {"commit_log_file_bytes": 32 << 10, "consume_queue_file_bytes": 20 * 30}
    async with (
        running_broker(tmp_path, store=files) as broker,
        BrokerClient(broker.address) as client,
    ):
        await asyncio.gather(*(client.send("T", b"%d" % number) for number in range(500)))
        bodies = [message.body for message in await client.pull_all("T")]
        housekeeper = broker.store.housekeeper
        seen: list[bytes] = []
        at, read = 0, 30
        while at < 500:
            if at == read:
                for start in list(broker.store.log.files.starts)[:2]:
                    await asyncio.to_thread(housekeeper._delete_log_file, start)
                await asyncio.to_thread(housekeeper.clean_derived)
            result = await client.ask(pull(at))
            assert result.code in (0, 20, 21)
            assert result.reply.next_begin_offset > at
            if result.code == 0:
                seen += [bodies[offset] for offset in range(at, result.reply.next_begin_offset)]
            at = result.reply.next_begin_offset
        assert seen == bodies[:read] + bodies[500 - (len(seen) - read) :]
        assert 32 < len(seen) < 500
