"""The fast path of pulls: the same bytes as the general one gives, and given up when anything changes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.clients import ConnectedClient as Member
from skylark.broker.handlers.pull import PLAN_S, PLANS_MAX, PullPlans
from skylark.model.record import BatchColumns, BatchElement
from skylark.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import ONEWAY_FLAG, TypedCommand
from skylark.protocol.frame_templates import pull_reply_head, pull_reply_template
from skylark.protocol.requests.pull import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    LitePullMessage,
    PullMessage,
)
from skylark.store import tail_reader
from skylark.store.append_result import AppendedInnerBatch
from skylark.store.queue_entry import ENTRY_BYTES
from tests.support.broker import consumer, subscription
from tests.support.store import encoded_batch, message
from tests.unit.broker.handlers.rig import Rig

QUEUES = 2
WIDE_FILES = {"commit_log_file_bytes": 1 << 20, "consume_queue_file_bytes": 20 * 2000}


class PlannedRig(Rig):
    """A rig that keeps what its peer is sent, and counts the pulls that plans answered."""

    def __init__(self, *, with_plans: bool = True, **changes: Any) -> None:
        super().__init__(**changes)
        self.path = self.broker.pull_path
        self.planned = 0
        self.sent: list[bytes] = []
        self.together = 0
        plans = self.path._plans
        answer, answer_run = plans.answer, plans.answer_run

        def counted(*args: Any, **named: Any) -> bool:
            is_answered = with_plans and answer(*args, **named)
            self.planned += is_answered
            return is_answered

        def counted_run(*args: Any, **named: Any) -> int:
            answered = answer_run(*args, **named) if with_plans else 0
            self.together += answered
            return answered

        plans.answer = counted  # type: ignore[method-assign]
        plans.answer_run = counted_run  # type: ignore[method-assign]
        self.client.wire.write = lambda data: self.sent.append(bytes(data))  # type: ignore[method-assign]

    def pull(self, queue_offset: int = 0, **fields: Any) -> bytes:
        """Return the frame that answers a pull."""
        return self.pull_all([command(queue_offset, **fields)])

    def pull_all(self, commands: list[TypedCommand[PullMessage]]) -> bytes:
        """Return the frames that answer pulls which came together."""
        self.sent.clear()
        self.path.pull(self.client.peer, commands)
        self.client.peer._flush()
        return b"".join(self.sent)

    def put_batch(self, queue_id: int, bodies: list[bytes]) -> None:
        self.broker.topics.ensure_topic("T", QUEUES, now_ms=self.clock.now_ms())
        elements = [BatchElement(0, body, b"") for body in bodies]
        self.broker.store.append_batches([(message("T", queue_id), BatchColumns.of(elements))])

    def put_inner_batch(self, count: int) -> None:
        """A batch as one record, in a BatchCQ topic."""
        batch = message("T", 0, encoded_batch([b"%d" % number for number in range(count)]))
        assert isinstance(self.broker.store.append_batches([(batch, count)])[0], AppendedInnerBatch)

    def age(self) -> None:
        """From now on what is there counts as written by an earlier process."""
        self.broker.store.reader.hot.written_from = self.broker.store.appended_offset

    def seen(self) -> dict[str, Any]:
        """What the broker remembers of pulls."""
        offsets, stats = self.broker.offsets, self.broker.stats
        gets = stats.group_gets.get(("T", "CG"))
        return {
            "pulled": [offsets.pulled("T", "CG", queue_id) for queue_id in range(QUEUES)],
            "committed": offsets.committed("T", "CG"),
            "gets": gets and (gets.count, gets.size, gets.calls),
            "all gets": (stats.gets.count, stats.gets.size, stats.gets.calls),
        }


def command(
    queue_offset: int, *, flag: int = 0, kind: type[PullMessage] = PullMessage, opaque: int = 9, **fields: Any
) -> TypedCommand[PullMessage]:
    values = {
        "consumer_group": "CG", "topic": "T", "queue_id": 0, "max_msg_nums": 32, "commit_offset": 0,
        "sys_flag": PULL_SUBSCRIPTION, "suspend_timeout_ms": 0, "sub_version": 0, "subscription": "*",
        **fields,
    }  # fmt: skip
    return TypedCommand(
        code=kind.code,
        opaque=opaque,
        version=479,
        flag=flag,
        request=kind(queue_offset=queue_offset, **values),
    )


@pytest.fixture
async def rig() -> AsyncIterator[PlannedRig]:
    made = PlannedRig(store=WIDE_FILES)
    for number in range(40):
        made.put("T", body=b"%d" % number)
    yield made
    made.close()


# --- The same bytes ---

BODIES = st.lists(st.binary(max_size=300), min_size=1, max_size=20)
STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, QUEUES - 1), st.binary(max_size=1500)),
    st.tuples(st.sampled_from(["red", "blue"]), st.integers(0, QUEUES - 1), st.binary(max_size=300)),
    st.tuples(st.just("batch"), st.integers(0, QUEUES - 1), BODIES),
    st.tuples(st.sampled_from(["flush", "age"]), st.just(0), st.just(b"")),
    st.tuples(
        st.just("pull"),
        st.integers(0, QUEUES - 1),
        st.fixed_dictionaries(
            {
                "queue_offset": st.integers(-1, 60),
                "max_msg_nums": st.sampled_from([-1, 0, 1, 3, 32, 100]),
                "commit_offset": st.integers(0, 50),
                "sys_flag": st.sampled_from([PULL_SUBSCRIPTION, PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET]),
                "opaque": st.integers(-(1 << 31), (1 << 31) - 1),
                "subscription": st.sampled_from(["*", "*", "red", "red || blue"]),
            }
        ),
    ),
    st.tuples(
        st.just("pull"),
        st.integers(0, QUEUES - 1),
        st.fixed_dictionaries(
            {
                "queue_offset": st.integers(-1, 60),
                "max_msg_nums": st.sampled_from([0, 1, 3, 32, 100]),
                "subscription": st.sampled_from(["TAGS = 'red'", "TAGS IN ('red', 'blue')", "TAGS IS NULL"]),
                "expression_type": st.just("SQL92"),
            }
        ),
    ),
    st.tuples(
        st.just("pulls"),
        st.integers(0, QUEUES - 1),
        st.fixed_dictionaries(
            {
                "queue_offset": st.integers(-1, 60),
                "counts": st.lists(st.sampled_from([-1, 0, 1, 2, 3, 5, 32, 100]), min_size=2, max_size=9),
                "gap": st.sampled_from([0, 0, 0, 1, -1]),
                "commit_offset": st.integers(0, 50),
                "sys_flag": st.sampled_from([PULL_SUBSCRIPTION, PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET]),
                "other": st.none() | st.integers(0, 8),
            }
        ),
    ),
)


def run_of_pulls(queue_id: int, what: dict[str, Any]) -> list[TypedCommand[PullMessage]]:
    """Pulls of which each goes on where the last one ends, or nearly; one of them is of another group."""
    place, commands = what["queue_offset"], []
    for number, count in enumerate(what["counts"]):
        fields: dict[str, Any] = {"consumer_group": "CG2"} if number == what["other"] else {}
        commands.append(
            command(
                place,
                queue_id=queue_id,
                max_msg_nums=count,
                commit_offset=what["commit_offset"] + number,
                sys_flag=what["sys_flag"],
                opaque=number,
                **fields,
            )
        )
        place += count + (what["gap"] if number == len(what["counts"]) // 2 else 0)
    return commands


@given(steps=st.lists(STEPS, max_size=60), small_files=st.booleans())
async def test_plans_answer_with_the_bytes_of_the_general_path(
    steps: list[tuple[str, int, Any]], small_files: bool
) -> None:
    store = {} if small_files else WIDE_FILES
    planned, general = PlannedRig(store=store), PlannedRig(store=store, with_plans=False)
    for each in (planned, general):
        each.put("T", body=b"first")
        each.pull()
    for kind, queue_id, what in steps:
        answers = []
        for each in (planned, general):
            if kind == "put":
                each.put("T", queue_id, what)
            elif kind in ("red", "blue"):
                for _ in range(5):
                    each.put("T", queue_id, what, tags=kind)
            elif kind == "batch":
                each.put_batch(queue_id, what)
            elif kind == "flush":
                each.broker.store.housekeeper.flush()
            elif kind == "age":
                each.age()
            elif kind == "pulls":
                answers.append(each.pull_all(run_of_pulls(queue_id, what)))
            else:
                answers.append(each.pull(queue_id=queue_id, **what))
        assert len(set(answers)) <= 1
    assert planned.seen() == general.seen()
    for each in (planned, general):
        each.close()


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 6)),
            st.tuples(st.sampled_from(["lone", "flush", "age"]), st.just(0)),
            st.tuples(st.just("pull"), st.tuples(st.integers(-1, 60), st.sampled_from([0, 1, 4, 32]))),
        ),
        max_size=40,
    ),
    small_files=st.booleans(),
)
async def test_plans_read_batch_queues_as_the_general_path_does(
    steps: list[tuple[str, Any]], small_files: bool
) -> None:
    rigs = [PlannedRig(store={} if small_files else WIDE_FILES, with_plans=each) for each in (True, False)]
    for each in rigs:
        config = TopicConfig("T", QUEUES, QUEUES, attributes={"+queue.type": "BatchCQ"})
        each.broker.topics.update(config, now_ms=each.clock.now_ms())
        each.put_inner_batch(3)
        each.pull()
    for kind, what in steps:
        answers = []
        for each in rigs:
            if kind == "put":
                each.put_inner_batch(what)
            elif kind == "lone":
                each.put("T", body=b"lone")
            elif kind == "flush":
                each.broker.store.housekeeper.flush()
            elif kind == "age":
                each.age()
            else:
                place, count = what
                answers.append(each.pull(place, max_msg_nums=count))
                commands = [command(at, max_msg_nums=4, opaque=at) for at in range(max(place, 0), 20, 4)]
                answers[-1] += each.pull_all(commands) if commands else b""
        assert len(set(answers)) <= 1
    assert rigs[0].seen() == rigs[1].seen()
    for each in rigs:
        each.close()


async def test_a_consumer_of_batches_is_answered_by_plan() -> None:
    rig = PlannedRig(store=WIDE_FILES)
    config = TopicConfig("T", QUEUES, QUEUES, attributes={"+queue.type": "BatchCQ"})
    rig.broker.topics.update(config, now_ms=rig.clock.now_ms())
    for _ in range(10):
        rig.put_inner_batch(8)
    for place in range(0, 80, 16):
        assert b'"nextBeginOffset":"%d"' % (place + 16) in rig.pull(place, max_msg_nums=16)
    assert rig.planned == 4
    gets = rig.broker.stats.group_gets["T", "CG"]
    assert (gets.count, gets.calls) == (80, 5)
    rig.close()


async def test_a_consumer_that_goes_on_is_answered_by_plan(rig: PlannedRig) -> None:
    rig.pull(0, max_msg_nums=5)
    assert rig.planned == 0
    for queue_offset in range(5, 40, 5):
        assert rig.pull(queue_offset, max_msg_nums=5)
    assert rig.planned == 7
    assert rig.broker.offsets.pulled("T", "CG", 0) == 40


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_consumer_of_some_tags_is_answered_by_plan(rig: PlannedRig, is_old: bool) -> None:
    for number in range(60):
        rig.put("T", 1, b"%d" % number, tags="red" if number % 3 else "blue")
    if is_old:
        rig.broker.store.housekeeper.flush()
        rig.age()
    for queue_offset in (0, 15, 30):
        answer = rig.pull(queue_offset, queue_id=1, max_msg_nums=10, subscription="red")
        assert b'"nextBeginOffset":"%d"' % (queue_offset + 15) in answer
    assert rig.planned == 2
    assert rig.pull(45, queue_id=1, max_msg_nums=11, subscription="red")  # there are ten
    assert rig.planned == 2


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_consumer_by_sql92_is_answered_by_plan(rig: PlannedRig, is_old: bool) -> None:
    for number in range(100):
        rig.put("T", 1, b"%d" % number, tags="red" if number % 3 else "blue")
    if is_old:
        rig.broker.store.housekeeper.flush()
        rig.age()

    def pull(queue_offset: int) -> bytes:
        return rig.pull(
            queue_offset, queue_id=1, max_msg_nums=30, subscription="TAGS = 'red'", expression_type="SQL92"
        )

    for queue_offset in (0, 45):
        assert b'"nextBeginOffset":"%d"' % (queue_offset + 45) in pull(queue_offset)
    assert rig.planned == 1
    assert b'"nextBeginOffset":"100"' in pull(90)  # the last six
    assert rig.planned == 2
    assert b'"code":20,' in pull(99)  # it does not match: the general path replies, also to the next one
    assert pull(90)
    assert rig.planned == 2
    assert pull(90)
    assert rig.planned == 3


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("share", [0.03, 0.5, 0.97, 1.0])
async def test_sql92_chooses_the_same_by_plan(share: float, is_old: bool) -> None:
    answers, planned = [], 0
    for with_plans in (True, False):
        rng, rig = random.Random(9), PlannedRig(store=WIDE_FILES, with_plans=with_plans)
        for number in range(400):
            rig.put("T", 0, b"%d" % number, tags="red" if rng.random() < share else "blue")
            rig.put("T", 1, b"between")
        if is_old:
            rig.broker.store.housekeeper.flush()
            rig.age()
        answers.append(
            [
                rig.pull(place, max_msg_nums=count, subscription="TAGS = 'red'", expression_type="SQL92")
                for count in (32, 40, 7)
                for place in range(0, 400, 13)
            ]
        )
        planned += rig.planned
        rig.close()
    assert answers[0] == answers[1]
    assert planned > 40


@pytest.mark.parametrize("is_old", [False, True])
async def test_pulls_that_go_on_one_behind_the_other_are_read_at_once(rig: PlannedRig, is_old: bool) -> None:
    if is_old:
        rig.broker.store.housekeeper.flush()
        rig.age()
    rig.pull(0)
    commands = [command(place, max_msg_nums=8, opaque=place) for place in range(0, 48, 8)]
    answers = rig.pull_all(commands)
    # The last one asks for what is not there yet, and for that there is another answer.
    assert (rig.together, answers.count(b'{"code":0,'), answers.count(b'{"code":19,')) == (5, 5, 1)
    assert rig.broker.offsets.pulled("T", "CG", 0) == 40
    gets = rig.broker.stats.group_gets["T", "CG"]
    assert (gets.count, gets.calls) == (32 + 40, 6)


@pytest.mark.parametrize(
    "damage", [(8, b"\0\0\0\x63"), (0, b"\xff\xff"), (4, b"\x7f\xff\xff\xff"), (7, b"\x01")]
)
async def test_units_that_fit_no_record_are_stepped_over_by_plan_too(damage: tuple[int, bytes]) -> None:
    place, wrong = damage
    answers = []
    for with_plans in (True, False):
        rig = PlannedRig(store=WIDE_FILES, with_plans=with_plans)
        for number in range(60):
            rig.put("T", number % 2, body=b"%d" % number)
        rig.age()
        rig.pull(0)
        at = 13 * ENTRY_BYTES + place
        rig.broker.store.queue("T", 0).tail[at : at + len(wrong)] = wrong
        rig.broker.store.queue("T", 0).generation += 1
        commands = [command(first, max_msg_nums=6, opaque=first) for first in range(0, 30, 6)]
        answers.append([rig.pull_all(commands), *(rig.pull(first) for first in range(10, 16))])
        rig.close()
    assert answers[0] == answers[1]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were looked at, each time."""
    checked: list[int] = []
    fits = tail_reader.fits

    def counted(data: bytes, sizes: Sequence[int]) -> bool:
        checked.append(len(sizes))
        return fits(data, sizes)

    monkeypatch.setattr(tail_reader, "fits", counted)
    return checked


async def test_what_was_checked_is_not_checked_again(rig: PlannedRig, checked: list[int]) -> None:
    rig.age()
    rig.pull()
    for _ in range(2):
        for first in range(0, 40, 10):
            rig.pull(first, max_msg_nums=10)
    assert checked == [10] * 4
    rig.broker.store.queue("T", 0).generation += 1
    rig.pull(5, max_msg_nums=10)
    assert checked == [10] * 5


async def test_what_several_read_of_one_queue_is_checked_once(rig: PlannedRig, checked: list[int]) -> None:
    rig.age()
    rig.pull()
    for _ in range(2):
        for first in (0, 25, 5, 30):  # one reads from 0 on, and one from 25 on
            rig.pull(first, max_msg_nums=5)
        rig.pull_all([command(0, max_msg_nums=5), command(5, max_msg_nums=5)])
    assert checked == [5] * 4


async def test_pulls_of_several_queues_are_answered_one_by_one(rig: PlannedRig) -> None:
    rig.put("T", 1)
    for queue_id in (0, 1):
        rig.pull(queue_id=queue_id)
    answers = rig.pull_all([command(0, queue_id=0), command(0, queue_id=1), command(32, queue_id=0)])
    assert (rig.together, rig.planned, answers.count(b'{"code":0,')) == (0, 3, 3)


async def test_what_an_earlier_process_wrote_is_answered_by_plan_while_it_is_in_memory(
    rig: PlannedRig,
) -> None:
    rig.broker.store.housekeeper.flush()
    rig.age()
    rig.pull(0, max_msg_nums=5)
    for queue_offset in range(5, 40, 5):
        assert rig.pull(queue_offset, max_msg_nums=5)
    assert rig.planned == 7


@pytest.mark.parametrize("opaque", [0, -5, 123456])
def test_the_template_makes_what_the_general_reply_is(opaque: int) -> None:
    flags = {"suggest_which_broker_id": 3, "topic_sys_flag": 1, "group_sys_flag": 2}
    template = pull_reply_template(code=0, remark='50 % "FOUND"', **flags)
    whole = pull_reply_head(
        opaque, code=0, remark='50 % "FOUND"', next_begin_offset=7, min_offset=5, max_offset=9, body_bytes=3,
        **flags,
    )  # fmt: skip
    assert template % (7, 9, 5, opaque) == whole[8:]


# --- When there is more to it ---


def forbid_topic(rig: PlannedRig) -> None:
    config = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4, perm=2)
    rig.broker.topics.update(config, now_ms=1)


def disable_group(rig: PlannedRig) -> None:
    rig.broker.groups.update(SubscriptionGroupConfig(group_name="CG", consume_enable=False), now_ms=1)


def forbid_broker(rig: PlannedRig) -> None:
    rig.broker.live.current = replace(rig.broker.live.current, permission=2)


def delete_topic(rig: PlannedRig) -> None:
    rig.broker.topics.delete("T", now_ms=1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (forbid_topic, ResponseCode.NO_PERMISSION),
        (disable_group, ResponseCode.NO_PERMISSION),
        (forbid_broker, ResponseCode.NO_PERMISSION),
        (delete_topic, ResponseCode.TOPIC_NOT_EXIST),
        (
            lambda rig: rig.broker.offsets.reset("T", "CG", {0: 3}),
            ResponseCode.PULL_OFFSET_MOVED,
        ),
    ],
)
async def test_a_change_is_heeded_at_once(
    rig: PlannedRig, change: Callable[[PlannedRig], None], code: ResponseCode
) -> None:
    rig.pull()
    assert b'{"code":0,' in rig.pull() and rig.planned == 1
    change(rig)
    assert b'{"code":%d,' % code in rig.pull()
    assert rig.planned == 1


async def test_a_group_that_never_hears_of_its_reset_slows_down_no_other(rig: PlannedRig) -> None:
    rig.broker.offsets.reset("T", "Offline", {0: 3})
    rig.pull()
    rig.pull()
    assert rig.planned == 1


async def test_a_group_that_left_or_wants_another_thing_is_looked_at_again(rig: PlannedRig) -> None:
    consumers, peer = rig.broker.consumers, rig.client.peer

    def join(version: int, *, tags: str = "*") -> None:
        data = consumer("CG", [subscription("T", tags, version=version)])
        member = Member(peer, "c1", "JAVA", 479)
        consumers.register(member, data, notify=False, now=rig.clock.monotonic())

    join(1)
    online: dict[str, Any] = {"sys_flag": 0, "subscription": None, "sub_version": 1}
    rig.pull(**online)
    assert b'{"code":0,' in rig.pull(**online) and rig.planned == 1
    join(2, tags="nothing")
    assert b'"remark":"NO_MATCHED_MESSAGE"' in rig.pull(**online)
    join(3)
    rig.pull(**online)
    consumers.unregister("CG", peer, notify=False)
    assert b'{"code":%d,' % ResponseCode.SUBSCRIPTION_NOT_EXIST in rig.pull(**online)
    assert rig.planned == 1


async def test_heartbeats_that_say_the_same_again_are_no_reason(rig: PlannedRig) -> None:
    online: dict[str, Any] = {"sys_flag": 0, "subscription": None, "sub_version": 1}
    for heartbeat in range(3):
        for group in ("CG", "Other"):
            data = consumer(group, [subscription("T", "*", version=1)])
            member = Member(rig.client.peer, "c1", "JAVA", 479)
            rig.broker.consumers.register(member, data, notify=False, now=rig.clock.monotonic())
        rig.pull(**online)
        assert rig.planned == heartbeat


async def test_a_queue_that_was_made_anew_is_read_anew(rig: PlannedRig) -> None:
    rig.pull()
    rig.pull()
    rig.broker.store.queues.forget_topic("T")
    rig.put("T", body=b"new")
    assert b"new" in rig.pull()
    assert rig.planned == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"subscription": "TagA"},
        {"subscription": "a > 5", "expression_type": "SQL92"},
        {"kind": LitePullMessage},
        {"bulk_bytes": 1000},
        {"flag": ONEWAY_FLAG},
        {"consumer_group": "CG2"},
        {"queue_id": 1},
    ],
)
async def test_what_asks_for_something_else_has_no_plan(rig: PlannedRig, fields: dict[str, Any]) -> None:
    rig.pull()
    rig.pull(**fields)
    assert rig.planned == 0


async def test_plans_are_believed_in_for_a_moment_only(rig: PlannedRig) -> None:
    rig.pull()
    rig.clock.advance(int(PLAN_S * 1000) + 1)
    rig.pull()
    assert rig.planned == 0
    rig.pull()
    assert rig.planned == 1


async def test_there_is_room_for_so_many_plans(rig: PlannedRig) -> None:
    rig.pull()
    plans: PullPlans = rig.path._plans
    plan = next(iter(plans._plans.values()))
    plans._plans = {("T", number, "CG", 0, None, None, 0, 11): plan for number in range(PLANS_MAX)}
    rig.pull()
    assert len(plans._plans) == 1
