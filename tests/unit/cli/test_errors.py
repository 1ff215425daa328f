"""What to do about an error."""

from __future__ import annotations

import errno

import pytest

from skylark.cli.errors import UsageError, hint
from skylark.errors import (
    BadName,
    BrokerError,
    ConnectFailed,
    NoRoute,
    NotANameServer,
    NotWritable,
    SendFailed,
    SettingsError,
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoRoute("orders"), "skylark topic create orders"),
        (NotWritable("orders"), "skylark topic update orders --permission rw"),
        (NotANameServer("h:10911", "GET_ROUTEINFO_BY_TOPIC"), "pass the address of a name server"),
        (ConnectFailed("h:1", "refused"), "skylark serve"),
        (BrokerError.for_code(26, "no group"), "skylark group create"),
        (BrokerError.for_code(206, "not online"), "no consumer of the group is connected"),
        (BrokerError.for_code(3, "request type 206 not supported"), "--namesrv takes name servers"),
        (BrokerError.for_code(16, "no"), "permissions"),
        (BrokerError.for_code(16, "cannot be changed while the broker runs: listenPort"), "and restart it"),
        (SettingsError("name_servers", "none"), "NAMESRV_ADDR"),
        (BadName("topic", "a b", "bad"), "letters, digits"),
        (OSError(errno.EADDRINUSE, "address already in use"), "choose other ports"),
        (OSError(errno.EACCES, "Permission denied"), "owner or the mode"),
    ],
)
def test_an_error_has_a_hint(error: Exception, words: str) -> None:
    assert words in (hint(error) or "")


def test_what_caused_a_failure_is_asked_too() -> None:
    error = SendFailed("orders", (), 1, "no broker")
    error.__cause__ = ConnectFailed("h:1", "refused")
    assert "skylark serve" in (hint(error) or "")


@pytest.mark.parametrize("error", [UsageError("x"), OSError(2, "x"), SettingsError("port", "is bad")])
def test_what_says_it_itself_has_none(error: Exception) -> None:
    assert hint(error) is None
