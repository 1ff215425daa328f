"""Failures that a server answers, by its response code."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.errors.root import RocketMQError


@dataclass(eq=False)
class BrokerError(RocketMQError):
    """A broker or name server answered with a response code that means failure."""

    code: int
    remark: str = ""

    def __str__(self) -> str:
        return f"response code {self.code}: {self.remark or 'no remark'}"

    @staticmethod
    def for_code(code: int, remark: str = "") -> BrokerError:
        """Return the error for a response code, of the class that knows its retry policy."""
        return _BROKER_ERRORS.get(code, BrokerError)(code, remark)


class BrokerSystemError(BrokerError):
    """Code 1: the broker failed in a way it has no better code for."""

    retriable = True


class SystemBusy(BrokerError):
    """Code 2: flow control or overload."""

    retriable = True


class MessageIllegal(BrokerError):
    """Code 13: the message breaks a limit or a rule of form."""


class ServiceNotAvailable(BrokerError):
    """Code 14: the store cannot write (disk full, slave, shutdown)."""

    retriable = True


class NoPermission(BrokerError):
    """Code 16: permission bits of broker or topic, or access control."""

    retriable = True


class TopicNotExist(BrokerError):
    """Code 17: no route or no configuration for the topic."""

    retriable = True
    refresh_route = True


class SubscriptionGroupNotExist(BrokerError):
    """Code 26: the consumer group is unknown and may not be created."""


class NoBuyerId(BrokerError):
    """Code 204: historical; still in Java's retry set."""

    retriable = True


class NotInCurrentUnit(BrokerError):
    """Code 205: historical; still in Java's retry set."""

    retriable = True


class NotLeaderForQueue(BrokerError):
    """Code 501: a static topic's queue lives on another broker now."""

    refresh_route = True


class GoAway(BrokerError):
    """Code 1500: the server is shutting down."""

    retriable = True


_BROKER_ERRORS: dict[int, type[BrokerError]] = {
    1: BrokerSystemError,
    2: SystemBusy,
    13: MessageIllegal,
    14: ServiceNotAvailable,
    16: NoPermission,
    17: TopicNotExist,
    26: SubscriptionGroupNotExist,
    204: NoBuyerId,
    205: NotInCurrentUnit,
    501: NotLeaderForQueue,
    1500: GoAway,
}
