"""Settings of a broker as one of several replicas."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from skylark.settings.fields import check_address, check_ranges, setting

BATCH_BYTES_MAX = 4 << 20
"""A slave of Apache's has a buffer of this size for one frame."""


class BrokerRole(Enum):
    """Whether sends are taken, and whether their answers wait for a slave."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, kw_only=True)
class ReplicationSettings:
    """How a master serves its slaves, and how a slave follows its master."""

    slave_of: str = setting("", "slaveOf")
    replica_address: str = setting("", "haMasterAddress")
    force_master: bool = setting(False, "forceMaster")

    heartbeat_interval_ms: int = setting(5000, "haSendHeartbeatInterval", 1)
    idle_timeout_ms: int = setting(20_000, "haHousekeepingInterval", 1)
    reconnect_interval_ms_max: int = setting(5000, "haReconnectIntervalMax", 1)
    batch_bytes: int = setting(128 << 10, "haTransferBatchSize", 1, BATCH_BYTES_MAX)
    flow_control: bool = setting(False, "haFlowControlEnable", live=True)
    bytes_per_s_max: int = setting(100 << 20, "maxHaTransferByteInSecond", 1, live=True)
    connections_max: int = setting(16, "haConnectionsMax", 1)
    overlap_bytes: int = setting(1 << 20, "haOverlapBytes", 1)

    ack_timeout_ms: int = setting(3000, "slaveTimeout", 1, live=True)
    lag_bytes_max: int = setting(256 << 20, "haMaxGapNotInSync", 0, live=True)
    in_sync_replicas: int | None = setting(None, "inSyncReplicas", 1)
    min_in_sync_replicas: int = setting(1, "minInSyncReplicas", 1)
    auto_in_sync_replicas: bool = setting(False, "enableAutoInSyncReplicas")

    metadata_interval_ms: int = setting(10_000, "slaveMetadataSyncPeriod", 1)
    offset_check: bool = setting(False, "offsetCheckInSlave", live=True)

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("slave_of", "replica_address"):
            if address := getattr(self, name):
                check_address(address, name)
