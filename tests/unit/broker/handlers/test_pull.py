"""The pull path without sockets: every check and status, holding and waking, cold data, failures."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from skylark.broker.clients import ConnectedClient as Member
from skylark.broker.long_polling import HeldPull
from skylark.model.message import StoredMessage
from skylark.model.record import decode_all
from skylark.protocol.bodies import PERM_WRITE, ConsumerData, SubscriptionGroupConfig, TopicConfig
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import ONEWAY_FLAG, RemotingCommand, TypedCommand
from skylark.protocol.requests.pull import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    LitePullMessage,
    PullMessage,
)
from skylark.protocol.requests.send import SendMessageV2
from skylark.remoting.server import Peer
from skylark.settings.store import FlushMode
from skylark.store.queue_entry import ENTRY
from skylark.store.tail_reader import JOINER_ENTRIES_MIN
from tests.support.broker import consumer, subscription, until
from tests.support.simulated_disk import Fault, Kind, SimulatedDisk
from tests.unit.broker.handlers.rig import Client, Rig, Wire, rigged

FOUND, NOT_FOUND, RETRY, MOVED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
SEEN = (
    "groupSysFlag", "maxOffset", "minOffset", "nextBeginOffset", "suggestWhichBrokerId", "topicSysFlag",
)  # fmt: skip
HELD = PULL_SUBSCRIPTION | PULL_SUSPEND
LONG_MS = 15_000
LARGE_FILES = {
    "commit_log_file_bytes": 16 << 20,
    "consume_queue_file_bytes": 20 * 1000,
    "message_bytes_max": 1 << 20,
}
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class PullRig(Rig):
    """A rig whose held pulls are answered, and that knows its disk."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**changes)
        self.path = self.broker.pull_path
        self.broker.store.on_arrival = self.broker.long_polling.arrived
        disk = self.broker.store._disk
        assert isinstance(disk, SimulatedDisk)
        self.disk = disk

    def cool_down(self) -> None:
        """Let all that was written so far have left the memory."""
        self.broker.store.reader.hot.written_from = self.broker.store.appended_offset
        self.disk.resident = False

    async def pull(self, *args: Any, client: Client | None = None, **fields: Any) -> list[RemotingCommand]:
        client = client or self.client
        self.path.pull(client.peer, [command(*args, **fields)])
        return await client.taken()

    async def answer(self, *args: Any, **fields: Any) -> RemotingCommand:
        [only] = await self.pull(*args, **fields)
        return only

    async def answers_later(self, count: int = 1) -> list[RemotingCommand]:
        """Return what is written in a while."""
        received: list[RemotingCommand] = []
        async with asyncio.timeout(60):
            while len(received) < count:
                await asyncio.sleep(0.001)
                received += self.client.wire.take()
        return received

    async def answer_later(self) -> RemotingCommand:
        [only] = await self.answers_later()
        return only


@pytest.fixture
async def rig() -> AsyncIterator[PullRig]:
    made = PullRig(store={"commit_log_file_bytes": 1 << 20, "consume_queue_file_bytes": 20 * 2000})
    yield made
    await made.broker.tasks.close()
    made.close()


def command(
    queue_offset: int = 0,
    topic: str = "T",
    *,
    oneway: bool = False,
    kind: type[PullMessage] = PullMessage,
    opaque: int = 9,
    **fields: Any,
) -> TypedCommand[PullMessage]:
    values = {
        "consumer_group": "CG",
        "queue_id": 0,
        "max_msg_nums": 32,
        "sys_flag": PULL_SUBSCRIPTION,
        "commit_offset": 0,
        "suspend_timeout_ms": LONG_MS,
        "sub_version": 0,
        "subscription": "*",
        **fields,
    }
    return TypedCommand(
        code=kind.code,
        opaque=opaque,
        version=479,
        flag=ONEWAY_FLAG if oneway else 0,
        request=kind(topic=topic, queue_offset=queue_offset, **values),
    )


def outcome(reply: RemotingCommand) -> tuple[int, str, int]:
    """Code, status and where to go on."""
    assert tuple(sorted(reply.fields)) == SEEN
    return reply.code, reply.remark or "", int(reply.fields["nextBeginOffset"])


def bodies(reply: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_all(reply.body)]


def join(rig: Rig, data: ConsumerData) -> None:
    """Let the client be a member of a group."""
    member = Member(rig.client.peer, "c1", "JAVA", 479)
    rig.broker.consumers.register(member, data, notify=False, now=rig.clock.monotonic())


def put_all(rig: Rig, count: int, **members: Any) -> None:
    for number in range(count):
        rig.put("T", body=b"%d" % number, **members)


# --- Reading ---


async def test_sf_093_records_from_the_start_and_from_the_middle(rig: PullRig) -> None:
    put_all(rig, 10)
    reply = await rig.answer(0)
    assert outcome(reply) == (FOUND, "FOUND", 10)
    assert bodies(reply) == [b"%d" % number for number in range(10)]
    assert (reply.opaque, reply.fields["minOffset"], reply.fields["maxOffset"]) == (9, "0", "10")
    reply = await rig.answer(6, max_msg_nums=2)
    assert outcome(reply) == (FOUND, "FOUND", 8)
    messages: list[StoredMessage] = list(decode_all(reply.body))
    assert [(message.queue_offset, message.body) for message in messages] == [(6, b"6"), (7, b"7")]


async def test_sf_119_a_queue_that_was_never_used(rig: PullRig) -> None:
    rig.broker.topics.ensure_topic("T", 4, now_ms=0)
    assert ("T", 3) not in rig.broker.store.queues
    assert outcome(await rig.answer(0, queue_id=3)) == (NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0)
    assert ("T", 3) in rig.broker.store.queues


@pytest.mark.parametrize(
    ("queue_offset", "expected"),
    [
        (-5, (MOVED, "OFFSET_TOO_SMALL", 0)),
        (-(1 << 63), (MOVED, "OFFSET_TOO_SMALL", 0)),
        (0, (FOUND, "FOUND", 5)),
        (4, (FOUND, "FOUND", 5)),
        (5, (NOT_FOUND, "OFFSET_OVERFLOW_ONE", 5)),
        (6, (MOVED, "OFFSET_OVERFLOW_BADLY", 5)),
        ((1 << 63) - 1, (MOVED, "OFFSET_OVERFLOW_BADLY", 5)),
    ],
)
async def test_sf_120_offsets_are_corrected(
    rig: PullRig, queue_offset: int, expected: tuple[int, str, int]
) -> None:
    put_all(rig, 5)
    assert outcome(await rig.answer(queue_offset)) == expected


async def test_sf_120_an_empty_queue_at_another_offset(rig: PullRig) -> None:
    rig.broker.topics.ensure_topic("T", 4, now_ms=0)
    assert outcome(await rig.answer(7)) == (MOVED, "NO_MESSAGE_IN_QUEUE", 0)


async def test_sf_121_a_filter_that_matches_nothing_looks_at_800_entries(rig: PullRig) -> None:
    put_all(rig, 1000, tags="a")
    assert outcome(await rig.answer(0, subscription="b")) == (RETRY, "NO_MATCHED_MESSAGE", 800)
    assert outcome(await rig.answer(800, subscription="b")) == (RETRY, "NO_MATCHED_MESSAGE", 1000)
    assert outcome(await rig.answer(0, subscription="b", max_msg_nums=900))[2] == 900


async def test_only_matching_tags_come(rig: PullRig) -> None:
    for number, tag in enumerate("abcabc"):
        rig.put("T", body=b"%d" % number, tags=tag)
    rig.put("T", body=b"untagged")
    reply = await rig.answer(0, subscription="a || c")
    assert bodies(reply) == [b"0", b"2", b"3", b"5"]
    assert outcome(reply)[2] == 7
    assert len(bodies(await rig.answer(0, subscription="*"))) == 7
    assert len(bodies(await rig.answer(0, subscription=None))) == 7


async def test_sf_123_the_file_under_a_lagging_consumer_is_deleted() -> None:
    rig = PullRig()  # files of 4 KiB
    try:
        put_all(rig, 100)
        log = rig.broker.store.log
        assert len(log.files.starts) == 3
        rig.broker.store.housekeeper._delete_log_file(0)
        code, _, next_offset = outcome(await rig.answer(0))
        assert code == RETRY
        assert next_offset > 0
        rig.broker.store.housekeeper.clean_derived()
        code, status, next_offset = outcome(await rig.answer(0))
        assert (code, status) == (MOVED, "OFFSET_TOO_SMALL")
        reply = await rig.answer(next_offset)
        assert bodies(reply)[0] == b"%d" % next_offset
    finally:
        rig.close()


async def test_sf_124_at_most_32_messages_or_256_kib_from_memory() -> None:
    with rigged(store=LARGE_FILES) as plain:
        path = plain.broker.pull_path
        for _ in range(40):
            plain.put("Small")
        for _ in range(8):
            plain.put("Large", body=b"x" * 60_000)

        async def count(topic: str, wanted: int) -> int:
            path.pull(plain.client.peer, [command(topic=topic, max_msg_nums=wanted)])
            [reply] = await plain.client.taken()
            return len(bodies(reply))

        assert await count("Small", (1 << 31) - 1) == 32
        assert await count("Small", 31) == 31
        assert await count("Small", 0) == 1
        assert await count("Small", -(1 << 31)) == 1
        assert await count("Large", 32) == 4
        # What is further back than the share of memory is read from disk, and less of it at a time.
        plain.broker.store.reader.hot.memory_bytes = 0
        assert await count("Small", 32) == 8
        assert await count("Large", 32) == 1


async def test_a_message_larger_than_the_limit_comes_alone() -> None:
    with rigged(store=LARGE_FILES) as plain:
        path = plain.broker.pull_path
        for _ in range(2):
            plain.put("Large", body=b"x" * 500_000)
        path.pull(plain.client.peer, [command(topic="Large")])
        [reply] = await plain.client.taken()
        assert len(bodies(reply)) == 1


async def test_bulk_pulls_bring_units_to_who_asks_for_them(rig: PullRig) -> None:
    for number in range(100):
        rig.put("T", number % 2, body=b"%d" % number)
    plain = command(3, max_msg_nums=2048, bulk_bytes=1 << 20)
    united = command(3, max_msg_nums=2048, bulk_bytes=1 << 20, bulk_units=True)
    results = []
    for each in (plain, united):
        rig.path.pull(rig.client.peer, [each])
        [reply] = await rig.client.taken()
        results.append(each.request.result(reply))
    assert (bytes(results[0].records), results[0].units) == (bytes(results[1].records), b"")
    assert [message.queue_offset for message in decode_all(results[1].records)] == list(range(3, 50))
    sizes = [size for _, size, _ in ENTRY.iter_unpack(results[1].units)]
    assert (results[1].reply.bulk_units, len(sizes), sum(sizes)) == (47, 47, len(results[1].records))
    assert rig.broker.stats.gets.count == 2 * 47


async def test_only_bulk_pulls_of_many_messages_load_arrow(
    rig: PullRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = threading.Event()
    monkeypatch.setattr(rig.path, "_load_joiner", loaded.set)
    rig.put("T")
    rig.path.pull(rig.client.peer, [command(0, max_msg_nums=2048)])
    rig.path.pull(rig.client.peer, [command(0, max_msg_nums=JOINER_ENTRIES_MIN - 1, bulk_bytes=1 << 20)])
    assert rig.path._loading_joiner is None
    rig.path.pull(rig.client.peer, [command(0, max_msg_nums=JOINER_ENTRIES_MIN, bulk_bytes=1 << 20)])
    assert loaded.wait(30)
    await rig.client.taken()


def test_arrow_joins_the_records_of_bulk_pulls(rig: PullRig) -> None:
    pytest.importorskip("pyarrow")
    rig.path._load_joiner()
    assert rig.broker.store.reader.tail.joiner is not None


@pytest.mark.parametrize(
    "fields",
    [{}, {"bulk_bytes": 1 << 20, "subscription": "TagA"}, {"bulk_bytes": 1 << 20, "queue_offset": 9}],
)
async def test_units_come_with_bulk_pulls_of_all_messages_only(rig: PullRig, fields: dict[str, Any]) -> None:
    put_all(rig, 5, tags="TagA")
    reply = await rig.answer(**{"queue_offset": 0, "bulk_units": True, **fields})
    assert "bulkUnits" not in reply.fields


async def test_lite_pulls_are_pulls(rig: PullRig) -> None:
    put_all(rig, 2)
    assert len(bodies(await rig.answer(0, kind=LitePullMessage))) == 2


async def test_oneway_pulls_are_not_answered(rig: PullRig) -> None:
    put_all(rig, 2)
    assert await rig.pull(0, oneway=True) == []
    assert await rig.pull(0, "Unknown", oneway=True) == []
    rig.broker.offsets.reset("T", "CG", {0: 1})
    assert await rig.pull(0, oneway=True) == []


async def test_what_was_taken_is_counted(rig: PullRig) -> None:
    put_all(rig, 3)
    await rig.answer(0)
    await rig.answer(3)
    assert rig.broker.stats.gets.count == 3
    assert rig.broker.stats.group_gets["T", "CG"].count == 3
    assert rig.broker.stats.misses.count == 1
    assert rig.broker.offsets.pulled("T", "CG", 0) == 3


@pytest.mark.parametrize(("slave_read", "expected"), [(False, "0"), (True, "1")])
async def test_the_slave_is_suggested_to_who_is_far_behind(slave_read: bool, expected: str) -> None:
    rig = PullRig(slave_read=slave_read)
    try:
        put_all(rig, 3)
        rig.broker.store.reader.hot.memory_bytes = 0
        assert (await rig.answer(0, max_msg_nums=1)).fields["suggestWhichBrokerId"] == expected
    finally:
        rig.close()


# --- Checks ---


async def refused(rig: PullRig, *args: Any, **fields: Any) -> tuple[int, str, str | None]:
    reply = await rig.answer(*args, **fields)
    assert set(reply.fields) <= {"forbiddenType"}
    return reply.code, reply.remark or "", reply.fields.get("forbiddenType")


async def test_the_broker_may_forbid_pulling(rig: PullRig) -> None:
    put_all(rig, 1)
    rig.broker.live.current = replace(rig.broker.live.current, permission=PERM_WRITE)
    assert await refused(rig) == (16, "the broker[127.0.0.1] pulling message is forbidden", "1")


async def test_the_broker_may_forbid_lite_pulling(rig: PullRig) -> None:
    put_all(rig, 1)
    rig.broker.live.current = replace(rig.broker.live.current, lite_pull=False)
    assert (await refused(rig, kind=LitePullMessage))[::2] == (16, "1")
    assert (await rig.answer(0)).code == FOUND


@pytest.mark.parametrize("group", ["", " ", "a b", "../x", "g" * 121, "группа"])
async def test_a_group_that_cannot_be(rig: PullRig, group: str) -> None:
    put_all(rig, 1)
    code, remark, _ = await refused(rig, consumer_group=group)
    assert (code, remark) == (26, f"subscription group [{group}] does not exist, {FAQ}")


async def test_a_group_that_does_not_make_itself(rig: PullRig) -> None:
    put_all(rig, 1)
    rig.broker.live.current = replace(rig.broker.live.current, auto_create_groups=False)
    assert (await refused(rig))[0] == 26
    rig.broker.live.current = replace(rig.broker.live.current, auto_create_groups=True)
    assert (await rig.answer(0)).code == FOUND
    assert "CG" in rig.broker.groups


async def test_a_group_that_may_not_consume(rig: PullRig) -> None:
    put_all(rig, 1)
    rig.broker.groups.update(SubscriptionGroupConfig(group_name="CG", consume_enable=False), now_ms=0)
    assert await refused(rig) == (16, "subscription group no permission, CG", "2")


async def test_a_topic_that_is_not_there(rig: PullRig) -> None:
    assert await refused(rig, 0, "Unknown") == (
        17,
        f"topic[Unknown] not exist, apply first please! {FAQ}",
        None,
    )
    assert rig.broker.topics.get("Unknown") is None


async def test_a_topic_that_may_not_be_read(rig: PullRig) -> None:
    rig.broker.topics.update(TopicConfig(topic_name="T", perm=PERM_WRITE), now_ms=0)
    assert await refused(rig) == (16, "the topic[T] pulling message is forbidden", "3")


@pytest.mark.parametrize("queue_id", [-1, 4, 10**9, -(1 << 31)])
async def test_a_queue_that_is_not_there(rig: PullRig, queue_id: int) -> None:
    put_all(rig, 1)
    assert await refused(rig, queue_id=queue_id) == (
        29,
        f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[4] "
        "consumer:[/127.0.0.1:40000]",
        None,
    )
    assert ("T", queue_id) not in rig.broker.store.queues


@pytest.mark.parametrize("expression", ["||", "||||"])
async def test_an_expression_that_cannot_be_read(rig: PullRig, expression: str) -> None:
    put_all(rig, 1)
    assert await refused(rig, subscription=expression) == (
        23,
        "parse the consumer's subscription failed",
        None,
    )


async def test_sql_that_cannot_be_read_is_refused_with_the_place(rig: PullRig) -> None:
    put_all(rig, 1)
    assert await refused(rig, subscription="a > !", expression_type="SQL92") == (
        23,
        "parse the consumer's subscription failed: unexpected character '!', at character 5",
        None,
    )


async def test_without_a_subscription_the_group_must_be_online(rig: PullRig) -> None:
    put_all(rig, 1)
    assert await refused(rig, sys_flag=0) == (24, f"the consumer's group info not exist{FAQ}", None)
    join(rig, consumer("CG", ["Other"]))
    assert await refused(rig, sys_flag=0) == (24, f"the consumer's subscription not exist{FAQ}", None)
    join(rig, consumer("CG", [subscription("T", version=5)]))
    assert await refused(rig, sys_flag=0, sub_version=6) == (
        25,
        "the consumer's subscription not latest",
        None,
    )
    assert (await rig.answer(0, sys_flag=0, sub_version=5)).code == FOUND


async def test_broadcasting_may_be_forbidden(rig: PullRig) -> None:
    put_all(rig, 1)
    rig.broker.groups.update(
        SubscriptionGroupConfig(group_name="CG", consume_broadcast_enable=False), now_ms=0
    )
    join(rig, consumer("CG", message_model="BROADCASTING"))
    assert (await refused(rig, sys_flag=0))[::2] == (16, "4")


async def test_a_topic_may_be_forbidden_to_a_group(rig: PullRig) -> None:
    put_all(rig, 1)
    join(rig, consumer("CG"))
    rig.broker.groups.set_readable("CG", "T", False, now_ms=0)
    assert (await refused(rig, sys_flag=0))[::2] == (16, "5")


# --- Offsets that come along, and resets ---


async def test_an_offset_that_comes_along_is_committed(rig: PullRig) -> None:
    put_all(rig, 3)
    await rig.answer(0, commit_offset=2)
    assert rig.broker.offsets.query("T", "CG", 0) is None
    await rig.answer(0, commit_offset=2, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET)
    assert rig.broker.offsets.query("T", "CG", 0) == 2
    # Beyond the end, and even back, as RocketMQ takes it.
    await rig.answer(0, commit_offset=1 << 62, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET)
    assert rig.broker.offsets.query("T", "CG", 0) == 1 << 62


async def test_an_offset_that_cannot_be_kept_does_not_matter_to_the_pull(rig: PullRig) -> None:
    put_all(rig, 1)
    rig.broker.live.current = replace(rig.broker.live.current, offset_keys_max=1)
    rig.broker.offsets.commit("Other", "CG", 0, 1, now_ms=0)
    reply = await rig.answer(0, commit_offset=2, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET)
    assert reply.code == FOUND


async def test_a_reset_group_is_sent_elsewhere_once(rig: PullRig) -> None:
    put_all(rig, 5)
    rig.broker.offsets.reset("T", "CG", {0: 3})
    assert outcome(await rig.answer(0)) == (MOVED, "OFFSET_RESET", 3)
    assert outcome(await rig.answer(0)) == (FOUND, "FOUND", 5)


# --- Holding ---


async def test_only_who_asks_for_it_is_held(rig: PullRig) -> None:
    put_all(rig, 1)
    assert outcome(await rig.answer(1)) == (NOT_FOUND, "OFFSET_OVERFLOW_ONE", 1)
    assert outcome(await rig.answer(1, sys_flag=HELD, suspend_timeout_ms=0))[0] == NOT_FOUND
    assert outcome(await rig.answer(1, sys_flag=HELD, suspend_timeout_ms=-1))[0] == NOT_FOUND
    assert await rig.pull(1, sys_flag=HELD) == []
    assert rig.broker.long_polling.count == 1
    # What is wrong with the offset is said at once.
    assert outcome(await rig.answer(7, sys_flag=HELD))[0] == MOVED


async def test_sf_005_a_message_wakes_the_pull_that_waits_for_it(rig: PullRig) -> None:
    put_all(rig, 1)
    assert await rig.pull(1, sys_flag=HELD) == []
    rig.put("T", queue_id=1)
    assert await rig.client.taken() == []  # another queue
    rig.put("T", body=b"new")
    [reply] = await rig.client.taken()
    assert outcome(reply) == (FOUND, "FOUND", 2)
    assert bodies(reply) == [b"new"]
    assert rig.broker.long_polling.count == 0


async def test_all_who_wait_are_woken(rig: PullRig) -> None:
    rig.broker.topics.ensure_topic("T", 4, now_ms=0)
    clients = [rig.connect() for _ in range(5)]
    for number, client in enumerate(clients):
        assert await rig.pull(0, sys_flag=HELD, client=client, consumer_group=f"CG{number}") == []
    rig.put("T", body=b"new")
    for client in clients:
        [reply] = await client.taken()
        assert bodies(reply) == [b"new"]


async def test_sf_006_who_waits_in_vain_is_answered_when_its_time_is_up(rig: PullRig) -> None:
    put_all(rig, 1)
    started = asyncio.get_running_loop().time()
    assert await rig.pull(1, sys_flag=HELD, suspend_timeout_ms=150) == []
    reply = await rig.answer_later()
    assert outcome(reply) == (NOT_FOUND, "OFFSET_OVERFLOW_ONE", 1)
    assert asyncio.get_running_loop().time() - started >= 0.149


async def test_without_long_polling_the_broker_says_how_long(rig: PullRig) -> None:
    put_all(rig, 1)
    rig.broker.live.current = replace(rig.broker.live.current, long_polling=False, short_polling_ms=10)
    assert await rig.pull(1, sys_flag=HELD) == []
    assert outcome(await rig.answer_later())[0] == NOT_FOUND


async def test_nobody_is_held_for_longer_than_a_minute(rig: PullRig, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def hold(held: HeldPull, timeout_s: float) -> bool:
        waits.append(timeout_s)
        return True

    monkeypatch.setattr(rig.broker.long_polling, "hold", hold)
    put_all(rig, 1)
    await rig.pull(1, sys_flag=HELD, suspend_timeout_ms=(1 << 63) - 1)
    await rig.pull(1, sys_flag=HELD, suspend_timeout_ms=15_000)
    assert waits == [60.0, 15.0]


async def test_a_message_that_does_not_match_wakes_nobody_until_the_check(rig: PullRig) -> None:
    put_all(rig, 1)
    assert await rig.pull(1, sys_flag=HELD, subscription="a") == []
    rig.put("T", tags="b")
    assert await rig.client.taken() == []
    rig.broker.long_polling.check()
    [reply] = await rig.client.taken()
    assert outcome(reply) == (RETRY, "NO_MATCHED_MESSAGE", 2)
    assert await rig.pull(2, sys_flag=HELD, subscription="a") == []
    rig.put("T", tags="a", body=b"match")
    [reply] = await rig.client.taken()
    assert bodies(reply) == [b"match"]


async def test_sf_092_the_check_finds_what_nobody_told_of(rig: PullRig) -> None:
    put_all(rig, 1)
    assert await rig.pull(1, sys_flag=HELD) == []
    rig.broker.store.on_arrival = None
    rig.put("T", body=b"new")
    assert await rig.client.taken() == []
    rig.broker.long_polling.check()
    [reply] = await rig.client.taken()
    assert bodies(reply) == [b"new"]


async def test_the_second_pass_commits_nothing_and_holds_nobody(rig: PullRig) -> None:
    put_all(rig, 1)
    flags = HELD | PULL_COMMIT_OFFSET
    assert await rig.pull(1, sys_flag=flags, commit_offset=1) == []
    rig.broker.offsets.commit("T", "CG", 0, 7, now_ms=0)
    rig.broker.long_polling.wake_all()
    [reply] = await rig.client.taken()
    assert outcome(reply)[0] == NOT_FOUND
    assert rig.broker.offsets.query("T", "CG", 0) == 7
    assert rig.broker.long_polling.count == 0


async def test_a_reset_reaches_who_waits(rig: PullRig) -> None:
    put_all(rig, 3)
    assert await rig.pull(3, sys_flag=HELD) == []
    rig.broker.offsets.reset("T", "CG", {0: 1})
    rig.broker.long_polling.wake_all()
    [reply] = await rig.client.taken()
    assert outcome(reply) == (MOVED, "OFFSET_RESET", 1)


async def test_all_checks_are_made_again(rig: PullRig) -> None:
    put_all(rig, 1)
    assert await rig.pull(1, sys_flag=HELD) == []
    rig.broker.groups.update(SubscriptionGroupConfig(group_name="CG", consume_enable=False), now_ms=0)
    rig.put("T")
    [reply] = await rig.client.taken()
    assert reply.code == 16


async def test_who_cannot_be_held_is_answered_at_once() -> None:
    rig = PullRig(held_pulls_max=2)
    try:
        put_all(rig, 1)
        assert await rig.pull(1, sys_flag=HELD) == []
        assert await rig.pull(1, sys_flag=HELD) == []
        assert outcome(await rig.answer(1, sys_flag=HELD))[0] == NOT_FOUND
        rig.broker.long_polling.wake_all()
        assert len(await rig.client.taken()) == 2
    finally:
        rig.close()


async def test_a_pull_in_which_much_was_written_takes_more_room() -> None:
    rig = PullRig(held_bytes_max=1 << 20)
    try:
        put_all(rig, 1)
        large: dict[str, Any] = {"subscription": "a" * 200_000, "proxy_forward_client_id": "p" * 100_000}
        held = command(1, sys_flag=HELD, **large)
        held.body, held.remark = memoryview(b"x" * 1_000_000), "r" * 1_000_000
        rig.path.pull(rig.client.peer, [held])
        assert 300_000 < rig.broker.long_polling.held_bytes < 310_000
        assert not held.body
        assert not held.remark
        for _ in range(2):
            assert await rig.pull(1, sys_flag=HELD, **large) == []
        assert outcome(await rig.answer(1, sys_flag=HELD, **large))[0] == NOT_FOUND
        assert await rig.pull(1, sys_flag=HELD) == []
        rig.broker.long_polling.wake_all()
        assert rig.broker.long_polling.held_bytes == 0
    finally:
        rig.close()


async def test_a_connection_that_ends_takes_its_pulls_along(rig: PullRig) -> None:
    put_all(rig, 1)
    other = rig.connect()
    assert await rig.pull(1, sys_flag=HELD) == []
    assert await rig.pull(1, sys_flag=HELD, client=other) == []
    rig.broker.long_polling.drop(rig.client.peer)
    assert rig.broker.long_polling.count == 1
    rig.put("T")
    assert await rig.client.taken() == []
    assert len(await other.taken()) == 1


# --- Cold data ---


async def test_cold_data_is_read_elsewhere(rig: PullRig) -> None:
    put_all(rig, 3)
    rig.cool_down()
    assert await rig.pull(0) == []
    reply = await rig.answer_later()
    assert outcome(reply) == (FOUND, "FOUND", 3)
    assert bodies(reply) == [b"0", b"1", b"2"]


async def test_a_read_that_does_not_return_holds_up_its_pull_only(
    rig: PullRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all(rig, 3)
    rig.cool_down()
    put_all(rig, 1)
    gate = threading.Event()
    read = SimulatedDisk.read
    monkeypatch.setattr(SimulatedDisk, "read", lambda *args: gate.wait() and read(*args))
    try:
        assert await rig.pull(0) == []
        assert bodies(await rig.answer(3)) == [b"0"]
    finally:
        gate.set()
    assert outcome(await rig.answer_later()) == (FOUND, "FOUND", 4)


async def test_a_read_that_takes_too_long_is_busy(rig: PullRig, monkeypatch: pytest.MonkeyPatch) -> None:
    put_all(rig, 3)
    rig.cool_down()
    rig.broker.live.current = replace(rig.broker.live.current, pull_wait_ms=30)
    gate = threading.Event()
    read = SimulatedDisk.read
    monkeypatch.setattr(SimulatedDisk, "read", lambda *args: gate.wait() and read(*args))
    try:
        assert await rig.pull(0) == []
        reply = await rig.answer_later()
        assert reply.code == ResponseCode.SYSTEM_BUSY
        assert reply.remark == (
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            "period in queue: 30ms, size of queue: 1"
        )
    finally:
        gate.set()
    rig.broker.live.current = replace(rig.broker.live.current, pull_wait_ms=20_000)
    assert await rig.pull(0) == []
    assert outcome(await rig.answer_later())[0] == FOUND


async def test_no_more_cold_pulls_than_allowed(rig: PullRig, monkeypatch: pytest.MonkeyPatch) -> None:
    put_all(rig, 3)
    rig.cool_down()
    rig.broker.live.current = replace(rig.broker.live.current, pull_queue_max=2)
    gate = threading.Event()
    read = SimulatedDisk.read
    monkeypatch.setattr(SimulatedDisk, "read", lambda *args: gate.wait() and read(*args))
    try:
        assert await rig.pull(0) == []
        assert await rig.pull(0) == []
        reply = await rig.answer(0)
        assert (reply.code, reply.remark) == (2, "[OVERLOAD]system busy, start flow control for a while")
    finally:
        gate.set()
    await rig.answers_later(2)
    assert await rig.pull(0) == []
    assert outcome(await rig.answer_later())[0] == FOUND


async def test_a_client_that_left_during_a_cold_read_is_not_held(rig: PullRig) -> None:
    put_all(rig, 3)
    rig.broker.store.housekeeper.flush()
    rig.cool_down()
    gate = threading.Event()
    rig.broker.readers.submit(gate.wait)
    await rig.pull(0, sys_flag=HELD, subscription="none")
    rig.client.wire.close()
    gate.set()
    await rig.broker.read_cold(lambda: None)
    await until(lambda: rig.path._cold == 0)
    assert rig.broker.long_polling.count == 0


# --- Limits for cold data ---


def limit_cold(rig: PullRig, monkeypatch: pytest.MonkeyPatch, *, hold_s: float = 0.01) -> None:
    """Let groups read a byte of cold data in a window, and wait a moment then."""
    monkeypatch.setattr("skylark.broker.handlers.pull.COLD_HOLD_S", hold_s)
    rig.broker.live.current = replace(rig.broker.live.current, limit_cold_reads=True, group_cold_bytes_max=1)
    put_all(rig, 3)
    rig.cool_down()


async def cold_bodies(rig: PullRig, queue_offset: int = 0, **fields: Any) -> list[bytes]:
    assert await rig.pull(queue_offset, **fields) == []
    return bodies(await rig.answer_later())


async def test_a_push_group_that_read_enough_cold_data_is_busy(
    rig: PullRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_cold(rig, monkeypatch)
    join(rig, consumer())
    assert await cold_bodies(rig) == [b"0", b"1", b"2"]
    reply = await rig.answer(0)
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "This consumer group is reading cold data. It has been flow control",
    )
    put_all(rig, 1)
    assert bodies(await rig.answer(3)) == [b"0"]  # what is in memory is not limited
    rig.clock.advance(5000)
    assert await cold_bodies(rig) == [b"0", b"1", b"2", b"0"]
    assert rig.path._cold == 0


@pytest.mark.parametrize("consume_type", ["CONSUME_ACTIVELY", None])
async def test_a_pull_group_that_read_enough_cold_data_waits_and_gets_one_message(
    rig: PullRig, monkeypatch: pytest.MonkeyPatch, consume_type: str | None
) -> None:
    limit_cold(rig, monkeypatch)
    if consume_type is not None:
        join(rig, consumer(consume_type=consume_type))
    assert await cold_bodies(rig) == [b"0", b"1", b"2"]
    assert await cold_bodies(rig) == [b"0"]
    assert await cold_bodies(rig, bulk_bytes=1 << 20) == [b"0"]
    assert await cold_bodies(rig, consumer_group="other") == [b"0", b"1", b"2"]


async def test_a_pull_group_whose_window_ends_while_it_waits_gets_all(
    rig: PullRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_cold(rig, monkeypatch, hold_s=0.05)
    assert await cold_bodies(rig) == [b"0", b"1", b"2"]
    assert await rig.pull(0) == []
    rig.clock.advance(5000)
    assert bodies(await rig.answer_later()) == [b"0", b"1", b"2"]


async def test_what_a_filter_refuses_is_cold_data_too(rig: PullRig, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_cold(rig, monkeypatch)
    assert await rig.pull(0, expression_type="SQL92", subscription="a = 1") == []
    assert outcome(await rig.answer_later()) == (RETRY, "NO_MATCHED_MESSAGE", 3)
    now = rig.clock.monotonic()
    assert rig.broker.cold_reads.had_enough("CG", now=now)
    assert rig.broker.cold_reads.totals(now=now)["globalAcc"] == rig.broker.store.appended_offset


async def test_who_leaves_while_it_waits_is_forgotten(rig: PullRig, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_cold(rig, monkeypatch)
    assert await cold_bodies(rig) == [b"0", b"1", b"2"]
    await rig.pull(0)
    assert rig.path._cold == 1
    rig.client.wire.close()
    await until(lambda: rig.path._cold == 0)
    assert rig.client.wire.take() == []


async def test_pulls_that_wait_count_among_those_for_the_disk(
    rig: PullRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_cold(rig, monkeypatch, hold_s=60)
    rig.broker.live.current = replace(rig.broker.live.current, pull_queue_max=1)
    assert await cold_bodies(rig) == [b"0", b"1", b"2"]
    assert await rig.pull(0) == []
    assert (await rig.answer(0)).code == ResponseCode.SYSTEM_BUSY


# --- Failures ---


async def test_a_read_that_fails_is_an_answer(rig: PullRig, caplog: pytest.LogCaptureFixture) -> None:
    put_all(rig, 3)
    rig.cool_down()
    rig.disk.plan(Fault(Kind.READ, error=errno.EIO))
    assert await rig.pull(0) == []
    reply = await rig.answer_later()
    assert (reply.code, reply.fields) == (1, {})
    assert "handler failed code=11" in caplog.text
    assert await rig.pull(0) == []
    assert outcome(await rig.answer_later())[0] == FOUND


async def test_a_pull_that_fails_harms_neither_its_neighbours_nor_sends(
    rig: PullRig, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("T", "U"):
        rig.put(topic)
    rig.broker.store.housekeeper.flush()  # the units are in files now, and read from there
    rig.disk.plan(Fault(Kind.READ, error=errno.EMFILE, always=True, path_contains="consumequeue/T"))
    rig.path.pull(rig.client.peer, [command(opaque=1), command(0, "U", opaque=2), command(opaque=3)])
    replies = {reply.opaque: reply.code for reply in await rig.client.taken()}
    assert replies == {1: 1, 2: 0, 3: 1}
    # Two wait, and what one of them meets when it is woken must not reach the send that woke it.
    await rig.pull(1, sys_flag=HELD)
    await rig.pull(1, sys_flag=HELD, sub_version=0, client=(other := rig.connect()))
    rig.broker.send_path.send(rig.client.peer, [send()])
    assert sorted(reply.code for reply in await rig.client.taken()) == [0, 0]
    assert [reply.code for reply in await other.taken()] == [0]
    rig.disk.heal()


def send() -> TypedCommand[Any]:
    request = SendMessageV2("PG", "T", "TBW102", 4, 0, 0, 0, 0)
    return TypedCommand(code=310, opaque=77, body=b"body", request=request)


async def test_a_resumed_pull_that_fails_is_answered(
    rig: PullRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all(rig, 1)
    await rig.pull(1, sys_flag=HELD)
    monkeypatch.setattr(rig.broker.store, "get", lambda *args, **named: 1 // 0)
    rig.broker.send_path.send(rig.client.peer, [send()])
    replies = {reply.opaque: reply.code for reply in await rig.client.taken()}
    assert replies == {9: 1, 77: 0}


class OrderedWire(Wire):
    """Notes what is written in a list that several wires share."""

    def __init__(self, port: int, written: list[int]) -> None:
        super().__init__(port)
        self._written = written

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        self._written.append(self._port)


def connected(rig: Rig, port: int, written: list[int]) -> Peer:
    peer = Peer(rig.broker._server, rig.routes)
    peer.connection_made(OrderedWire(port, written))
    return peer


async def one_send_beside_held_pulls(rig: Rig, written: list[int]) -> Peer:
    """Hold two pulls, let one message be sent, and return the connection of the sender."""
    rig.broker.topics.ensure_topic("T", 4, now_ms=0)
    for port in (1, 2):
        rig.broker.pull_path.pull(connected(rig, port, written), [command(0, sys_flag=HELD)])
    assert rig.broker.long_polling.count == 2
    sender = connected(rig, 3, written)
    sender.data_received(b"".join(SendMessageV2("PG", "T", "TBW102", 4, 0, 0, 0, 0, "", body=b"b").frame(7)))
    return sender


async def test_a_send_is_acknowledged_before_held_pulls_are_resumed(rig: PullRig) -> None:
    written: list[int] = []
    await one_send_beside_held_pulls(rig, written)
    assert written == [3]
    assert rig.broker.long_polling.count == 2
    await asyncio.sleep(0)
    assert written == [3, 1, 2]


async def test_under_sync_flush_a_send_is_acknowledged_before_held_pulls_are_resumed() -> None:
    with rigged(store={"flush_mode": FlushMode.SYNC}) as rig:
        broker, written = rig.broker, list[int]()
        broker.store.on_arrival = broker.long_polling.arrived
        await one_send_beside_held_pulls(rig, written)
        assert written == []
        broker.store.flusher.flush()
        broker._flushed()
        assert written == [3]
        await asyncio.sleep(0)
        assert written == [3, 1, 2]
