"""Pure. What to do after a failed attempt: the policy is data on the errors, and applied here alone."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.errors import BrokerError, ConnectFailed, RemotingError, RocketMQError


@dataclass(frozen=True, slots=True)
class Step:
    """What comes next: to give up, or to try again, perhaps with a fresh route."""

    give_up: bool
    refresh_route: bool = False


GIVE_UP = Step(give_up=True)


def next_step(error: RocketMQError, *, attempts_left: int, time_left_s: float) -> Step:
    """Decide after an error. Another attempt goes to another broker, if there is one."""
    if not error.retriable or attempts_left <= 0 or time_left_s <= 0:
        return GIVE_UP
    return Step(give_up=False, refresh_route=error.refresh_route)


def may_be_done(error: RocketMQError) -> bool:
    """Say whether the broker may have done what it was asked although we got no good answer."""
    return isinstance(error, RemotingError) and not isinstance(error, ConnectFailed)


def is_reachable(error: RocketMQError) -> bool:
    """Say whether a broker that failed so is still worth a try before one that refused."""
    return not isinstance(error, BrokerError)
