"""Pure. What to do after a failed attempt: the policy is data on the errors, and applied here alone."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.errors import BrokerError, ConnectFailed, RemotingError, RocketMQError


@dataclass(frozen=True, slots=True)
class RetryStep:
    """What comes next: to give up, or to try again, perhaps with a fresh route."""

    give_up: bool
    refresh_route: bool = False


GIVE_UP = RetryStep(give_up=True)
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0


def next_step(error: RocketMQError, *, attempts_left: int, time_left_s: float) -> RetryStep:
    """Decide after an error. Another attempt goes to another broker, if there is one."""
    if not error.retriable or attempts_left <= 0 or time_left_s <= 0:
        return GIVE_UP
    return RetryStep(give_up=False, refresh_route=error.refresh_route)


def may_be_done(error: RocketMQError) -> bool:
    """Say whether the broker may have done what it was asked although we got no good answer."""
    return isinstance(error, RemotingError) and not isinstance(error, ConnectFailed)


def is_reachable(error: RocketMQError) -> bool:
    """Say whether a broker that failed so is still worth a try before one that refused."""
    return not isinstance(error, BrokerError)


def pause_s(failures: int, *, has_other_broker: bool) -> float:
    """Return how long to wait before the next attempt: not at all if it can go to another broker.

    A broker that is being started again takes a moment; asking it at once would only use up the attempts.
    """
    return 0.0 if has_other_broker else min(PAUSE_S * 2 ** (failures - 1), PAUSE_S_MAX)
