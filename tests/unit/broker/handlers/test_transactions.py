"""Transactions without sockets: ended once, asked about, given up; RocketMQ's checks and texts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from skylark.broker.clients import ConnectedClient as Member
from skylark.broker.delayed.timers import DelayedMessages
from skylark.broker.transactions.coordinator import TransactionCoordinator
from skylark.broker.transactions.half_messages import prepare
from skylark.model import names
from skylark.model.message import SCHEDULE_TOPIC, PutMessage, StoredMessage
from skylark.model.names import TRANSACTION_GROUP
from skylark.model.record import decode
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.transaction import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    CheckTransactionState,
    EndTransaction,
    ResumeCheckHalfMessage,
)
from skylark.settings.broker import TransactionSettings
from skylark.store.append_result import AppendedRecord
from tests.unit.broker.handlers.rig import Client, Rig, rigged

SETTINGS = TransactionSettings(timeout_ms=6000, check_max=3)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with rigged(store={"commit_log_file_bytes": 1 << 20}, transactions=SETTINGS) as made:
        made.broker.transactions.load()
        yield made


def half(rig: Rig, key: str = "K1", body: bytes = b"body", **properties: str) -> AppendedRecord:
    """Store a half message for queue 1 of topic T."""
    rig.broker.topics.ensure_topic("T", 4, now_ms=rig.clock.now_ms())
    message = PutMessage("T", 1, body, sys_flag=4, born_timestamp=rig.clock.now_ms())
    prepare(message, {"UNIQ_KEY": key, "PGROUP": "PG", "TRAN_MSG": "true", **properties})
    return rig.append(message)


def _end(placed: AppendedRecord, how: int = COMMIT, **changes: Any) -> EndTransaction:
    members: dict[str, Any] = {
        "producer_group": "PG",
        "queue_offset": placed.queue_offset,
        "physical_offset": placed.physical_offset,
        "commit_or_rollback": how,
        "msg_id": "K1",
        **changes,
    }
    return EndTransaction(**members)


async def end(rig: Rig, placed: AppendedRecord, how: int = COMMIT, **changes: Any) -> RemotingCommand:
    return await rig.ask(_end(placed, how, **changes))


def online(rig: Rig, group: str = "PG") -> Client:
    client = rig.connect()
    rig.broker.producers.register(group, Member(client.peer, "p@1", "JAVA", 479), now=rig.clock.monotonic())
    return client


async def check(rig: Rig, after_s: int = 10) -> None:
    rig.clock.advance(after_s * 1000)
    await rig.broker.transactions.check()


async def asked(client: Client) -> list[tuple[CheckTransactionState, StoredMessage]]:
    """The questions that came since the last call, each with the message it is about."""
    commands = await client.taken()
    assert {(command.code, command.is_oneway) for command in commands} <= {(39, True)}
    states = [CheckTransactionState.from_command(command) for command in commands]
    return [(state, decode(state.body)) for state in states]


def delivered(rig: Rig) -> list[bytes]:
    return [message.body for message in rig.stored("T", 1)]


# --- Ending ---


async def test_sf_076_a_message_is_seen_after_its_commit_and_once(rig: Rig) -> None:
    placed = half(rig)
    assert delivered(rig) == []
    for _ in range(3):
        answer = await end(rig, placed)
        assert (answer.code, answer.remark) == (0, None)
    [message] = rig.stored("T", 1)
    assert (message.body, message.sys_flag) == (b"body", 8)
    assert message.prepared_transaction_offset == placed.physical_offset
    assert [op.body for op in rig.stored(names.HALF_OP_TOPIC)] == [b"0,"]
    assert len(rig.broker.transactions.table) == 0


async def test_sf_076_what_is_rolled_back_is_never_seen(rig: Rig) -> None:
    placed = half(rig)
    await end(rig, placed, ROLLBACK)
    await end(rig, placed, COMMIT)
    await check(rig)
    assert delivered(rig) == []
    assert [op.body for op in rig.stored(names.HALF_OP_TOPIC)] == [b"0,"]


async def test_ends_of_one_read_are_one_write_each_with_its_own_reply(rig: Rig) -> None:
    """Those before the first that needs a closer look: of another group, ended already, not to be found."""
    await end(rig, half(rig, "K0", b"0"))  # its queue is known now
    placed = [half(rig, f"K{number}", b"%d" % number) for number in range(1, 7)]
    copy = half(rig, "K6", b"6")
    hows = [COMMIT, COMMIT, ROLLBACK, COMMIT, COMMIT]
    requests = [_end(each, how) for each, how in zip(placed[:5], hows, strict=True)]
    requests += [_end(placed[0]), _end(placed[4], producer_group="others"), _end(copy)]
    client = rig.connect(rig.routes)
    commands = [each.to_command(oneway=number == 1) for number, each in enumerate(requests)]
    for opaque, command in enumerate(commands):
        command.opaque = opaque
    end_of_log = rig.broker.store.log.appended
    client.deliver(*commands)
    answers = {each.opaque: (each.code, each.remark) for each in await client.taken()}
    assert answers == {
        **dict.fromkeys((0, 2, 3, 4, 5, 7), (0, None)),
        6: (1, "The producer group wrong"),
    }
    assert delivered(rig) == [b"0", b"1", b"2", b"4", b"5", b"6"]
    assert [op.body for op in rig.stored(names.HALF_OP_TOPIC)] == [b"0,", b"1,2,3,4,5,", b"6,7,"]
    messages = rig.stored("T", 1)
    assert [each.prepared_transaction_offset for each in messages[1:5]] == [
        placed[number].physical_offset for number in (0, 1, 3, 4)
    ]
    assert messages[1].physical_offset == end_of_log
    transactions = rig.broker.transactions
    assert (transactions.open_count, dict(transactions.commits), dict(transactions.rollbacks)) == (
        0, {"T": 6}, {"T": 1},
    )  # fmt: skip
    assert transactions.commit_times["T"].count == 6


@pytest.mark.parametrize(("how", "seen"), [(COMMIT, [b"body"]), (ROLLBACK, [])])
async def test_what_is_ended_before_it_can_be_seen_stays_ended(rig: Rig, how: int, seen: list[bytes]) -> None:
    """Its sender need not wait: the disk, or a slave, has it a moment later."""
    producer, store = online(rig), rig.broker.store
    store.replica_bound = 0
    placed = half(rig)
    for _ in range(2):
        await end(rig, placed, how)
    store.replica_bound = None
    store.advance()
    await check(rig)
    assert await asked(producer) == []
    await end(rig, placed)
    assert delivered(rig) == seen
    assert rig.broker.transactions.open_count == 0


async def test_who_does_not_know_changes_nothing(rig: Rig) -> None:
    assert (await end(rig, half(rig), UNKNOWN)).code == 0
    assert rig.broker.transactions.open_count == 1


async def test_a_send_that_was_repeated_is_one_transaction(rig: Rig) -> None:
    """A producer without an answer sends once more, with the same key: it is committed once."""
    half(rig)
    await end(rig, half(rig))
    await check(rig)
    assert delivered(rig) == [b"body"]
    assert len(rig.broker.transactions.table) == 0


async def test_other_messages_with_the_same_key_are_others(rig: Rig) -> None:
    first, second = half(rig, body=b"1"), half(rig, body=b"2")
    await end(rig, first)
    await end(rig, second)
    assert delivered(rig) == [b"1", b"2"]


async def test_delays_begin_at_the_commit(rig: Rig) -> None:
    await end(rig, half(rig, DELAY="2"))
    assert delivered(rig) == []
    [waiting] = rig.stored(SCHEDULE_TOPIC, 1)
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("T", "1")


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producer_group": "other"}, "The producer group wrong"),
        ({"queue_offset": 7}, "The transaction state table offset wrong"),
        ({"physical_offset": 1 << 40}, "Find prepared transaction message failed"),
        ({"physical_offset": 3}, "Find prepared transaction message failed"),
    ],
)
async def test_an_end_that_fits_no_half_message(rig: Rig, changes: dict[str, Any], remark: str) -> None:
    answer = await end(rig, half(rig), **changes)
    assert (answer.code, answer.remark) == (1, remark)
    assert delivered(rig) == []


async def test_only_half_messages_can_be_ended(rig: Rig) -> None:
    other = rig.put("Other", properties=b"PGROUP\x01PG\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02")
    answer = await end(rig, other)
    assert answer.code == 1
    assert rig.broker.store.max_offset("T", 0) == 0


async def test_after_its_immunity_only_who_was_asked_may_end(rig: Rig) -> None:
    placed = half(rig, CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    rig.clock.advance(11_000)
    answer = await end(rig, placed)
    assert answer.code == 604
    await end(rig, placed, from_transaction_check=True)
    assert delivered(rig) == [b"body"]


# --- Asking ---


async def test_a_producer_is_asked_and_its_answer_counts(rig: Rig) -> None:
    client = online(rig)
    half(rig, "K1")
    half(rig, "K2", b"other")
    await check(rig, 6)
    assert await asked(client) == []
    await check(rig, 1)
    (first, shown), (second, _) = await asked(client)
    assert (first.queue_offset, first.topic, first.broker_name) == (2, names.HALF_TOPIC, "broker-a")
    assert (first.msg_id, first.transaction_id) == ("K1", "K1")
    assert (shown.topic, shown.queue_id, shown.body) == ("T", 1, b"body")
    assert (shown.queue_offset, shown.physical_offset) == (first.queue_offset, first.physical_offset)
    assert shown.properties["TRANSACTION_CHECK_TIMES"] == "1"
    for state, how in ((first, COMMIT), (second, ROLLBACK)):
        await rig.ask(
            EndTransaction(
                producer_group="PG",
                queue_offset=state.queue_offset,
                physical_offset=state.physical_offset,
                commit_or_rollback=how,
                msg_id=state.msg_id or "",
                from_transaction_check=True,
            ),
        )
    assert delivered(rig) == [b"body"]
    assert len(rig.broker.transactions.table) == 0


async def test_the_original_can_still_be_ended_after_a_question(rig: Rig) -> None:
    client = online(rig)
    placed = half(rig)
    await check(rig)
    [(copy, _)] = await asked(client)
    await end(rig, placed)
    await end(rig, placed, queue_offset=copy.queue_offset, physical_offset=copy.physical_offset)
    assert delivered(rig) == [b"body"]


async def test_nobody_to_ask_is_no_question(rig: Rig) -> None:
    half(rig)
    for _ in range(SETTINGS.check_max + 2):
        await check(rig)
    assert rig.broker.store.max_offset(names.HALF_TOPIC, 0) == 1
    client = online(rig)
    await check(rig)
    [(_, shown)] = await asked(client)
    assert shown.properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_after_the_last_question_it_is_given_up_and_can_be_resumed(rig: Rig) -> None:
    client = online(rig)
    half(rig)
    for _ in range(SETTINGS.check_max + 2):
        await check(rig)
    assert len(await asked(client)) == SETTINGS.check_max
    [message] = rig.stored(names.HALF_CHECKED_OUT_TOPIC)
    assert (message.body, message.properties["TRANSACTION_CHECK_TIMES"]) == (b"body", str(SETTINGS.check_max))
    assert rig.broker.transactions.open_count == 0
    assert delivered(rig) == []
    message_id = f"{rig.broker.addresses.packed.hex().upper()}{message.physical_offset:016X}"
    answer = await rig.ask(ResumeCheckHalfMessage(msg_id=message_id))
    assert answer.code == 0
    await check(rig)
    [(_, shown)] = await asked(client)
    assert shown.properties["TRANSACTION_CHECK_TIMES"] == "1"


@pytest.mark.parametrize("message_id", [None, "x", "7F00000100002A9F0000000000FFFFFF"])
async def test_what_cannot_be_resumed(rig: Rig, message_id: str | None) -> None:
    answer = await rig.ask(ResumeCheckHalfMessage(msg_id=message_id))
    assert answer.code == 1


async def test_who_wants_immunity_is_asked_later(rig: Rig) -> None:
    client = online(rig)
    half(rig, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    await check(rig, 30)
    assert await asked(client) == []
    await check(rig, 31)
    assert len(await asked(client)) == 1


# --- Over restarts ---


def restarted(rig: Rig) -> TransactionCoordinator:
    """What the next run of the broker finds."""
    broker = rig.broker
    found = TransactionCoordinator(
        live=broker.live,
        clock=broker.clock,
        store=broker.store,
        host=broker.addresses.packed,
        topics=broker.topics,
        offsets=broker.offsets,
        producers=broker.producers,
        delayed=DelayedMessages(broker.delay_levels, broker.timers),
        restore_topics=broker.restoration.restore_undeleted,
        stats=broker.stats,
        read_cold=broker.read_cold,
    )
    found.load()
    return found


async def test_what_is_open_is_found_again(rig: Rig) -> None:
    placed = [half(rig, f"K{number}", b"%d" % number) for number in range(20)]
    for number in (0, 1, 2, 5, 7):
        await end(rig, placed[number], COMMIT if number % 2 else ROLLBACK)
    rig.broker.transactions.save_progress()
    assert rig.broker.offsets.query(names.HALF_TOPIC, TRANSACTION_GROUP, 0) == 3
    expected = [number for number in range(20) if number not in (0, 1, 2, 5, 7)]
    assert [each.queue_offset for each in restarted(rig).table] == expected
    for number in expected:
        await end(rig, placed[number])
    rig.broker.transactions.save_progress()
    assert rig.broker.offsets.query(names.HALF_TOPIC, TRANSACTION_GROUP, 0) == 20
    assert rig.broker.offsets.query(names.HALF_OP_TOPIC, TRANSACTION_GROUP, 0) == 20
    assert len(restarted(rig).table) == 0


async def test_a_commit_without_its_op_message_is_finished_at_the_start(rig: Rig) -> None:
    """Killed between the two: the commit is the last record of the log."""
    half(rig, "K0")
    placed = half(rig)
    record = rig.broker.transactions.read_now(placed.physical_offset)
    assert record is not None
    commit = record.committed()
    assert commit is not None
    rig.append(commit)
    assert rig.stored(names.HALF_OP_TOPIC) == []
    found = restarted(rig)
    assert [each.key[0] for each in found.table] == ["K0"]
    assert [op.body for op in rig.stored(names.HALF_OP_TOPIC)] == [b"1,"]
    assert delivered(rig) == [b"body"]


async def test_a_commit_that_is_refused_leaves_its_transaction_open(rig: Rig) -> None:
    """The two are one append: the op message alone would lose the message."""
    placed = half(rig)
    log = rig.broker.store.log
    allowed, log.message_bytes_max = log.message_bytes_max, len(b"body") - 1
    assert (await end(rig, placed)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (rig.stored(names.HALF_OP_TOPIC), delivered(rig)) == ([], [])
    assert [each.key for each in restarted(rig).table] == [each.key for each in rig.broker.transactions.table]
    assert rig.broker.transactions.open_count == 1
    log.message_bytes_max = allowed
    await end(rig, placed)
    assert (len(rig.stored(names.HALF_OP_TOPIC)), delivered(rig)) == (1, [b"body"])
    assert rig.broker.transactions.open_count == 0


async def test_apaches_ops_and_copies_are_understood(rig: Rig) -> None:
    for number in range(3):
        half(rig, f"K{number}")
    half(rig, "K9", TRAN_PREPARED_QUEUE_OFFSET="1")
    rig.append(PutMessage(names.HALF_OP_TOPIC, 0, b"0,1,"))
    rig.append(PutMessage(names.HALF_OP_TOPIC, 0, b"7"))
    assert [each.key[0] for each in restarted(rig).table] == ["K2"]


async def test_5000_open_transactions_are_asked_about(rig: Rig) -> None:
    client = online(rig)
    for number in range(5000):
        half(rig, f"K{number}")
    await check(rig)
    assert len(await asked(client)) == 5000
    assert rig.broker.transactions.open_count == 5000
    await end(rig, half(rig, "last"))
    assert delivered(rig) == [b"body"]


async def test_commits_are_timed_and_what_is_open_is_counted_by_topic(rig: Rig) -> None:
    transactions = rig.broker.transactions
    first, second, third = (half(rig, key) for key in ("K1", "K2", "K3"))
    assert transactions.open_by_topic() == {names.HALF_TOPIC: 3}  # nobody has looked at them yet
    rig.clock.advance(61_000)
    await end(rig, first, msg_id="K1")
    await end(rig, second, ROLLBACK, msg_id="K2")
    assert transactions.open_by_topic() == {"T": 1}
    times = transactions.commit_times["T"]
    assert (times.counts[2], times.count, times.sum) == (1, 1, 61)
    await end(rig, third, msg_id="K3")
    await end(rig, third, msg_id="K3")  # once more: it is over
    assert (transactions.open_by_topic(), times.count) == ({}, 2)


async def test_who_has_not_looked_knows_of_no_open_transactions() -> None:
    with rigged() as slave:
        half(slave)
        assert slave.broker.transactions.open_by_topic() == {}
