"""What a verification finds and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

FINDINGS_MAX = 1000
NOTES_MAX = 100


class FindingKind(Enum):
    """What is wrong, by file kind."""

    LOG_FILE = "commit-log-file"
    LOG_HOLE = "commit-log-hole"
    LOG_TAIL = "commit-log-tail"
    RECORD = "record"
    CRC_PROPERTY = "crc-property"
    QUEUE_FILE = "consume-queue-file"
    QUEUE_MISSING = "consume-queue-missing"
    UNIT_MISSING = "unit-missing"
    UNIT_WRONG = "unit-wrong"
    INDEX_FILE = "index-file"
    INDEX_CHAIN = "index-chain"
    INDEX_ITEM = "index-item"
    INDEX_KEY = "index-key-missing"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: the file, the byte in it where that begins, and a sentence."""

    kind: FindingKind
    path: Path
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.path} at byte {self.position}: {self.reason}"


@dataclass(slots=True)
class Counts:
    """What was looked at."""

    log_files: int = 0
    log_bytes: int = 0
    records: int = 0
    queues: int = 0
    units: int = 0
    blank_units: int = 0
    """Units that stand for no record: the messages are lost, and the queue says so."""
    index_files: int = 0
    index_items: int = 0
    config_files: int = 0
    waiting: int = 0
    """Records that a running or killed store has not given their unit yet: it will, or recovery does."""
    unindexed: int = 0
    """Records with keys outside the index's range."""
    left_over: int = 0
    """Records of deleted topics."""


@dataclass(slots=True)
class Verification:
    """The result: every finding counted, the first ones kept. `notes` are things to know, not faults."""

    findings_max: int = FINDINGS_MAX
    findings: list[Finding] = field(default_factory=list)
    by_kind: Counter[FindingKind] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    @property
    def total(self) -> int:
        return self.by_kind.total()

    @property
    def is_clean(self) -> bool:
        return not self.by_kind

    def add(self, kind: FindingKind, path: Path, position: int, reason: str) -> None:
        self.by_kind[kind] += 1
        if len(self.findings) < self.findings_max:
            self.findings.append(Finding(kind, path, position, reason))

    def note(self, sentence: str) -> None:
        if len(self.notes) < NOTES_MAX and sentence not in self.notes:
            self.notes.append(sentence)
