"""Fields of settings: RocketMQ's key, allowed range, and whether the value may change at run time."""

from __future__ import annotations

from dataclasses import Field, field, fields
from typing import Any

from skylark.errors import SettingsError

PORT_MAX = 0xFFFF
FAST_PORT_DISTANCE = 2
"""A broker's fast port (RocketMQ: VIP channel) is this far below its main port."""


def setting(
    default: Any,
    java: str,
    low: float | None = None,
    high: float | None = None,
    *,
    live: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field with its RocketMQ key and its allowed range, both ends included.

    A `live` setting may change while the server runs: read it at each use (see `LiveSettings`). A `secret` is
    never shown.
    """
    metadata = {"java": java, "low": low, "high": high, "live": live, "secret": secret}
    return field(default=default, metadata=metadata, repr=not secret)


def allowed_range(spec: Field[Any]) -> str:
    """Return the range of a setting in words, empty if it has none."""
    low, high = spec.metadata.get("low"), spec.metadata.get("high")
    if low is None:
        return ""
    return f"at least {low}" if high is None else f"{low} to {high}"


def check_address(address: str, name: str) -> None:
    """Raise SettingsError under this name unless the address is host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise SettingsError(name, f"invalid address {address!r}; use host:port")


def check_ranges(settings: Any) -> None:
    """Raise SettingsError for the first number outside its range."""
    for spec in fields(settings):
        value = getattr(settings, spec.name)
        if value is not None:
            check_range(spec, value, spec.name)


def check_range(spec: Field[Any], value: Any, name: str) -> None:
    """Raise SettingsError under this name for a number outside the range of a setting."""
    low, high = spec.metadata.get("low"), spec.metadata.get("high")
    if (low is not None and value < low) or (high is not None and value > high):
        raise SettingsError(name, f"{value} is out of range; use {allowed_range(spec)}")
