"""Settings of a store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from skylark.errors import SettingsError
from skylark.settings.fields import check_ranges, setting

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class FlushMode(Enum):
    """When a message counts as stored: after the append (a machine crash may lose it) or after fsync."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Layout, flushing, reading and cleaning of a store directory."""

    path: Path = setting(Path("skylark-data"), "storePathRootDir")
    commit_log_path: Path | None = setting(None, "storePathCommitLog")
    commit_log_file_bytes: int = setting(1 << 30, "mappedFileSizeCommitLog", 4096)
    consume_queue_file_bytes: int = setting(6_000_000, "mappedFileSizeConsumeQueue", 20)
    batch_consume_queue_file_bytes: int = setting(13_800_000, "mapperFileSizeBatchConsumeQueue", 46)
    index_enabled: bool = setting(True, "messageIndexEnable")
    index_slots: int = setting(5_000_000, "maxHashSlotNum", 1)
    index_items: int = setting(20_000_000, "maxIndexNum", 2)

    flush_mode: FlushMode = setting(FlushMode.ASYNC, "flushDiskType")
    flush_interval_ms: int = setting(500, "flushIntervalCommitLog", 1, live=True)
    flush_least_pages: int = setting(4, "flushCommitLogLeastPages", 0, live=True)
    flush_thorough_interval_ms: int = setting(10_000, "flushCommitLogThoroughInterval", 1, live=True)
    sync_flush_timeout_ms: int = setting(5000, "syncFlushTimeout", 1)
    queue_flush_interval_ms: int = setting(1000, "flushIntervalConsumeQueue", 1, live=True)
    queue_flush_thorough_interval_ms: int = setting(60_000, "flushConsumeQueueThoroughInterval", 1, live=True)
    unflushed_bytes_max: int = setting(256 << 20, "unflushedBytesMax", 1 << 20, live=True)
    append_slow_ms: int = setting(1000, "osPageCacheBusyTimeOutMills", 1, live=True)

    message_bytes_max: int = setting(4 << 20, "maxMessageSize", 1, 60 << 20)
    append_crc_property: bool = setting(False, "enabledAppendPropCRC")
    verify_crc_property: bool = setting(False, "forceVerifyPropCRC")
    delay_levels: str = setting(DELAY_LEVELS, "messageDelayLevel")

    transfer_bytes_in_memory: int = setting(262_144, "maxTransferBytesOnMessageInMemory", 1, live=True)
    transfer_count_in_memory: int = setting(32, "maxTransferCountOnMessageInMemory", 1, live=True)
    transfer_bytes_on_disk: int = setting(65_536, "maxTransferBytesOnMessageInDisk", 1, live=True)
    transfer_count_on_disk: int = setting(8, "maxTransferCountOnMessageInDisk", 1, live=True)
    memory_share_percent: int = setting(40, "accessMessageInMemoryMaxRatio", 1, 100)
    filter_scan_bytes: int = setting(16_000, "maxFilterMessageSize", 20, live=True)
    query_messages_max: int = setting(64, "maxMsgsNumBatch", 1, live=True)

    delete_hours: str = setting("04", "deleteWhen", live=True)
    reserved_hours: int = setting(72, "fileReservedTime", 0, live=True)
    clean_first_delay_ms: int = setting(60_000, "cleanResourceFirstDelay", 0)
    clean_interval_ms: int = setting(10_000, "cleanResourceInterval", 1, live=True)
    delete_pause_ms: int = setting(100, "deleteCommitLogFilesInterval", 0, live=True)
    delete_files_max: int = setting(10, "deleteFileBatchMax", 1, live=True)
    disk_clean_percent: int = setting(75, "diskMaxUsedSpaceRatio", 10, 95, live=True)
    disk_force_percent: int = setting(85, "diskSpaceCleanForciblyRatio", 30, 85, live=True)
    disk_full_percent: int = setting(90, "diskSpaceWarningLevelRatio", 35, 90, live=True)

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, unit in (("consume_queue_file_bytes", 20), ("batch_consume_queue_file_bytes", 46)):
            object.__setattr__(self, name, -(-getattr(self, name) // unit) * unit)
        parse_delay_levels(self.delay_levels)
        parse_hours(self.delete_hours)

    @property
    def commit_log_directory(self) -> Path:
        return self.commit_log_path or self.path / "commitlog"

    @property
    def syncs_every_put(self) -> bool:
        return self.flush_mode is FlushMode.SYNC


def parse_delay_levels(text: str) -> list[int]:
    """Parse delay levels into milliseconds, level 1 first. Raises SettingsError."""
    levels = []
    for word in text.split():
        number, unit = word[:-1], word[-1]
        if unit not in _DELAY_UNITS_MS or not number.isdecimal():
            raise SettingsError("delay_levels", f"invalid level {word!r}; use a number with s, m, h or d")
        levels.append(int(number) * _DELAY_UNITS_MS[unit])
    if not levels:
        raise SettingsError("delay_levels", "no level given; use a list such as 1s 5s 10s")
    return levels


def parse_hours(text: str) -> set[int]:
    """Parse hours of the day, separated by `;`. Raises SettingsError."""
    try:
        hours = {int(word) for word in text.split(";") if word.strip()}
    except ValueError as error:
        raise SettingsError("delete_hours", f"invalid hours {text!r}; use a list such as 04;16") from error
    if not hours <= set(range(24)):
        raise SettingsError("delete_hours", f"invalid hours {text!r}; use 0 to 23")
    return hours
