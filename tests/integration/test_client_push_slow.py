"""The push consumer's intervals at full length. Run by `make test-nightly`."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.received_message import ReceivedMessage
from skylark.protocol.bodies import ConsumerOffsetTable, MessageQueue, decode_body
from skylark.settings import DELAY_LEVELS, BrokerSettings
from skylark.settings.client import ConsumeFrom, PushConsumerSettings
from tests.support.broker import until
from tests.support.consumer import consumer_rig, eventually, until_owned, until_shared
from tests.support.fake_broker import BROKER, fake_broker
from tests.support.member_process import DEFAULT_MEMBER, MemberProcess

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]
SLACK_S = 3.0
"""What a loaded machine may add."""


def whole(group: str, namesrv: str, **changes: object) -> AsyncPushConsumer:
    settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, **changes)  # type: ignore[arg-type]
    return AsyncPushConsumer(group, namesrv=namesrv, settings=settings)


async def test_sf_006_011_047_rounds_holds_and_commits_at_full_length() -> None:
    """Holds of 15 s, rounds every 20 s, the first commit after 10 s and then one every 5 s."""
    async with fake_broker(queues={"T": 1, "%RETRY%G": 1}) as fake:
        times: dict[int, list[float]] = defaultdict(list)
        handle = fake.handle

        def timed(peer: object, command: object) -> object:
            code = getattr(command, "code", 0)
            topic = getattr(command, "fields", {}).get("topic", "T")
            if topic == "T":
                times[code].append(time.monotonic())
            return handle(peer, command)  # type: ignore[arg-type]

        fake.handle = timed  # type: ignore[method-assign,assignment]
        started = time.monotonic()
        consumer = whole("G", fake.address)
        consumer.subscribe("T", "*", print)
        async with consumer:
            assert consumer._runtime is not None
            await until_owned(consumer, "T")
            consumer._runtime.offsets.table.update(MessageQueue("T", BROKER, 0), 0, increase_only=True)
            await asyncio.sleep(65)
        assert (
            0.4 <= times[11][0] - started <= 2 + SLACK_S
        )  # the first pull waits 500 ms after the first round
        holds = [later - earlier for earlier, later in zip(times[11], times[11][1:], strict=False)]
        assert len(holds) >= 3
        assert all(14.5 <= hold <= 16 + SLACK_S for hold in holds)
        commits = [moment - started for moment in times[15]]
        assert 9.5 <= commits[0] <= 11 + SLACK_S
        # A round asks once for each of the two topics; those of the start are close together.
        rounds = [moment - started for moment in times[38]]
        assert rounds[0] < 2
        late = [moment for moment in rounds if moment > 15]
        begun = [moment for number, moment in enumerate(late) if not number or moment - late[number - 1] > 1]
        assert len(begun) >= 2
        assert all(19 <= later - earlier <= 21 for earlier, later in pairwise(begun))


async def test_sf_047_the_broker_s_file_changes_every_five_seconds_under_load(tmp_path: Path) -> None:
    """All messages are pulled at the start: afterwards only the timer tells the broker how far it is."""
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.fill("T", 0, *(b"%d" % number for number in range(1000)))
        path = rig.broker.live.current.config_directory / "consumerOffset.json"
        all_pulled = asyncio.Event()  # a pull after the first finished message would tell the broker, too

        async def listener(messages: Sequence[ReceivedMessage]) -> None:
            await all_pulled.wait()
            await asyncio.sleep(0.05)

        def written() -> int:
            table = decode_body(path.read_bytes(), ConsumerOffsetTable).offset_table if path.exists() else {}
            return table.get("T@G", {}).get(0, 0)

        consumer = whole(
            "G", rig.name_server.address, hold_ms=120_000, pull_timeout_ms=180_000, threads_max=1
        )
        consumer.subscribe("T", "*", listener)
        started = time.monotonic()
        seen: list[tuple[float, int]] = []
        async with consumer:
            loop = consumer._running().fetch_loop
            await eventually(lambda: [r.next_offset for r in loop.requests if r.queue.topic == "T"] == [1000])
            pulled, known = time.monotonic(), written()
            all_pulled.set()

            def changes() -> bool:
                now = written()
                if now != (seen[-1][1] if seen else known):
                    seen.append((time.monotonic(), now))
                return len(seen) == 6

            await eventually(changes, timeout_s=60)
        assert pulled - started < 9  # else a change before the first commit would not be seen
        assert 9.5 <= seen[0][0] - started <= 11 + SLACK_S
        gaps = [later - earlier for (earlier, _), (later, _) in pairwise(seen)]
        assert all(4.5 <= gap <= 5.5 for gap in gaps), gaps


async def test_sf_035_sf_038_retries_at_full_length(tmp_path: Path) -> None:
    """Three failures: the waits between the deliveries are 10 s, 30 s and 60 s."""
    async with consumer_rig(tmp_path, store={"delay_levels": DELAY_LEVELS}) as rig:
        await rig.topic("T", 1)
        seen: list[tuple[float, int]] = []

        def listener(messages: Sequence[ReceivedMessage]) -> None:
            seen.append((time.monotonic(), messages[0].reconsume_times))
            if messages[0].reconsume_times < 3:
                raise ValueError("not yet")

        consumer = whole("G", rig.name_server.address)
        consumer.subscribe("T", "*", listener)
        async with consumer:
            await until_owned(consumer, "T", "%RETRY%G")
            await rig.send("T", b"x")
            await until(lambda: len(seen) == 4, timeout_s=180)
        assert [times for _, times in seen] == [0, 1, 2, 3]
        waits = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(seen)]
        for wait, expected in zip(waits, (10, 30, 60), strict=True):
            assert expected - 0.5 <= wait <= expected + 1 + SLACK_S


async def test_sf_008_095_members_and_queues_change_at_full_length(tmp_path: Path) -> None:
    """With the defaults: members that come and go are heard of within seconds, new queues within 30 s."""

    def owned(consumer: AsyncPushConsumer) -> set[int]:
        return {queue.queue_id for queue in consumer.queues() if queue.topic == "T"}

    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        one, two, three = (whole("G", rig.name_server.address) for _ in range(3))
        for consumer in (one, two, three):
            consumer.subscribe("T", "*", lambda messages: None)
        async with one:
            await until_owned(one, "T", count=4)
            async with two:
                await until_shared([one, two], "T", 4, timeout_s=25)
                await rig.topic("T", 8)
                await until_shared([one, two], "T", 8, timeout_s=30)
                assert (owned(one) | owned(two), owned(one) & owned(two)) == (set(range(8)), set())
                async with three:
                    await until_shared([one, two, three], "T", 8, timeout_s=25)
                await until_shared([one, two], "T", 8, timeout_s=25)
            member = MemberProcess(tmp_path, "member", rig.name_server.address, DEFAULT_MEMBER)
            async with member:
                await until_owned(one, "T", count=4)
                killed = time.monotonic()
                assert await member.end(signal.SIGKILL) == -signal.SIGKILL
                await until_owned(one, "T", count=8)
                assert time.monotonic() - killed < 10  # the lost connection tells, not the silence


async def test_sf_095_a_member_that_falls_silent_is_replaced_at_full_length(tmp_path: Path) -> None:
    """Frozen, it keeps its connection: the broker misses its heartbeats after two minutes."""
    scan: dict[str, Any] = {"client_scan_interval_ms": BrokerSettings().client_scan_interval_ms}
    async with consumer_rig(tmp_path, **scan) as rig:
        await rig.topic("T", 4)
        one = whole("G", rig.name_server.address)
        one.subscribe("T", "*", lambda messages: None)
        member = MemberProcess(tmp_path, "member", rig.name_server.address, DEFAULT_MEMBER)
        async with one:
            await until_owned(one, "T", count=4)
            async with member:
                await until_owned(one, "T", count=2)
                assert member.process is not None
                member.process.send_signal(signal.SIGSTOP)
                frozen = time.monotonic()
                try:
                    await eventually(
                        lambda: len([q for q in one.queues() if q.topic == "T"]) == 4, timeout_s=150
                    )
                finally:
                    member.process.send_signal(signal.SIGCONT)
                assert time.monotonic() - frozen > 60
