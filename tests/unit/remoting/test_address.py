"""Addresses."""

import pytest

from skylark.remoting.address import join_address, split_address


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


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:65536", "host:-1", "[]:1"])
def test_what_is_none(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)
