"""Sans-IO. The replication link of controller mode: a handshake that compares epochs, then the log.

    slave to master     handshake   state: i32 = 1, sync_from_last_file: i16, async_learner: i16, id: i64
                        report      state: i32 = 2, physical_offset: i64
    master to slave     handshake   state: i32 = 1, body_bytes: i32, log_end: i64, last_epoch: i32,
                                    then (epoch: i32, start: i64) for each epoch
                        data        state: i32 = 2, body_bytes: i32, physical_offset: i64, epoch: i32,
                                    epoch_start: i64, confirm_offset: i64, then bytes of the log

A report acknowledges everything before it; the first one sets the start, and 0 means the start of the
master's log. A frame does not cross the end of a file or of an epoch; the last frame of an epoch has the
number of the next one and its start, which is the frame's end. A data frame without bytes is a heartbeat.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from skylark.errors import FrameTooLarge, MalformedFrame
from skylark.protocol.ha import BODY_BYTES_MAX

HANDSHAKE_STATE = 1
TRANSFER_STATE = 2

SLAVE_HANDSHAKE = struct.Struct(">ihhq")
MASTER_HANDSHAKE = struct.Struct(">iiqi")
EPOCH = struct.Struct(">iq")
DATA_HEAD = struct.Struct(">iiqiqq")
ACKNOWLEDGEMENT = struct.Struct(">iq")
STATE = struct.Struct(">i")
assert (SLAVE_HANDSHAKE.size, MASTER_HANDSHAKE.size, DATA_HEAD.size, ACKNOWLEDGEMENT.size) == (16, 20, 36, 12)

EPOCHS_MAX = 1000
"""The limit of Apache's masters."""


class SlaveGreeting(NamedTuple):
    """The slave's handshake. A learner never becomes a member of the in-sync set."""

    slave_id: int
    syncs_from_last_file: bool = False
    is_learner: bool = False

    def encode(self) -> bytes:
        return SLAVE_HANDSHAKE.pack(
            HANDSHAKE_STATE, self.syncs_from_last_file, self.is_learner, self.slave_id
        )


class MasterGreeting(NamedTuple):
    """The master's handshake: where its log ends, and its epochs as pairs of number and start."""

    log_end: int
    epochs: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        epochs = self.epochs[-EPOCHS_MAX:]
        body = b"".join(EPOCH.pack(*entry) for entry in epochs)
        last = epochs[-1][0] if epochs else -1
        return MASTER_HANDSHAKE.pack(HANDSHAKE_STATE, len(body), self.log_end, last) + body


class EpochBytes(NamedTuple):
    """A range of the master's log, a heartbeat if it is empty, and what its frame says of the log."""

    physical_offset: int
    data: memoryview
    epoch: int
    epoch_start: int
    confirm_offset: int


def data_head(
    physical_offset: int, body_bytes: int, epoch: int, epoch_start: int, confirm_offset: int
) -> bytes:
    return DATA_HEAD.pack(TRANSFER_STATE, body_bytes, physical_offset, epoch, epoch_start, confirm_offset)


def acknowledgement(physical_offset: int) -> bytes:
    return ACKNOWLEDGEMENT.pack(TRANSFER_STATE, physical_offset)


class SlaveReader:
    """Parses what a slave sends, in chunks of any size: its greeting, then its reports."""

    def __init__(self) -> None:
        self._rest = b""
        self.greeting: SlaveGreeting | None = None

    def receive(self, data: bytes) -> list[int]:
        """Return the completed reports in order. Raises MalformedFrame."""
        self._rest += data
        if self.greeting is None and not self._greet():
            return []
        whole = len(self._rest) - len(self._rest) % ACKNOWLEDGEMENT.size
        reports = []
        for state, physical_offset in ACKNOWLEDGEMENT.iter_unpack(self._rest[:whole]):
            if state != TRANSFER_STATE or physical_offset < 0:
                raise MalformedFrame(f"report of state {state} and offset {physical_offset}")
            reports.append(physical_offset)
        self._rest = self._rest[whole:]
        return reports

    def _greet(self) -> bool:
        rest = self._rest
        if len(rest) >= STATE.size and STATE.unpack_from(rest)[0] != HANDSHAKE_STATE:
            raise MalformedFrame("the slave is not in controller mode: it sent no handshake")
        if len(rest) < SLAVE_HANDSHAKE.size:
            return False
        _, from_last, is_learner, slave_id = SLAVE_HANDSHAKE.unpack_from(rest)
        if slave_id < 0:
            raise MalformedFrame(f"handshake of slave {slave_id}")
        self.greeting = SlaveGreeting(slave_id, from_last == 1, is_learner == 1)
        self._rest = rest[SLAVE_HANDSHAKE.size :]
        return True


class MasterReader:
    """Parses what a master sends, in chunks of any size: its greeting, then its log, unbuffered."""

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        self._rest = b""
        self._frame = (0, 0, 0, 0)
        self._body_left = 0
        self.greeting: MasterGreeting | None = None

    def receive(self, data: bytes) -> list[EpochBytes]:
        """Return the log ranges in the bytes, as slices. Raises MalformedFrame, FrameTooLarge."""
        if self.greeting is None:
            self._rest += data
            if not self._greet():
                return []
            data, self._rest = self._rest, b""
        view = memoryview(data)
        found: list[EpochBytes] = []
        while view:
            if not self._body_left:
                lacking = DATA_HEAD.size - len(self._rest)
                self._rest += bytes(view[:lacking])
                view = view[lacking:]
                if len(self._rest) < DATA_HEAD.size:
                    break
                self._begin()
                if not self._body_left:
                    found.append(self._part(view[:0]))
                    continue
            part = view[: self._body_left]
            if part:
                found.append(self._part(part))
            view = view[len(part) :]
        return found

    def _part(self, part: memoryview) -> EpochBytes:
        physical_offset, epoch, start, confirm = self._frame
        self._frame = (physical_offset + len(part), epoch, start, confirm)
        self._body_left -= len(part)
        return EpochBytes(physical_offset, part, epoch, start, confirm)

    def _begin(self) -> None:
        state, body_bytes, physical_offset, epoch, start, confirm = DATA_HEAD.unpack(self._rest)
        self._rest = b""
        # Apache's master has sent nothing yet when it says that its next byte is at -1.
        if state != TRANSFER_STATE or body_bytes < 0 or physical_offset < (0 if body_bytes else -1):
            raise MalformedFrame(f"frame of state {state} with {body_bytes} bytes at {physical_offset}")
        if body_bytes > self._body_bytes_max:
            raise FrameTooLarge(body_bytes, self._body_bytes_max)
        self._frame, self._body_left = (physical_offset, epoch, start, confirm), body_bytes

    def _greet(self) -> bool:
        rest = self._rest
        if len(rest) < MASTER_HANDSHAKE.size:
            return False
        state, body_bytes, log_end, _ = MASTER_HANDSHAKE.unpack_from(rest)
        if state != HANDSHAKE_STATE or body_bytes % EPOCH.size or not 0 <= body_bytes <= self._body_bytes_max:
            raise MalformedFrame(f"handshake of state {state} with {body_bytes} bytes of epochs")
        end = MASTER_HANDSHAKE.size + body_bytes
        if len(rest) < end:
            return False
        epochs: Iterable[tuple[int, int]] = EPOCH.iter_unpack(rest[MASTER_HANDSHAKE.size : end])
        self.greeting = MasterGreeting(log_end, tuple(epochs))
        self._rest = rest[end:]
        return True
