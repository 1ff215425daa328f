"""Pure.

Retry policy: what to do after a failed attempt. Errors carry the policy as flags; it is applied here only.
"""

from __future__ import annotations

from dataclasses import dataclass

from skylark.errors import (
    BrokerError,
    ConnectFailed,
    GoAway,
    RemotingError,
    RocketMQError,
    ServiceNotAvailable,
    SystemBusy,
)


@dataclass(frozen=True, slots=True)
class RetryStep:
    """What to do next: give up, or retry, perhaps after refreshing the route."""

    give_up: bool
    refresh_route: bool = False


GIVE_UP = RetryStep(give_up=True)
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0
MASTER_PAUSE_S = 0.02
MASTER_PAUSE_S_MAX = 0.5
"""Between two questions for the route while a broker has no master: an election takes about 50 ms,
after the time in which a silent master counts as alive."""


def next_step(error: RocketMQError, *, attempts_left: int, time_left_s: float) -> RetryStep:
    """Decide after an error, from its flags `retriable` and `refresh_route`."""
    if not error.retriable or attempts_left <= 0 or time_left_s <= 0:
        return GIVE_UP
    return RetryStep(give_up=False, refresh_route=error.refresh_route)


def is_transient(error: RocketMQError) -> bool:
    """Return whether the same server may answer later: network failure, server busy or stopping."""
    return isinstance(error, RemotingError | SystemBusy | ServiceNotAvailable | GoAway)


def may_be_done(error: RocketMQError) -> bool:
    """Return whether the broker may have executed the request although no valid reply arrived."""
    return isinstance(error, RemotingError) and not isinstance(error, ConnectFailed)


def is_reachable(error: RocketMQError) -> bool:
    """Return whether a broker with this error is preferred to one that replied with an error."""
    return not isinstance(error, BrokerError)


def pause_s(failures: int, *, has_other_broker: bool) -> float:
    """Return the delay before the next attempt: none if it can go to another broker.

    A broker that restarts needs a moment; retrying at once would only use up the attempts.
    """
    return 0.0 if has_other_broker else min(PAUSE_S * 2 ** (failures - 1), PAUSE_S_MAX)
