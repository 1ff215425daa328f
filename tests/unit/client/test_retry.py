"""What comes after a failed attempt."""

import pytest

from skylark.client.retry import (
    GIVE_UP,
    PAUSE_S_MAX,
    RetryStep,
    is_reachable,
    is_transient,
    may_be_done,
    next_step,
    pause_s,
)
from skylark.errors import BrokerError, BrokerUnknown, ConnectFailed, ConnectionLost, NoRoute, RequestTimeout

AGAIN = RetryStep(give_up=False)
AGAIN_WITH_ROUTE = RetryStep(give_up=False, refresh_route=True)


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (ConnectFailed("a", "refused"), AGAIN),
        (ConnectionLost("a"), AGAIN),
        (RequestTimeout("a", "SEND", 1), AGAIN),
        (BrokerError.for_code(2), AGAIN_WITH_ROUTE),
        (BrokerError.for_code(14), AGAIN_WITH_ROUTE),
        (BrokerError.for_code(17), AGAIN_WITH_ROUTE),
        (BrokerUnknown("a"), AGAIN_WITH_ROUTE),
        (BrokerError.for_code(13), GIVE_UP),
        (BrokerError.for_code(4242), GIVE_UP),
        (NoRoute("t"), GIVE_UP),
    ],
)
def test_the_error_says_whether_to_try_again(error: BrokerError, step: RetryStep) -> None:
    assert next_step(error, attempts_left=1, time_left_s=1.0) == step
    assert GIVE_UP.give_up
    assert next_step(error, attempts_left=0, time_left_s=1.0) == GIVE_UP
    assert next_step(error, attempts_left=1, time_left_s=0.0) == GIVE_UP


def test_only_what_may_have_reached_the_broker_may_be_done() -> None:
    assert may_be_done(ConnectionLost("a"))
    assert may_be_done(RequestTimeout("a", "SEND", 1))
    assert not may_be_done(ConnectFailed("a", "refused"))
    assert not may_be_done(BrokerError(1))


def test_a_broker_that_refuses_is_worse_than_one_that_is_away() -> None:
    assert not is_reachable(BrokerError(1))
    assert is_reachable(ConnectFailed("a", "refused"))


def test_only_the_same_broker_is_given_a_moment() -> None:
    assert pause_s(1, has_other_broker=True) == 0
    pauses = [pause_s(failures, has_other_broker=False) for failures in range(1, 8)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, PAUSE_S_MAX, PAUSE_S_MAX]


@pytest.mark.parametrize("code", [2, 14, 1500])
def test_a_busy_or_stopping_server_may_answer_later(code: int) -> None:
    assert is_transient(BrokerError.for_code(code))


def test_a_lost_connection_may_come_back_and_a_refusal_stays() -> None:
    assert is_transient(ConnectionLost("a"))
    assert is_transient(ConnectFailed("a", "refused"))
    assert not is_transient(BrokerError.for_code(13))
    assert not is_transient(NoRoute("t"))
