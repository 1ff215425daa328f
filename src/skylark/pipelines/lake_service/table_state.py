"""What a table's archiver last reported of itself, kept in the table's store for `skylark lake status`."""

from __future__ import annotations

import msgspec

from skylark.pipelines.lake.file_store import FileStore

NAME = "state.json"


class TableState(msgspec.Struct):
    """The instance that worked on the table last."""

    instance: str = ""
    at_ms: int = 0
    step: str = ""
    """What it did last."""
    topics: int = 0
    waiting: int = 0
    """Messages that were not committed when the ends of the queues were last asked."""
    messages: int = 0
    """Committed since the instance started."""
    batches: int = 0
    committed_at_ms: int = 0
    complete_at_ms: int = 0
    """The table holds all messages that were stored before this moment."""
    maintained_at_ms: int = 0
    lost: int = 0
    """Messages that brokers deleted before they were archived."""
    errors: int = 0
    error: str = ""
    """The error that stopped the last turn; empty if it succeeded."""
    error_at_ms: int = 0


def read_state(files: FileStore) -> TableState:
    """Raises OSError."""
    try:
        return msgspec.json.decode(files.read(NAME), type=TableState)
    except FileNotFoundError:
        return TableState()


def write_state(files: FileStore, state: TableState) -> None:
    """Raises OSError."""
    files.replace(NAME, msgspec.json.encode(state))
