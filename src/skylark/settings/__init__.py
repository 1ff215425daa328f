"""Typed settings: frozen, validated on construction, passed down. Nothing below this package reads the
environment.

Each field names the key that RocketMQ's configuration files use for it. `loader` builds settings from files,
environment and flags; `live` holds those that change while a server runs. Start with `broker.py`.

The names below are imported when they are used: a client needs neither a broker's settings nor a store's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skylark.settings.broker import BrokerRole, BrokerSettings, ReplicationSettings
    from skylark.settings.fields import setting
    from skylark.settings.name_server import NameServerSettings
    from skylark.settings.store import (
        DELAY_LEVELS,
        FlushMode,
        StoreSettings,
        parse_delay_levels,
        parse_hours,
    )
    from skylark.settings.tls import ClientCertificate, ClientTlsSettings, ServerTlsSettings, TlsMode

__all__ = [
    "DELAY_LEVELS",
    "BrokerRole",
    "BrokerSettings",
    "ClientCertificate",
    "ClientTlsSettings",
    "FlushMode",
    "NameServerSettings",
    "ReplicationSettings",
    "ServerTlsSettings",
    "StoreSettings",
    "TlsMode",
    "parse_delay_levels",
    "parse_hours",
    "setting",
]

_MODULES = ("fields", "tls", "store", "name_server", "broker")
"""Where the names are, the cheapest first."""

if not TYPE_CHECKING:  # a type checker must see no `__getattr__`: it would accept every name

    def __getattr__(name: str) -> Any:
        if name in __all__:
            for module in _MODULES:
                found = importlib.import_module(f"skylark.settings.{module}")
                if hasattr(found, name):
                    globals()[name] = getattr(found, name)
                    return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
