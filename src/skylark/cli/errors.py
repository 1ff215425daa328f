"""Pure. Usage errors, exit codes, and a one-line hint for each kind of error."""

from __future__ import annotations

import errno
from collections.abc import Callable

from skylark.errors import (
    BadName,
    BrokerError,
    MessageTooLarge,
    NoPermission,
    NoRoute,
    RocketMQError,
    SettingsError,
    SomeServersFailed,
    StoreLocked,
    SubscriptionGroupNotExist,
)

EXIT_USAGE_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class UsageError(Exception):
    """An invalid or impossible request, in one sentence; the command ends with exit code 2."""


NOT_SUPPORTED, CONSUMER_NOT_ONLINE = 3, 206
PORT_TAKEN = "another server uses it: stop that one, or choose other ports (see --help); 0 is any free port"
CANNOT_CHANGE = "cannot be changed while"
"""In the remark of servers about settings that are fixed."""


def _permission(error: Exception | None) -> str:
    if CANNOT_CHANGE in str(error):
        return (
            "only live settings can be changed; set the others in the server's file or flags, and restart it"
        )
    return "`skylark topic config TOPIC` and `skylark broker config BROKER` show permissions"


_BY_CLASS: tuple[tuple[type[RocketMQError], Callable[[Exception | None], str]], ...] = (
    (NoRoute, lambda error: f"`skylark topic list` lists topics; {_create(error)}"),
    (
        SubscriptionGroupNotExist,
        lambda error: "`skylark group list` lists groups; `skylark group create GROUP` creates one",
    ),
    (NoPermission, _permission),
    (BadName, lambda error: "use letters, digits, and the characters % | _ -"),
    (
        MessageTooLarge,
        lambda error: "send a reference to the data, or raise the limits of clients and brokers",
    ),
    (
        SomeServersFailed,
        lambda error: "the other servers have done it; run the command again when the failed ones are back",
    ),
    (StoreLocked, lambda error: "another server has it open: stop that one, or choose another directory"),
)


def hint(error: Exception) -> str | None:
    """Advice for an error or its cause; None if the error says it itself."""
    if isinstance(error, BrokerError) and error.code == CONSUMER_NOT_ONLINE:
        return "no consumer of the group is connected; `skylark group status GROUP` shows its progress"
    if isinstance(error, BrokerError) and error.code == NOT_SUPPORTED:
        return "check the kind of server: --namesrv takes name servers, BROKER and --broker take brokers"
    if isinstance(error, SettingsError) and error.name == "name_servers":
        return "pass --namesrv HOST:PORT, or set NAMESRV_ADDR"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return PORT_TAKEN
    if isinstance(error, PermissionError):
        return "change the owner or the mode of the file, or choose another place"
    advice = (error.hint if isinstance(error, RocketMQError) else "") or hint_of_kind(type(error), error)
    cause = error.__cause__
    return advice or (hint(cause) if isinstance(cause, Exception) else None)


def hint_of_kind(kind: type[Exception], error: Exception | None = None) -> str | None:
    """Advice for a class of errors, with details of `error` if it is given."""
    if issubclass(kind, RocketMQError) and kind.advice:
        return kind.advice
    for known, advice in _BY_CLASS:
        if issubclass(kind, known):
            return advice(error)
    return None


def _create(error: Exception | None) -> str:
    return f"`skylark topic create {getattr(error, 'topic', 'TOPIC')}` creates it"
