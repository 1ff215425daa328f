"""Push consumers of a group against our own servers: whose a queue is, and how far it counts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.client.consumer.listeners import ConsumeResult
from skylark.client.consumer.offset_store import BrokerOffsetStore, OffsetTable
from skylark.client.received_message import ReceivedMessage
from skylark.protocol.bodies import ConsumerOffsetTable, MessageQueue, decode_body
from skylark.protocol.codes import RequestCode
from skylark.protocol.requests.offset import InvokeBrokerToGetConsumerStatus
from skylark.settings.client import MessageModel, PushConsumerSettings
from tests.support.broker import BrokerClient, running_broker, until
from tests.support.consumer import (
    ConsumerRig,
    bodies,
    consumer_rig,
    eventually,
    until_count,
    until_owned,
    until_retrying,
    until_shared,
    watch_calls,
)

Messages = Sequence[ReceivedMessage]
DEFAULTS = PushConsumerSettings()
QUEUE = MessageQueue("T", "broker-a", 0)


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


async def test_sf_007_one_request_circulates_for_each_queue(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        consumer = rig.consumer("G", "T", print)
        async with consumer:
            assert consumer._runtime is not None
            fetch_loop = consumer._runtime.fetch_loop
            assert fetch_loop.requests == []
            await until_owned(consumer, "T", count=4)
            await until_retrying(consumer)
            assert len(fetch_loop.requests) == 5
            requests = {request.process_queue: request for request in fetch_loop.requests}
            for queue, process_queue in consumer._runtime.queues.process_queues.items():
                request = requests[process_queue]
                assert (request.group, request.queue, request.next_offset) == ("G", queue, 0)


async def test_sf_008_members_and_queues_change(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        one, two = rig.consumer("G", "T", print), rig.consumer("G", "T", print)
        async with one:
            await until_owned(one, "T", count=4)
            async with two:
                await until_owned(one, "T", count=2)
                await until_owned(two, "T", count=2)
                await rig.topic("T", 8)
                await until_owned(one, "T", count=4)
                await until_owned(two, "T", count=4)
                mine = {queue for queue in one.queues() if queue.topic == "T"}
                theirs = {queue for queue in two.queues() if queue.topic == "T"}
                assert not mine & theirs
                assert {queue.queue_id for queue in mine | theirs} == set(range(8))
            await until_owned(one, "T", count=8)


async def test_sf_010_surplus_members_stay_idle(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        got: dict[int, list[ReceivedMessage]] = {number: [] for number in range(4)}
        members = [rig.consumer("G", "T", got[number].extend) for number in range(4)]
        for member in members:
            await member.start()

        def settled() -> bool:
            counts = [sum(queue.topic == "T" for queue in member.queues()) for member in members]
            return sorted(counts) == [0, 0, 1, 1]

        await eventually(settled)
        await rig.send("T", *numbered(1000))
        await eventually(lambda: sum(map(len, got.values())) >= 1000)
        assert settled()
        assert sorted(bool(messages) for messages in got.values()) == [False, False, True, True]
        for member in members:
            await member.stop()


async def test_sf_011_rounds_at_the_start_and_then_at_intervals(tmp_path: Path) -> None:
    assert (DEFAULTS.rebalance_interval_ms, DEFAULTS.rebalance_gap_ms) == (20_000, 1000)
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        consumer = rig.consumer("G", "T", print, client={"heartbeat_interval_ms": 30_000})
        async with consumer:
            assert consumer._runtime is not None
            rebalancer = consumer._runtime.rebalancer
            await eventually(lambda: rebalancer.rounds)
            await until_owned(consumer, "T", count=1)
            await until_retrying(consumer)
            rounds, started = rebalancer.rounds, time.monotonic()
            await eventually(lambda: rebalancer.rounds >= rounds + 3)
            assert time.monotonic() - started > 0.3  # three rounds of 200 ms, the first one begun


async def test_sf_012_031_sf_089_broadcasting(tmp_path: Path) -> None:
    assert DEFAULTS.model is MessageModel.CLUSTERING
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 8)
        got: list[tuple[int, ReceivedMessage]] = []

        def listener(number: int) -> Any:
            def listen(messages: Messages) -> ConsumeResult:
                got.extend((number, message) for message in messages)
                return ConsumeResult.LATER

            return listen

        members = [
            rig.consumer(
                "G", "T", listener(number), model=MessageModel.BROADCASTING, offset_directory=tmp_path,
                client={"instance_name": f"member{number}"},
            )
            for number in range(3)
        ]  # fmt: skip
        for member in members:
            await member.start()
            await until_owned(member, "T", count=8)
        await rig.send("T", *numbered(100))
        await eventually(lambda: len(got) == 300)
        assert Counter(number for number, _ in got) == {0: 100, 1: 100, 2: 100}
        files = {member.client_id: tmp_path / member.client_id / "G" / "offsets.json" for member in members}
        for member in members:
            await member.stop()
        for path in files.values():
            text = path.read_text()
            assert '{"brokerName":"broker-a","queueId":0,"topic":"T"}:13' in text
        assert rig.broker.topics.get("%RETRY%G") is None or rig.broker.store.max_offset("%RETRY%G", 0) == 0


async def test_sf_084_broadcasting_goes_on_where_its_file_says(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        broadcast: dict[str, Any] = {"model": MessageModel.BROADCASTING, "offset_directory": tmp_path}
        for start in (0, 50):
            await rig.send("T", *numbered(50))
            got: list[ReceivedMessage] = []
            async with rig.consumer("G", "T", got.extend, **broadcast) as consumer:
                await until_count(got, 50)
                assert consumer.client_id.endswith("@DEFAULT")
            assert sorted(message.queue_offset for message in got) == list(range(start, start + 50))


async def test_sf_084_the_order_of_a_start_is_in_the_debug_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "skylark.client.consumer")
    at_first_pull: list[str] = []

    def steps(text: str) -> list[str]:
        return re.findall(r"start group=G step=([a-z-]+)", text)

    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        consumer = rig.consumer("G", "T", print, model=MessageModel.BROADCASTING, offset_directory=tmp_path)
        async with consumer:
            assert consumer._runtime is not None
            session, call = consumer._runtime.session, consumer._runtime.session.call

            async def watched(address: str, request: Any, **options: Any) -> Any:
                if request.code == RequestCode.PULL_MESSAGE:
                    at_first_pull.append(caplog.text)
                return await call(address, request, **options)

            session.call = watched  # type: ignore[method-assign]
            await eventually(lambda: at_first_pull)
    expected = ["session", "offset-store", "fetcher", "rebalancer", "offsets-loaded", "heartbeat", "running"]
    assert steps(at_first_pull[0]) == expected
    assert "step=offset-store kind=LocalOffsetStore" in caplog.text
    assert "step=rebalancer model=BROADCASTING strategy=averagely" in caplog.text


async def test_sf_014_055_every_client_has_an_id_of_its_own(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        async with rig.consumer("G", "T", print) as one, rig.consumer("G", "T", print) as two:
            assert one.client_id != two.client_id
            for consumer in (one, two):
                assert re.fullmatch(r"[\d.]+@\d+#\d+", consumer.client_id)


async def test_sf_086_members_are_asked_of_any_broker(tmp_path: Path) -> None:
    """Both brokers know all members; with one of them gone rebalancing goes on."""
    async with consumer_rig(tmp_path) as rig, contextlib.AsyncExitStack() as stack:
        await rig.topic("T", 2)
        other = await stack.enter_async_context(
            running_broker(tmp_path / "second", name_servers=rig.name_server.address, name="broker-b")
        )
        async with BrokerClient(other.address) as client:
            await ConsumerRig(rig.name_server, other, client).topic("T", 2)
        async with rig.consumer("G", "T", print) as one, rig.consumer("G", "T", print) as two:
            await until_owned(one, "T", count=2)
            await until_owned(two, "T", count=2)

            def members(broker: Broker) -> list[str]:
                return sorted(client.client_id for client in broker.consumers.clients("G"))

            expected = sorted([one.client_id, two.client_id])
            await eventually(lambda: members(rig.broker) == members(other) == expected)
            await stack.aclose()
            async with rig.consumer("G", "T", print) as three:

                def owners() -> Counter[int]:
                    held = [queue for member in (one, two, three) for queue in member.queues()]
                    return Counter(q.queue_id for q in held if (q.topic, q.broker_name) == ("T", "broker-a"))

                await eventually(lambda: owners() == {0: 1, 1: 1} and members(rig.broker) != expected)


async def test_sf_087_091_three_queues_of_two_members(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 3)
        async with rig.consumer("G", "T", print) as one, rig.consumer("G", "T", print) as two:
            first, second = sorted((one, two), key=lambda consumer: consumer.client_id)
            await until_owned(first, "T", count=2)
            await until_owned(second, "T", count=1)
            await rig.topic("T", 4)
            await until_owned(second, "T", count=2)
            await until_owned(first, "T", count=2)


async def test_sf_088_each_group_gets_everything_once(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        got: dict[tuple[str, int], list[ReceivedMessage]] = {}
        members = []
        for group in ("G1", "G2"):
            for number in range(2):
                messages = got[group, number] = []
                members.append(rig.consumer(group, "T", messages.extend))
        for member in members:
            await member.start()
        for member in members:
            await until_owned(member, "T", count=2)
        await rig.send("T", *numbered(1000))
        for group in ("G1", "G2"):
            await eventually(lambda: len(got[group, 0]) + len(got[group, 1]) >= 1000)  # noqa: B023
            assert bodies(got[group, 0] + got[group, 1]) == numbered(1000)
        for member in members:
            await member.stop()


async def test_sf_097_a_topic_without_route_does_not_disturb_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("Good", 1)
        got: list[ReceivedMessage] = []
        consumer = rig.consumer("G", "Good", got.extend)
        consumer.subscribe("Unheard", "*", print)
        async with consumer:
            await rig.send("Good", b"x")
            await eventually(lambda: got)
            await eventually(lambda: "topic is subscribed but does not exist topic=Unheard" in caplog.text)
            warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert not [record for record in warned if "%RETRY%G" in record.getMessage()]
            await rig.topic("Unheard", 2)  # and it is consumed as soon as it exists
            await until_owned(consumer, "Unheard", count=2)


async def test_sf_098_a_strategy_that_raises_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = False

    def strategy(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if broken:
            raise ZeroDivisionError("no members today")
        return list(queues)

    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, strategy=strategy) as consumer:
            await until_owned(consumer, "T", count=2)
            broken = True
            await eventually(lambda: "no members today" in caplog.text)
            await rig.send("T", *numbered(10))
            await eventually(lambda: len(got) == 10)
            assert len([queue for queue in consumer.queues() if queue.topic == "T"]) == 2


async def test_sf_099_a_queue_listener_hears_of_every_change(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        heard: list[tuple[str, int, int]] = []
        consumer = rig.consumer("G", "T", print)

        @consumer.on_queues_changed
        def listener(topic: str, every: Sequence[MessageQueue], mine: Sequence[MessageQueue]) -> None:
            heard.append((topic, len(every), len(mine)))
            raise RuntimeError("a listener that raises disturbs nothing")

        async with consumer:
            await eventually(lambda: ("T", 4, 4) in heard)
            await until_retrying(consumer)
            async with rig.consumer("G", "T", print):
                await eventually(lambda: ("T", 4, 2) in heard)
                assert consumer._runtime is not None
                rounds = consumer._runtime.rebalancer.rounds
                await eventually(
                    lambda: consumer._runtime is not None and consumer._runtime.rebalancer.rounds > rounds + 2
                )
                assert heard.count(("T", 4, 2)) == heard.count(("T", 4, 4)) == 1


async def test_sf_096_quiet_rounds_replace_nothing(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 8)
        members = [rig.consumer("G", "T", print) for _ in range(4)]
        for member in members:
            await member.start()
        await until_shared(members, "T", 8)
        parts = [member._runtime for member in members]
        before = [dict(part.queues.process_queues) for part in parts if part]
        rounds = [part.rebalancer.rounds for part in parts if part]
        for part, count in zip(parts, rounds, strict=True):
            assert part is not None
            rebalancer = part.rebalancer
            await eventually(lambda: rebalancer.rounds >= count + 2)  # noqa: B023
        for part, held in zip(parts, before, strict=True):
            assert part is not None
            now = part.queues.process_queues
            assert all(now[queue] is held[queue] for queue in held if queue.topic == "T")
        for member in members:
            await member.stop()


async def test_sf_101_a_queue_that_is_not_pulled_is_taken_anew(tmp_path: Path) -> None:
    assert DEFAULTS.pull_idle_max_ms == 120_000
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend) as consumer:
            await until_owned(consumer, "T", count=1)
            assert consumer._runtime is not None
            held = consumer._runtime.queues.process_queues
            queue = MessageQueue("T", "broker-a", 0)
            before = held[queue]
            consumer._runtime.fetch_loop.end(before)  # its pulling has died, and nobody knows
            before.last_pull_at -= 121
            await eventually(lambda: held.get(queue) not in (None, before))
            assert before.dropped
            await rig.send("T", b"x")
            await eventually(lambda: got)


async def test_a_hundred_topics_in_one_consumer(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        topics = [f"T{number:03}" for number in range(100)]
        for topic in topics:
            await rig.topic(topic, 1)
            await rig.send(topic, topic.encode())
        got: list[ReceivedMessage] = []
        consumer = rig.consumer("G")
        consumer.listen(got.extend)
        for topic in topics:
            consumer.subscribe(topic)
        async with consumer:
            await eventually(lambda: len(got) == 100, timeout_s=60)
        assert bodies(got) == [topic.encode() for topic in topics]


async def test_twenty_four_consumers_of_twenty_four_queues(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 24)
        got: list[ReceivedMessage] = []
        members = [rig.consumer("G", "T", got.extend) for _ in range(24)]
        await asyncio.gather(*(member.start() for member in members))
        for member in members:
            await until_owned(member, "T", count=1)
        await rig.send("T", *numbered(240))
        await eventually(lambda: len(got) >= 240)
        assert bodies(got) == numbered(240)
        await asyncio.gather(*(member.stop() for member in members))


# --- Offsets ---


async def test_sf_041_sf_084_an_offset_store_of_one_s_own(tmp_path: Path) -> None:
    class Mine:
        """Keeps offsets in a dictionary."""

        def __init__(self) -> None:
            self.table = OffsetTable()
            self.loaded = 0
            self.kept: dict[MessageQueue, int] = {}

        async def load(self) -> None:
            self.loaded += 1

        async def read(self, queue: MessageQueue) -> int | None:
            assert self.loaded
            return self.kept.get(queue)

        async def persist(self, queue: MessageQueue) -> None:
            queue_offset = self.table.get(queue)
            if queue_offset is not None:
                self.kept[queue] = queue_offset

        async def persist_all(self, queues: Any) -> None:
            self.kept |= self.table.keep(queues)

    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(5))
        mine = Mine()
        for count in (5, 10):
            got: list[ReceivedMessage] = []
            async with rig.consumer("G", "T", got.extend, offset_store=mine):
                await until_count(got, 5)
            assert mine.kept[MessageQueue("T", "broker-a", 0)] == count
            await rig.send("T", *numbered(5))
        consumer = rig.consumer("G2", "T", print)
        async with consumer:
            assert consumer._runtime is not None
            assert isinstance(consumer._runtime.offsets, BrokerOffsetStore)


async def test_sf_043_the_table_in_memory_is_told(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, offset_persist_interval_ms=60_000) as consumer:
            await rig.send("T", *numbered(7))
            await eventually(lambda: len(got) == 7)
            queue = MessageQueue("T", "broker-a", 0)

            async def told() -> bool:
                status = await rig.client.ask(InvokeBrokerToGetConsumerStatus("T", "G", ""))
                return status.consumer_table.get(consumer.client_id) == {queue: 7}

            await until(told)


async def test_sf_045_094_a_restart_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(50))
        slow: dict[str, Any] = {"offset_persist_interval_ms": 60_000, "offset_persist_first_ms": 60_000}
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, **slow):
            await eventually(lambda: len(got) == 50)
        assert await rig.committed("G", "T") == 50
        await rig.send("T", b"fifty-first")
        got.clear()
        async with rig.consumer("G", "T", got.extend, **slow):
            await eventually(lambda: got)
        assert bodies(got) == [b"fifty-first"]


async def test_sf_094_fifty_of_a_hundred_and_the_next_is_the_fifty_first(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(100))
        enough, seen = threading.Event(), []

        def fifty(messages: Messages) -> None:
            if messages[0].queue_offset >= 50:
                enough.wait(60)  # taken up, and never done
                raise RuntimeError("stopped")
            seen.append(messages[0].queue_offset)

        try:
            async with rig.consumer("G", "T", fifty, stop_wait_ms=1):
                await eventually(lambda: len(seen) == 50)
            assert await rig.committed("G", "T") == 50
        finally:
            enough.set()
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, threads_max=1):
            await eventually(lambda: len(got) == 50)
        assert [message.queue_offset for message in got] == list(range(50, 100))


async def test_sf_033_047_progress_is_kept_regularly_whatever_the_result(tmp_path: Path) -> None:
    """The next pull leaves before the listener is done, and is held for minutes: only the timer tells."""
    assert (DEFAULTS.offset_persist_interval_ms, DEFAULTS.offset_persist_first_ms) == (5000, 10_000)
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)

        async def listener(messages: Messages) -> ConsumeResult | None:
            if messages[0].reconsume_times:
                return None
            [request] = [each for each in loop.requests if each.queue.topic == "T"]
            await eventually(lambda: request.next_offset == messages[0].queue_offset + 1)
            await asyncio.sleep(0.1)
            return ConsumeResult.LATER

        minutes: dict[str, Any] = {"hold_ms": 120_000, "pull_timeout_ms": 180_000}
        async with rig.consumer("G", "T", listener, **minutes) as consumer:
            loop = consumer._running().fetch_loop
            await until_owned(consumer, "T", count=1)
            for sent in (1, 2):
                await rig.send("T", b"x")
                await rig.until_committed("G", "T", sent, timeout_s=60)
                assert consumer.running_info().mq_table[QUEUE].cached_msg_count == 0


async def test_sf_047_the_broker_s_file_changes_at_the_intervals(tmp_path: Path) -> None:
    """Under load, with all messages pulled before: what the file says changes with the timer, not oftener."""
    first_ms, interval_ms = 400, 200
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.fill("T", 0, *numbered(1000))
        settings: dict[str, Any] = {
            "offset_persist_first_ms": first_ms, "offset_persist_interval_ms": interval_ms,
            "hold_ms": 120_000, "pull_timeout_ms": 180_000, "threads_max": 1,
        }  # fmt: skip
        path = rig.broker.live.current.config_directory / "consumerOffset.json"

        async def listener(messages: Messages) -> None:
            [request] = [each for each in loop.requests if each.queue.topic == "T"]
            await eventually(lambda: request.next_offset == 1000)
            await asyncio.sleep(0.005)

        def written() -> int:
            table = decode_body(path.read_bytes(), ConsumerOffsetTable).offset_table if path.exists() else {}
            return table.get("T@G", {}).get(0, 0)

        consumer = rig.consumer("G", "T", listener, **settings)
        begun = time.monotonic()
        seen: list[tuple[float, int]] = []
        async with consumer:
            loop = consumer._running().fetch_loop

            def changes() -> bool:
                at, known = time.monotonic(), written()
                if known != (seen[-1][1] if seen else 0):
                    seen.append((at, known))
                return len(seen) == 6

            await eventually(changes)
        assert seen[0][0] - begun >= first_ms / 1000
        assert seen[-1][0] - seen[0][0] >= 4 * interval_ms / 1000
        assert sorted({known for _, known in seen}) == [known for _, known in seen]


async def test_sf_044_sf_100_a_queue_that_moves_takes_its_offset_along(tmp_path: Path) -> None:
    """Neither timer nor pulls commit here. The new owner takes the queue only when the old one has let go."""
    slow: dict[str, Any] = {
        "offset_persist_interval_ms": 600_000, "offset_persist_first_ms": 600_000, "hold_ms": 120_000,
        "pull_timeout_ms": 180_000,
    }  # fmt: skip
    first: list[ReceivedMessage] = []
    second: list[ReceivedMessage] = []
    finish, may_take = asyncio.Event(), False
    moved = MessageQueue("T", "broker-a", 1)

    async def listener(messages: Messages) -> None:
        await finish.wait()
        first.extend(messages)

    def strategy(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        return [queue for queue in queues if may_take and queue == moved]

    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        for queue_id in (0, 1):
            await rig.commit("G", "T", 0, queue_id)
        await rig.send("T", *numbered(20))
        one = rig.consumer("G", "T", listener, client={"instance_name": "one"}, **slow)
        two = rig.consumer(
            "G", "T", second.extend, client={"instance_name": "two"}, strategy=strategy, **slow
        )
        async with one:
            loop, held = one._running().fetch_loop, one._running().queues.process_queues
            await eventually(
                lambda: [each.next_offset for each in loop.requests if each.queue.topic == "T"] == [10, 10]
            )
            await asyncio.sleep(0.1)  # the next pulls have left, without offsets
            finish.set()
            await until_count(first, 20)
            assert await rig.committed("G", "T", moved.queue_id) == 0
            async with two:
                await eventually(lambda: moved not in held)
                assert await rig.committed("G", "T", moved.queue_id) == 10
                assert one._running().offsets.table.get(moved) is None
                may_take = True
                two.wake_rebalancer()
                await until_owned(two, "T", count=1)
                await rig.send("T", b"new", queue_id=moved.queue_id)
                await until_count(second, 1)
        assert [(message.queue, message.queue_offset) for message in second] == [(moved, 10)]


async def test_sf_015_sf_025_sf_028_results_for_a_lost_queue_do_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While a slow listener has a message of it, a queue goes to another member; more of it waits there."""
    moved = MessageQueue("T", "broker-a", 1)
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        release = threading.Event()
        first: list[ReceivedMessage] = []
        second: list[ReceivedMessage] = []

        def slow(messages: Messages) -> None:
            first.extend(messages)
            release.wait(60)

        # By their names it is known who gets which queue. Short holds: each would be followed by a pull.
        one = rig.consumer("G", "T", slow, threads_max=1, client={"instance_name": "one"}, hold_ms=20)
        two = rig.consumer("G", "T", second.extend, client={"instance_name": "two"})
        async with one:
            await until_owned(one, "T", count=2)
            pulls = watch_calls(one, RequestCode.PULL_MESSAGE)
            await rig.send("T", *numbered(3), queue_id=1)
            await eventually(lambda: first)
            await rig.send("T", *numbered(3), queue_id=0)
            async with two:
                await until_owned(one, "T", count=1)
                await until_owned(two, "T", count=1)
                assert moved in two.queues()
                await eventually(lambda: moved not in one._running().queues.process_queues)
                already = len(pulls)
                await eventually(lambda: len(pulls) > already + 10)
                assert {(call.request.topic, call.request.queue_id) for call in pulls[already:]} <= {
                    ("T", 0), ("%RETRY%G", 0),
                }  # fmt: skip
                await eventually(lambda: len(second) == 3)
                await rig.until_committed("G", "T", 3, queue_id=1)
                release.set()
                await eventually(lambda: f"queue was released, result ignored queue={moved}" in caplog.text)
                await rig.until_committed("G", "T", 3, queue_id=0)
                assert one._runtime is not None
                assert one._runtime.offsets.table.get(moved) is None
                assert await rig.committed("G", "T", 1) == 3
        assert sorted(message.queue_offset for message in second) == [0, 1, 2]
        # Those of the lost queue that waited behind the slow call were never shown to the first listener.
        assert [message.queue_offset for message in first if message.queue == moved] == [0]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "skylark.client")
