"""The error tree: every error says what happened, keeps its facts, and survives a trip between processes."""

import inspect
import pickle
import traceback

import pytest

from skylark import errors
from skylark.errors import BrokerError, RocketMQError

EXAMPLES: list[tuple[RocketMQError, str]] = [
    (errors.SettingsError("flushDiskType", "must be ASYNC_FLUSH or SYNC_FLUSH"), "flushDiskType"),
    (errors.BadSettingsFile("pipeline.yml:7", "there is no 'step'"), "pipeline.yml:7: there"),
    (errors.UnsupportedStore("store", "rocksdbstore holds timers"), "cannot be served: rocksdbstore"),
    (errors.BadJson(17, "expected ':'"), "character 17"),
    (errors.BadBody("zlib", "it is cut short"), "zlib cannot be read: it is cut short"),
    (errors.MalformedFrame("header of 90 bytes in a frame of 12"), "header of 90 bytes"),
    (errors.FrameTooLarge(1 << 30, 1 << 24), "1073741824"),
    (errors.ConnectFailed("127.0.0.1:9876", "refused"), "127.0.0.1:9876"),
    (errors.ConnectFailed("h:1", "refused", "broker-a"), "cannot connect to broker broker-a at h:1: refused"),
    (errors.ConnectFailed("h:1", "refused", is_name_server=True), "cannot connect to name server h:1: "),
    (errors.ConnectionLost("127.0.0.1:9876"), "closed by the peer"),
    (errors.RequestTimeout("127.0.0.1:9876", "GET_MAX_OFFSET", 3000), "within 3000 ms"),
    (BrokerError(29, "bad argument"), "response code 29: bad argument"),
    (errors.CorruptRecord(4711, "crc", expected=1, actual=2), "offset 4711: crc (expected 1, found 2)"),
    (errors.CorruptRecord(4711, "magic code"), "offset 4711: magic code"),
    (errors.OffsetOutOfRange(5, 10, 20), "holds 10 to 20"),
    (errors.MissingFile("commitlog/00000000000000065536"), "00000000000000065536"),
    (errors.BadStoreFile("checkpoint", "12 bytes long"), "checkpoint: 12 bytes"),
    (errors.DiskFull("commitlog", "no space left"), "no space left"),
    (errors.StoreClosed("store"), "closed"),
    (errors.StoreFailed("store", "fsync: input/output error"), "restart"),
    (errors.StoreLocked("store"), "another process"),
    (errors.CannotFollow("its log is shorter"), "cannot follow the master: its log is shorter"),
    (errors.LogsDiverged(4711), "differs from the master's at 4711"),
    (errors.MasterExists("broker-a", "10.0.0.1:10911", "10.0.0.9:9876"), "--slave-of 10.0.0.1:10911"),
    (errors.NoRoute("orders"), "No route info of this topic: orders"),
    (errors.NotWritable("orders"), "topic orders takes no messages: none of its queues is writable"),
    (errors.NotANameServer("h:10911", "GET_ROUTEINFO_BY_TOPIC"), "h:10911 is not a name server"),
    (errors.BrokerUnknown("broker-a"), "The broker[broker-a] not exist"),
    (errors.BadName("topic", "a b", "contains illegal characters"), "'a b': contains illegal"),
    (errors.BadMessage("orders", "the body is empty"), "'orders': the body is empty"),
    (errors.MessageTooLarge(5, 4), "limit of 4"),
    (errors.ClientClosed("producer"), "producer is not running"),
    (errors.AlreadyStarted("producer", "RUNNING"), "service state not OK, maybe started once, RUNNING"),
    (errors.GroupInUse("producer", "PG"), "The producer group[PG] has been created before"),
    (errors.ForkedClient("producer PG", 7, 8), "process 7 and is used in its fork 8"),
    (
        errors.RowsFailed("orders", 3, 9, ((0, 1), (5, 5)), "refused"),
        "3 of 9 rows were not acknowledged by topic orders: rows 0-1, 5-5; the first error: refused",
    ),
    (errors.SendFailed("orders", ("a", "b"), 12, "refused"), "Send [2] times, still failed, cost [12]ms"),
    (errors.SendUnknown("orders", "cancelled"), "unknown"),
    (
        errors.NoReply("orders", 3000, "0A", "c1"),
        "send request message to <orders> OK, but wait reply message timeout, 3000 ms.",
    ),
    (
        errors.SomeServersFailed("delete topic orders", ("a:1",), {"b:1": errors.NoRoute("orders")}),
        "delete topic orders failed at b:1 (No route info of this topic: orders",
    ),
]


@pytest.mark.parametrize(("error", "part"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_is_a_sentence_and_survives_pickling(error: RocketMQError, part: str) -> None:
    assert part in str(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  made two words to the left
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert repr(vars(again)) == repr(vars(error))


def test_every_error_with_facts_has_an_example() -> None:
    with_facts = {
        error
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, RocketMQError)
        and error is not RocketMQError
        and vars(error).keys() & {"__str__", "text"}
    }
    assert with_facts == {type(error) for error, _ in EXAMPLES}


def test_broker_errors_are_retriable_for_exactly_the_eight_codes_of_the_java_producer() -> None:
    retriable = {code for code in range(-2000, 5000) if BrokerError.for_code(code).retriable}
    assert retriable == {1, 2, 14, 16, 17, 204, 205, 1500}


def test_a_broker_error_keeps_code_and_remark_whatever_its_class() -> None:
    error = BrokerError.for_code(17, "topic[orders] not exist")
    assert type(error) is errors.TopicNotExist
    assert (error.code, error.remark, error.refresh_route) == (17, "topic[orders] not exist", True)
    assert type(BrokerError.for_code(4242)) is BrokerError


def test_the_network_is_worth_another_try_and_a_protocol_error_is_not() -> None:
    assert errors.ConnectionLost("a").retriable
    assert not errors.MalformedFrame("b").retriable
    assert not errors.StoreFailed("c", "d").retriable


def test_bad_json_is_a_value_error() -> None:
    assert issubclass(errors.BadJson, ValueError)


def test_advice_is_shown_by_a_traceback_once_also_in_another_process() -> None:
    error = errors.RequestTimeout("a:1", "PULL_MESSAGE", 3000)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  made two words to the left
    shown = "".join(traceback.format_exception(again)).splitlines()
    assert [line for line in shown if "hint" in line] == [f"hint: {errors.RequestTimeout.advice}"]


def test_a_shortened_error_keeps_its_cause_and_the_frames_of_a_foreign_one() -> None:
    def fail() -> None:
        try:
            try:
                next(iter(()))
            except StopIteration as error:
                raise errors.BadMessage("orders", "the selector failed") from error
        except errors.BadMessage as error:
            error.shorten()
            raise

    with pytest.raises(errors.BadMessage) as raised:
        fail()
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][1:] == []
    cause = raised.value.__cause__
    assert isinstance(cause, StopIteration)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["fail"]
