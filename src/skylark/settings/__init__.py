"""Typed settings. Frozen, validated when made, passed down; nothing below this package reads the environment.

Each field names the key that RocketMQ's configuration files use for it. `settings.loading` makes settings of
files, environment and flags; `settings.live` holds those that change while a server runs.
"""

from skylark.settings.broker import BrokerSettings
from skylark.settings.fields import setting
from skylark.settings.name_server import NameServerSettings
from skylark.settings.replication import BrokerRole, ReplicationSettings
from skylark.settings.store import (
    DELAY_LEVELS,
    FlushMode,
    StoreSettings,
    parse_delay_levels,
    parse_hours,
)

__all__ = [
    "DELAY_LEVELS",
    "BrokerRole",
    "BrokerSettings",
    "FlushMode",
    "NameServerSettings",
    "ReplicationSettings",
    "StoreSettings",
    "parse_delay_levels",
    "parse_hours",
    "setting",
]
