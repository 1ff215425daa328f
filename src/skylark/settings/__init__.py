"""Typed settings: frozen, validated on construction, passed down. Nothing below this package reads the
environment.

Each field names the key that RocketMQ's configuration files use for it. `loader` builds settings from files,
environment and flags; `live` holds those that change while a server runs. Start with `broker.py`.
"""

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
