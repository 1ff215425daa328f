"""Progress of a query, as its table records it, and the check that a state directory matches the table.

Every commit of a stream records its batch number, the offsets after the batch, and the state directory. The
table is authoritative: a state that does not match is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from skylark.errors import SettingsError
from skylark.pipelines.message_source import queue_name
from skylark.pipelines.offsets import Nested, Offsets, from_nested
from skylark.protocol.bodies import MessageQueue

CHECKPOINTS = "checkpoints"


class CommitProgress(msgspec.Struct, frozen=True):
    """What a commit records about its query."""

    application: str
    batch: int
    job: str
    """What was run: the same job reads the same messages into the same rows."""
    offsets: Nested
    """Offsets after the batch."""
    state: str
    read: int = 0
    """Rows that the tasks read."""
    written: int = 0
    """Rows that were added; the others were repeated."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What a Spark checkpoint says about its query; all None for a new one."""

    query: str | None = None
    committed: int | None = None
    """The last batch that Spark recorded as done."""
    planned: int | None = None
    """The last batch whose offsets are fixed; it may be in the table already."""


def read_checkpoint(checkpoint: Path) -> CheckpointState:
    """Raises OSError."""
    metadata = checkpoint / "metadata"
    if not metadata.is_file():
        return CheckpointState()
    query = msgspec.json.decode(metadata.read_bytes(), type=dict[str, str])["id"]
    return CheckpointState(query, _last(checkpoint / "commits"), _last(checkpoint / "offsets"))


def _last(folder: Path) -> int | None:
    return max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()), default=None)


def last_offsets(checkpoint: Path) -> str | None:
    """The offsets after the last committed batch, as JSON; None for a new checkpoint."""
    committed = _last(checkpoint / "commits")
    return None if committed is None else _batch_offsets(checkpoint, committed)


def _batch_offsets(checkpoint: Path, number: int) -> str | None:
    """The first source's offsets after a batch: the third line of Spark's offset log."""
    try:
        lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()
    except OSError:
        return None
    return lines[2] if len(lines) > 2 and lines[2].startswith("{") else None


def watermark_ms(checkpoint: Path, number: int) -> int:
    """The watermark of a batch: in the second line of Spark's offset log; 0 for none."""
    try:
        line = (checkpoint / "offsets" / str(number)).read_text().splitlines()[1]
    except OSError:
        return 0
    return int(msgspec.json.decode(line)["batchWatermarkMs"])


def batch_progress(checkpoint: Path, application: str, number: int, job: str) -> CommitProgress | None:
    """What to record with a batch; None if the checkpoint cannot be read here."""
    offsets = _batch_offsets(checkpoint, number)
    if offsets is None:
        return None
    state = checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint
    nested = msgspec.json.decode(offsets, type=Nested)
    return CommitProgress(application, number, job, nested, str(state))


# --- Checks ---


def check_state(
    table: str, checkpoint: Path, state: CheckpointState, last_batch: int | None, *, is_recorded: bool
) -> None:
    """Compare a checkpoint with the table's last batch of its query. Raises SettingsError.

    `is_recorded` is False for tables of older versions, which did not record empty batches.
    """
    folder = checkpoint.parent.parent
    is_behind = last_batch is None or (is_recorded and last_batch < (state.committed or 0))
    if state.committed is not None and is_behind:
        found = "none of them" if last_batch is None else f"only those up to {last_batch}"
        raise SettingsError(
            "state",
            f"{folder} has written batches up to {state.committed}, but {table} holds {found}; restore the "
            "table, or delete that directory to write everything again",
        )
    if last_batch is not None and last_batch > (-1 if state.planned is None else state.planned):
        raise SettingsError(
            "state",
            f"{table} holds batch {last_batch} of {folder}, which ends at batch {state.planned}; restore "
            "the newer directory, or delete it and use --from table",
        )


def check_start(table: str, entries: Iterable[CommitProgress], start: Mapping[MessageQueue, int]) -> None:
    """Refuse a new state that would write messages again. Raises SettingsError."""
    for entry in entries:
        for queue, end in from_nested(entry.offsets).items():
            if start.get(queue, end) < end:
                held = f"{table} already holds {queue_name(queue)} up to offset {end}"
                if not entry.state:
                    raise SettingsError("from", f"{held}; use --from table to add what is new")
                raise SettingsError(
                    "state",
                    f"{held}, written with --state {entry.state}; use that directory, or --from table if it "
                    "is lost",
                )


def end_offsets(entries: Iterable[CommitProgress]) -> Offsets:
    """The offsets up to which a table is complete."""
    found: Offsets = {}
    for entry in entries:
        for queue, end in from_nested(entry.offsets).items():
            found[queue] = max(end, found.get(queue, 0))
    return found
