"""Pure. How safe the last master was whose copy a store is: a promoted slave must not be less safe silently.

A slave records it when it has joined its master. The record stays when the slave is started as a master.
"""

from collections.abc import Callable, Iterable

import msgspec

from skylark.broker.metadata_json import Encode, decode_metadata, encode_metadata
from skylark.settings import BrokerRole, BrokerSettings, FlushMode

LAST_MASTER_FILE = "lastMaster.json"


class MasterSafety(msgspec.Struct, rename="camel", frozen=True):
    """Settings of a master on which depends what a reply promises. RocketMQ's names."""

    broker_role: str = ""
    flush_disk_type: str = ""
    in_sync_replicas: int | None = None

    @property
    def is_sync_master(self) -> bool:
        return self.broker_role == BrokerRole.SYNC_MASTER.value

    def shortfalls(self, settings: BrokerSettings) -> list[str]:
        """Return in what a master with these settings is less safe, as sentences."""
        found = []
        if self.is_sync_master and settings.role is BrokerRole.ASYNC_MASTER:
            found.append("brokerRole is ASYNC_MASTER and was SYNC_MASTER: replies do not wait for a slave")
        if self.flush_disk_type == FlushMode.SYNC.value and settings.store.flush_mode is not FlushMode.SYNC:
            found.append("flushDiskType is ASYNC_FLUSH and was SYNC_FLUSH: replies do not wait for the disk")
        here = settings.replication.in_sync_replicas
        if self.is_sync_master and (self.in_sync_replicas or 0) > max(here or 0, 1):
            now = "not set" if here is None else str(here)
            found.append(f"inSyncReplicas is {now} and was {self.in_sync_replicas}")
        return found


class LastMaster:
    """The record, and its file."""

    def __init__(self) -> None:
        self.safety = MasterSafety()
        self.on_change: Callable[[], None] = lambda: None

    def note(self, config: Iterable[tuple[str, str]]) -> None:
        """Take the settings of the master that this slave has joined."""
        known = dict(config)
        replicas = known.get("inSyncReplicas", "")
        found = MasterSafety(
            known.get("brokerRole", ""),
            known.get("flushDiskType", ""),
            int(replicas) if replicas.isdecimal() else None,
        )
        if found != self.safety:
            self.safety = found
            self.on_change()

    def snapshot(self) -> Encode:
        safety = self.safety
        return lambda: encode_metadata(safety)

    def load(self, data: bytes) -> None:
        """Raises ValueError."""
        self.safety = decode_metadata(data, MasterSafety)
