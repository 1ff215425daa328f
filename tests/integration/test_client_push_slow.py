"""The push consumer's intervals at full length, in one run of two minutes. Run by `make test-nightly`."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.received_message import ReceivedMessage
from skylark.protocol.bodies import MessageQueue
from skylark.settings import DELAY_LEVELS
from skylark.settings.client import ConsumeFrom, PushConsumerSettings
from tests.support.broker import until
from tests.support.consumer import consumer_rig, eventually, until_owned
from tests.support.fake_broker import BROKER, fake_broker

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
        gaps = [later - earlier for earlier, later in itertools.pairwise(commits)]
        assert all(gap <= 5.5 + SLACK_S for gap in gaps)
        # A round asks once for each of the two topics; those of the start are close together.
        rounds = [moment - started for moment in times[38]]
        assert rounds[0] < 2 + SLACK_S
        late = [moment for moment in rounds if moment > 15]
        begun = [moment for number, moment in enumerate(late) if not number or moment - late[number - 1] > 1]
        assert len(begun) >= 2
        assert all(19 <= later - earlier <= 21 + SLACK_S for earlier, later in pairwise(begun))


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


async def test_sf_008_095_members_change_at_full_length(tmp_path: Path) -> None:
    """With the defaults, members that come and go are heard of within seconds, not at the next round."""
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        one, two = (whole("G", rig.name_server.address) for _ in range(2))
        for consumer in (one, two):
            consumer.subscribe("T", "*", lambda messages: None)
        async with one:
            await until_owned(one, "T", count=4)
            started = time.monotonic()
            async with two:
                await eventually(lambda: sum(queue.topic == "T" for queue in one.queues()) == 2)
                await until_owned(two, "T", count=2)
                assert time.monotonic() - started < 5 + SLACK_S
                started = time.monotonic()
            await until_owned(one, "T", count=4)
            assert time.monotonic() - started < 5 + SLACK_S
