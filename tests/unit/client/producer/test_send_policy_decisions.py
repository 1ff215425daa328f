"""What becomes of a send: queue, attempts, deadlines, retries, pauses, hooks and the final error."""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from skylark.client.producer.message_encoder import EncodedBatch, EncodedMessage, MessageEncoder
from skylark.client.producer.queue_selectors import RoundRobin, SendTarget
from skylark.client.producer.send_hooks import SendContext, SendHook
from skylark.client.producer.send_policy import PendingSend, SendPolicy, vip_address
from skylark.client.session.routes import TopicRoute
from skylark.errors import (
    BadMessage,
    BrokerUnknown,
    ConnectFailed,
    ConnectionLost,
    NotWritable,
    SendFailed,
    SystemBusy,
)
from skylark.model.message import Message, decode_properties
from skylark.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.settings.client import ProducerSettings
from tests.unit.client.keys import GivenKeys

LOST = ConnectionLost("a:1")
BUSY = SystemBusy(ResponseCode.SYSTEM_BUSY, "busy")


def policy(namespace: str = "", **settings: Any) -> SendPolicy:
    return SendPolicy("G", "client", namespace, ProducerSettings(**settings))


def encoded(*bodies: bytes) -> EncodedMessage | EncodedBatch:
    messages = [Message("T", body) for body in bodies or (b"x",)]
    encoder = MessageEncoder(ProducerSettings(), "", "G", GivenKeys([f"K{n}" for n in range(9)], 2))
    return encoder.encode(messages[0]) if len(messages) == 1 else encoder.encode_batch(messages)


def pending(
    target: SendTarget | None = None, now: float = 100.0, timeout_ms: float | None = None, **settings: Any
) -> PendingSend:
    return PendingSend(encoded(), ProducerSettings(**settings), now, target or SendTarget(), timeout_ms)


def route(
    *brokers: str, queues: int = 2, perm: int = 6, addresses: dict[int, str] | None = None
) -> TopicRoute:
    given = {0: "a:1"} if addresses is None else addresses
    data = TopicRouteData(
        broker_datas=[BrokerData(name, "c", given) for name in brokers],
        queue_datas=[QueueData(name, queues, queues, perm) for name in brokers],
    )
    return TopicRoute.of("T", data)


def begun_last(send: PendingSend) -> str | None:
    return send.failed_broker


def queue(broker: str = "a", number: int = 0, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, broker, number)


# --- The queue ---


def test_a_queue_that_was_given_is_used_and_gets_one_attempt() -> None:
    wanted = queue("z", 7)
    send = pending(SendTarget(queue=wanted), retries=5)
    assert send.attempts_left == 1
    assert policy().choose(send, route("a"), RoundRobin(0), 100.0) == wanted


def test_round_robin_has_the_retries_of_the_settings() -> None:
    assert pending().attempts_left == 3
    assert pending(retries=0).attempts_left == 1


def test_queues_take_turns_and_after_a_failure_another_broker_is_tried() -> None:
    send, robin, decisions = pending(), RoundRobin(-1), policy()
    chosen = [decisions.choose(send, route("a", "b"), robin, 100.0) for _ in range(4)]
    assert chosen == [queue("a"), queue("a", 1), queue("b"), queue("b", 1)]
    decisions.begin(send, queue("a"), "a:1", 100.0)
    assert decisions.choose(send, route("a", "b"), RoundRobin(-1), 100.0) == queue("b")
    assert decisions.choose(send, route("a"), RoundRobin(-1), 100.0) in (queue("a"), queue("a", 1))


def test_slow_brokers_are_avoided_only_if_asked() -> None:
    assert policy().latencies is None
    decisions = policy(avoid_slow_brokers=True)
    assert decisions.latencies is not None
    decisions.latencies.failed("a", 100.0, is_reachable=False)
    chosen = {
        decisions.choose(pending(), route("a", "b"), RoundRobin(-1), 100.0).broker_name for _ in range(4)
    }
    assert chosen == {"b"}
    assert decisions.choose(pending(), route("a", "b"), RoundRobin(-1), 110.0) == queue("a")


def test_a_topic_without_writable_queues_is_refused_and_an_election_awaited() -> None:
    with pytest.raises(NotWritable):
        policy().choose(pending(), route("a", perm=4), RoundRobin(), 100.0)
    with pytest.raises(BrokerUnknown):
        policy().choose(pending(), route("a", addresses={1: "s:1"}), RoundRobin(), 100.0)


def test_a_selector_sees_the_writable_queues_the_message_and_the_argument() -> None:
    seen: list[Any] = []

    def select(queues: Any, message: Message, argument: object) -> MessageQueue:
        seen.append((queues, message.topic, argument))
        return queues[1]  # type: ignore[no-any-return]

    send = pending(SendTarget(selector=select, argument="order-7"))
    assert send.attempts_left == 1
    found = route("a")
    assert policy().choose(send, found, RoundRobin(), 100.0) == queue("a", 1)
    assert seen == [(found.write_queues, "T", "order-7")]


def test_a_selector_sees_topics_without_their_namespace() -> None:
    def select(queues: Any, message: Message, argument: object) -> MessageQueue:
        assert {each.topic for each in queues} == {"T"}
        return queues[1]  # type: ignore[no-any-return]

    data = route("a").data
    named = TopicRoute.of("N%T", data)
    send = pending(SendTarget(selector=select))
    assert policy("N").choose(send, named, RoundRobin(), 100.0) == queue("a", 1, "N%T")


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "return null"),
        (queue("z", 7), "not a writable queue"),
        (1, "not a writable queue"),
        (ValueError("my fault"), "my fault"),
    ],
)
def test_a_selector_that_fails_is_named(result: Any, reason: str) -> None:
    def select(queues: Any, message: Message, argument: object) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(BadMessage, match=reason):
        policy().choose(pending(SendTarget(selector=select)), route("a"), RoundRobin(), 100.0)


# --- Attempts and deadlines ---


def test_the_deadline_is_that_of_the_settings_or_of_the_call() -> None:
    assert pending().deadline == 103.0
    assert pending(timeout_ms=500).deadline == 100.5
    assert pending().bytes == 1


def test_an_attempt_ends_earlier_only_if_another_may_follow() -> None:
    send = pending()
    assert policy().attempt_deadline(send, 100.0) == 103.0
    limited = policy(attempt_timeout_ms=1000)
    assert limited.attempt_deadline(send, 100.5) == 101.5
    assert limited.attempt_deadline(send, 102.5) == 103.0
    send.attempts_left = 1
    assert limited.attempt_deadline(send, 100.5) == 101.5
    send.attempts_left = 0
    assert limited.attempt_deadline(send, 100.5) == 103.0


def test_begin_counts_attempts_and_brokers() -> None:
    send, decisions = pending(), policy()
    assert begun_last(send) is None
    decisions.begin(send, queue("a"), "a:1", 100.5)
    decisions.begin(send, queue("b", 1), "b:1", 101.5)
    assert (send.attempts_left, send.brokers) == (1, ("a", "b"))
    assert begun_last(send) == "b"
    assert (send.queue, send.address, send.tried_at) == (queue("b", 1), "b:1", 101.5)
    assert send.context is None


# --- Failures ---


def test_a_failure_is_retried_until_attempts_or_time_are_over() -> None:
    send, decisions = pending(), policy()
    decisions.begin(send, queue("a"), "a:1", 100.0)
    step = decisions.failed(send, LOST, 102.0)
    assert not step.give_up
    with pytest.raises(SendFailed) as failed:
        decisions.failed(send, LOST, 103.0)
    error = failed.value
    assert (error.topic, error.brokers, error.elapsed_ms, error.code, error.remark) == (
        "T",
        ("a",),
        3000,
        None,
        "",
    )
    assert error.__cause__ is LOST
    assert error.maybe_stored
    send = pending(retries=0)
    decisions.begin(send, queue("a"), "a:1", 100.0)
    with pytest.raises(SendFailed) as failed:
        decisions.failed(send, BUSY, 100.25)
    error = failed.value
    assert (error.code, error.remark, error.elapsed_ms) == (ResponseCode.SYSTEM_BUSY, "busy", 250)
    assert not error.maybe_stored


def test_once_a_message_may_be_stored_it_may_be_for_ever() -> None:
    send, decisions = pending(retries=9), policy()
    decisions.failed(send, ConnectFailed("a:1", "refused"), 100.0)
    assert not send.maybe_stored
    decisions.failed(send, LOST, 100.0)
    decisions.failed(send, BUSY, 100.0)
    assert send.maybe_stored
    assert decisions.without_route(send, 101.0).maybe_stored


def test_without_a_route_in_time_the_error_says_so() -> None:
    error = policy().without_route(pending(), 103.5)
    assert (error.topic, error.brokers, error.elapsed_ms, error.reason) == ("T", (), 3500, "no route in time")
    assert not error.maybe_stored


def test_failures_and_slow_answers_are_noted_in_the_table() -> None:
    decisions = policy(avoid_slow_brokers=True)
    table = decisions.latencies
    assert table is not None
    send = pending(retries=9)
    decisions.failed(send, BrokerUnknown("a"), 100.0)  # before a queue was chosen
    for error, reachable in ((LOST, True), (BUSY, False)):
        decisions.begin(send, queue("a"), "a:1", 100.0)
        decisions.failed(send, error, 100.0)
        assert (table.is_available("a", 100.0), table.is_reachable("a")) == (False, reachable)
    decisions.begin(send, queue("b"), "b:1", 100.0)
    decisions.answered(send, answer(), 100.6)  # 600 ms: avoided for two seconds
    assert not table.is_available("b", 102.5)
    assert table.is_available("b", 102.6)
    decisions.begin(send, queue("c"), "c:1", 100.0)
    decisions.answered(send, answer(), 100.5499)  # not yet 550 ms
    assert table.is_available("c", 100.55)


def test_a_pause_is_made_only_without_another_broker_and_never_beyond_the_deadline() -> None:
    send, decisions = pending(), policy()
    decisions.begin(send, queue("a"), "a:1", 100.0)
    assert decisions.pause_s(send, route("a", "b"), 100.0) == 0
    assert decisions.pause_s(send, route("a"), 100.0) == 0.05
    assert decisions.pause_s(send, None, 100.0) == 0.05
    assert decisions.pause_s(send, route("a"), 102.99) == pytest.approx(0.01)
    assert decisions.pause_s(send, route("a"), 104.0) == 0
    decisions.begin(send, queue("a"), "a:1", 100.0)
    assert decisions.pause_s(send, route("a"), 100.0) == 0.1


def test_a_master_that_is_elected_is_asked_for_ever_less_often() -> None:
    send, decisions = pending(), policy()
    found = [decisions.master_pause_s(send, tries, 100.0) for tries in range(7)]
    assert found == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
    assert decisions.master_pause_s(send, 6, 102.8) == pytest.approx(0.2)
    assert decisions.master_pause_s(send, 6, 104.0) == 0


# --- Replies ---


def answer(code: int = 0, queue_id: int = 1) -> RemotingCommand:
    request = RemotingCommand(310)
    return request.reply(code, fields={"queueId": str(queue_id), "queueOffset": "5", "msgId": "ID"})


def test_receipts_have_the_topic_without_its_namespace() -> None:
    decisions, send = policy("N"), pending()
    send.topic = "N%T"
    decisions.begin(send, queue("a", 1, "N%T"), "a:1", 100.0)
    [receipt] = decisions.answered(send, answer(), 100.1)
    assert (receipt.queue, receipt.queue_offset) == (queue("a", 1), 5)


def test_a_message_stored_less_safely_is_sent_again_only_if_wanted() -> None:
    unsafe = answer(ResponseCode.FLUSH_DISK_TIMEOUT)
    for may_retry, code, attempts, now, wanted in (
        (True, unsafe, 3, 100.0, True),
        (True, unsafe, 2, 102.9, True),
        (True, unsafe, 1, 100.0, False),
        (True, unsafe, 3, 103.0, False),
        (True, answer(), 3, 100.0, False),
        (False, unsafe, 3, 100.0, False),
    ):
        decisions, send = policy(retry_when_not_stored=may_retry), pending()
        send.attempts_left = attempts
        decisions.begin(send, queue("a", 1), "a:1", 100.0)
        receipts = decisions.answered(send, code, 100.0)
        assert decisions.wants_better(send, receipts, now) is wanted
        assert (send.stored == receipts) is wanted


# --- Hooks ---

USER: ContextVar[str] = ContextVar("USER", default="nobody")


class Notes(SendHook):
    def __init__(self) -> None:
        self.before_: list[tuple[int, str]] = []
        self.after_: list[SendContext] = []

    def before(self, context: SendContext) -> None:
        self.before_.append((context.attempt, USER.get()))
        context.add_property("step", str(context.attempt))

    def after(self, context: SendContext) -> None:
        self.after_.append(context)


def hooked(**settings: Any) -> tuple[SendPolicy, Notes]:
    decisions, notes = policy(**settings), Notes()
    decisions.hooks.add(notes)
    return decisions, notes


def test_hooks_see_each_attempt_once_and_its_outcome() -> None:
    decisions, notes = hooked()
    send = pending()
    decisions.begin(send, queue("a"), "a:1", 100.0)
    decisions.failed(send, LOST, 100.5)
    decisions.begin(send, queue("b"), "b:1", 101.0)
    receipts = decisions.answered(send, answer(), 101.25)
    decisions.ended(send, TimeoutError(), 102.0)  # the attempt is over
    decisions.sent_oneway(send, 102.0)
    assert notes.before_ == [(1, "nobody"), (2, "nobody")]
    first, second = notes.after_
    assert (first.error, first.receipts, first.elapsed_ms) == (LOST, [], 500.0)
    assert (second.error, second.receipts, second.elapsed_ms) == (None, receipts, 250.0)
    assert (second.group, second.client_id, second.broker_address) == ("G", "client", "b:1")
    assert (second.queue, second.unique_keys, second.is_oneway) == (queue("b"), ["K0"], False)
    assert decode_properties(send.properties.encode())["step"] == "2"


def test_hooks_run_in_the_context_of_the_caller() -> None:
    decisions, notes = hooked()
    send = pending()
    USER.set("ann")
    send.caller = copy_context()
    USER.set("nobody")
    decisions.begin(send, queue("a"), "a:1", 100.0)
    assert notes.before_ == [(1, "ann")]


def test_an_end_without_a_reply_and_a_one_way_send_are_told() -> None:
    decisions, notes = hooked()
    for number, end in enumerate(("ended", "oneway")):
        send = pending()
        decisions.begin(send, queue("a"), "a:1", 100.0)
        fault = TimeoutError()
        if end == "ended":
            decisions.ended(send, fault, 100.5)
        else:
            decisions.sent_oneway(send, 100.5)
        context = notes.after_[number]
        assert (context.is_oneway, context.error) == (end == "oneway", fault if end == "ended" else None)
        assert context.elapsed_ms == 500


def test_properties_of_hooks_replace_those_of_the_attempt_before() -> None:
    send = pending()
    send.add_properties({"a": "1"}, 1 << 20)
    first = send.properties
    send.add_properties({"a": "1"}, 1 << 20)
    assert send.properties is first
    send.add_properties({"b": "2"}, 1 << 20)
    properties = decode_properties(send.properties.encode())
    assert (properties.get("a"), properties["b"]) == (None, "2")


def test_properties_that_make_a_message_too_large_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    send = pending()
    before = send.properties
    send.add_properties({"a": "x" * 40_000}, 1 << 20)
    assert (send.properties, send.added) == (before, "")
    send.add_properties({"a": "1"}, 0)  # the limit is that of batches, whose bodies hold properties
    assert "a" in decode_properties(send.properties.encode())
    batch = PendingSend(encoded(b"x", b"y"), ProducerSettings(), 100.0)
    body = batch.body
    batch.add_properties({"a": "1"}, len(body))
    assert batch.body == body
    batch.add_properties({"a": "1"}, len(body) + 100)
    assert len(batch.body) > len(body)
    larger = PendingSend(encoded(b"x", b"y"), ProducerSettings(), 100.0)
    larger.add_properties({"a": "1"}, len(batch.body))
    assert larger.body == batch.body, "exactly as much as allowed"
    assert len(caplog.records) == 2


def test_a_frame_asks_for_a_reply_unless_it_is_one_way() -> None:
    decisions, send = policy(), pending()
    decisions.begin(send, queue("a"), "a:1", 100.0)
    plain = b"".join(decisions.frame(send, 7, 1_700_000_000_000))
    assert plain == b"".join(decisions.frame(send, 7, 1_700_000_000_000, is_oneway=False))
    assert plain != b"".join(decisions.frame(send, 7, 1_700_000_000_000, is_oneway=True))


def test_the_fast_port_is_two_below() -> None:
    assert vip_address("10.0.0.1:10911") == "10.0.0.1:10909"
