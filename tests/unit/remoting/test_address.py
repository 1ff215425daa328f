"""Addresses."""

import ipaddress
import os
import re
import socket

import pytest

from skylark.errors import SettingsError
from skylark.remoting.address import (
    SERVER_PORTS,
    check_host,
    free_port,
    hold_ports,
    ip_of,
    join_address,
    reason_of,
    split_address,
)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("localhost:9876", "localhost", 9876),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[2001:db8::1]:10911", "2001:db8::1", 10911),
    ],
)
def test_both_ways(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


def test_a_name_has_an_ip_address() -> None:
    assert ip_of("10.0.0.1") == "10.0.0.1"
    assert ip_of("2001:db8::1") == "2001:db8::1"
    assert ipaddress.ip_address(ip_of("localhost")).is_loopback
    with pytest.raises(SettingsError, match=r"cannot resolve no\.\.name"):
        ip_of("no..name")  # no resolver is asked for it


@pytest.mark.parametrize("host", ["192.0.2.1", "no..name", "2001:db8::1"])
def test_where_nobody_can_listen(host: str) -> None:
    with pytest.raises(SettingsError, match=rf"setting host: cannot listen on {re.escape(host)}: \w"):
        check_host(host)


def test_where_servers_listen() -> None:
    for host in ("127.0.0.1", "localhost", "0.0.0.0"):  # noqa: S104 - nothing listens
        check_host(host)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:65536", "host:-1", "[]:1"])
def test_what_is_none(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), os.strerror(111)),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (TimeoutError("timed out"), "timed out"),
        (ValueError("no address"), "no address"),
    ],
)
def test_the_reason_does_not_tell_the_address_again(error: Exception, words: str) -> None:
    assert reason_of(error) == words


def test_ports_that_are_free_together_and_of_no_outgoing_connection() -> None:
    port = free_port("127.0.0.1", -2, 1)
    assert port in SERVER_PORTS
    for each in (port - 2, port, port + 1):
        with socket.create_server(("127.0.0.1", each)):
            pass


def test_ports_that_are_held_are_nobodys() -> None:
    port = free_port("127.0.0.1", 1)
    with hold_ports("127.0.0.1", port, port + 1):
        for each in (port, port + 1):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", each), timeout=60)
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", each))
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError, match="in use"):
        hold_ports("127.0.0.1", port + 1, port)
    with socket.create_server(("127.0.0.1", port + 1)):
        pass  # what was held before the failure is free again
