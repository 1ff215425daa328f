"""Pure. Usage errors, exit codes, and a one-line hint for each kind of error."""

from __future__ import annotations

import errno
from collections.abc import Callable

from skylark.errors import (
    BadName,
    BrokerError,
    ConnectFailed,
    MessageTooLarge,
    NoPermission,
    NoRoute,
    RequestTimeout,
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
    """One clear sentence; the command ends with exit code 2."""


NOT_SUPPORTED, CONSUMER_NOT_ONLINE = 3, 206
PORT_TAKEN = "another server has it: stop that one, or choose other ports, which --help names; 0 is any"
CANNOT_CHANGE = "cannot be changed while"
"""What servers remark on settings that are fixed."""


def _permission(error: Exception | None) -> str:
    if CANNOT_CHANGE in str(error):
        return "only live settings can be; the others are for the server's file or flags, before it starts"
    return "`skylark topic config TOPIC` and `skylark broker config BROKER` show permissions"


_BY_CLASS: tuple[tuple[type[RocketMQError], Callable[[Exception | None], str]], ...] = (
    (NoRoute, lambda error: f"`skylark topic list` shows what there is; {_create(error)}"),
    (
        ConnectFailed,
        lambda error: "is it running? `skylark serve` starts servers here; `skylark doctor` looks for faults",
    ),
    (RequestTimeout, lambda error: "it may be overloaded or stopped; `skylark doctor` looks for faults"),
    (
        SubscriptionGroupNotExist,
        lambda error: "`skylark group list` shows what there is; `skylark group create GROUP` makes one",
    ),
    (NoPermission, _permission),
    (BadName, lambda error: "letters, digits, and the characters % | _ - make a name"),
    (
        MessageTooLarge,
        lambda error: "send a reference to the data instead, or raise the limits of clients and brokers",
    ),
    (SomeServersFailed, lambda error: "what is done is done; say the same again when the others are back"),
    (StoreLocked, lambda error: "one server has it open already: stop that one or choose another directory"),
)


def hint(error: Exception) -> str | None:
    """What the person can do, None if the error says it itself. Causes count where they say more."""
    if isinstance(error, BrokerError) and error.code == CONSUMER_NOT_ONLINE:
        return "nobody of the group is connected; `skylark group status GROUP` shows how far it is"
    if isinstance(error, BrokerError) and error.code == NOT_SUPPORTED:
        return (
            "is it the right kind of server? --namesrv takes name servers, BROKER and --broker take brokers"
        )
    if isinstance(error, SettingsError) and error.name == "name_servers":
        return "say --namesrv HOST:PORT or set NAMESRV_ADDR"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return PORT_TAKEN
    if isinstance(error, PermissionError):
        return "this user may not: change the owner or the mode of the file, or choose another place"
    advice = hint_of_kind(type(error), error)
    cause = error.__cause__
    return advice or (hint(cause) if isinstance(cause, Exception) else None)


def hint_of_kind(kind: type[Exception], error: Exception | None = None) -> str | None:
    """What can be done about errors of a kind, of this one if it is given."""
    for known, advice in _BY_CLASS:
        if issubclass(kind, known):
            return advice(error)
    return None


def _create(error: Exception | None) -> str:
    return f"`skylark topic create {getattr(error, 'topic', 'TOPIC')}` makes it"
