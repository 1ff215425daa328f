"""Retention rules: delete by age at the delete hour, by disk usage at any hour, and by force above that."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from skylark.settings import StoreSettings, parse_hours

log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
MANUAL_ROUNDS = 20


class DiskState(Enum):
    """Consequence of the disk usage."""

    FREE = "nothing to do"
    CLEAN = "delete expired files at any hour"
    FORCE = "delete the oldest files whatever their age"
    FULL = "as FORCE, and refuse to store"


def disk_state(used_ratio: float, settings: StoreSettings) -> DiskState:
    percent = round(used_ratio * 100)
    if percent > settings.disk_full_percent:
        return DiskState.FULL
    if percent > settings.disk_force_percent:
        return DiskState.FORCE
    if percent > settings.disk_clean_percent:
        return DiskState.CLEAN
    return DiskState.FREE


@dataclass(frozen=True, slots=True)
class LogFile:
    start: int
    modified_ms: int


def files_to_delete(
    files: list[LogFile], *, now_ms: int, state: DiskState, manual: bool, settings: StoreSettings
) -> list[int]:
    """Return the starts of the files to delete now, oldest first, never the last file."""
    hour = time.localtime(now_ms / 1000).tm_hour
    if state is DiskState.FREE and not manual and hour not in parse_hours(settings.delete_hours):
        return []
    forced = state in (DiskState.FORCE, DiskState.FULL)
    expired = []
    for file in files[:-1][: settings.delete_files_max]:
        if not forced and file.modified_ms + settings.reserved_hours * HOUR_MS > now_ms:
            break
        expired.append(file.start)
    return expired


def unread_of(starts: list[int], file_bytes: int, needed_from: int | None) -> list[int]:
    """Return those of the files that hold records at or after `needed_from`, which the archive needs."""
    if needed_from is None:
        return []
    return [start for start in starts if start + file_bytes > needed_from]


class UnreadFiles:
    """Files that are due while the archive has not read them: they wait, unless the disk needs the space."""

    def __init__(self) -> None:
        self.held = 0
        """Files that wait now."""
        self.lost = 0
        """Files deleted unread since the start."""

    def decide(self, starts: list[int], unread: list[int], state: DiskState) -> list[int]:
        """Return what is deleted now of `starts`, of which `unread` are the last."""
        is_forced = state in (DiskState.FORCE, DiskState.FULL)
        held = 0 if is_forced else len(unread)
        if held and not self.held:
            log.warning("expired files wait for the archive files=%d physical_offset=%d", held, unread[0])
        self.held = held
        if unread and is_forced:
            self.lost += len(unread)
            log.error(
                "disk is full: files are deleted that the archive has not read files=%d physical_offset=%d",
                len(unread),
                unread[0],
            )
        return starts[: len(starts) - held]


class DiskFullFlag:
    """Set above the full mark, cleared at or below the force mark: the gap prevents oscillation."""

    def __init__(self) -> None:
        self.is_set = False

    def update(self, state: DiskState) -> None:
        if state is DiskState.FULL and not self.is_set:
            log.error("disk full: messages are refused until files are deleted")
            self.is_set = True
        elif state in (DiskState.FREE, DiskState.CLEAN) and self.is_set:
            log.info("disk has space again: messages are accepted")
            self.is_set = False


class ManualCleanup:
    """A manual request to delete expired files now; valid for the next rounds."""

    def __init__(self) -> None:
        self._rounds = 0

    def arm(self) -> None:
        self._rounds = MANUAL_ROUNDS

    def take(self) -> bool:
        if not self._rounds:
            return False
        self._rounds -= 1
        return True


def delete_slowly(starts: list[int], delete: Callable[[int], None], pause_s: float) -> None:
    """Delete one file at a time with pauses: deleting a large file keeps the disk busy."""
    for number, start in enumerate(starts):
        if number:
            time.sleep(pause_s)
        delete(start)
