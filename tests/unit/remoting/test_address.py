"""Addresses."""

import ipaddress

import pytest

from skylark.errors import SettingsError
from skylark.remoting.address import ip_of, join_address, split_address


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
    with pytest.raises(SettingsError, match=r"no\.\.name has no address"):
        ip_of("no..name")  # no resolver is asked for it


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:65536", "host:-1", "[]:1"])
def test_what_is_none(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)
