"""Sans-IO. The replication link: a slave reports up to where it has the log, its master sends what follows.

    slave to master     physical_offset: i64
    master to slave     physical_offset: i64, body_bytes: i32, body

A report acknowledges everything before it; the first one says where to begin, and 0 there means: at the start
of the master's last file. A body is a stretch of the log as it is, blanks included, that may begin and end
anywhere in a record, but not go beyond the end of a file. One without a body is a heartbeat.
"""

import struct
from typing import NamedTuple

from skylark.errors import FrameTooLarge, MalformedFrame

REPORT = struct.Struct(">q")
FRAME_HEAD = struct.Struct(">qi")
BODY_BYTES_MAX = 4 << 20
"""What a slave of Apache's can take."""


class LogBytes(NamedTuple):
    """A stretch of the master's log; an empty one is a heartbeat."""

    physical_offset: int
    data: memoryview


class ReportReader:
    """What a slave says, in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, data: bytes) -> list[int]:
        """Return the reports that are whole now, in order. Raises MalformedFrame for a negative one."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        reports = [physical_offset for (physical_offset,) in REPORT.iter_unpack(data[:whole])]
        for physical_offset in reports:
            if physical_offset < 0:
                raise MalformedFrame(f"report of the negative offset {physical_offset}")
        return reports


class FrameReader:
    """What a master sends, in pieces of any size. Bodies are handed on as they come, not kept."""

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        self._head = b""
        self._physical_offset = 0
        self._body_left = 0

    def receive(self, data: bytes) -> list[LogBytes]:
        """Return what the bytes hold, in order; slices of them. Raises MalformedFrame, FrameTooLarge."""
        view = memoryview(data)
        found = []
        while view:
            if not self._body_left:
                view = self._read_head(view)
                if len(self._head) < FRAME_HEAD.size:
                    break
                self._begin()
                if not self._body_left:
                    found.append(LogBytes(self._physical_offset, view[:0]))
                    continue
            part = view[: self._body_left]
            if part:
                found.append(LogBytes(self._physical_offset, part))
            self._physical_offset += len(part)
            self._body_left -= len(part)
            view = view[len(part) :]
        return found

    def _read_head(self, view: memoryview) -> memoryview:
        """Take what the head lacks; return the rest."""
        if len(self._head) == FRAME_HEAD.size:
            self._head = b""
        lacking = FRAME_HEAD.size - len(self._head)
        self._head += bytes(view[:lacking])
        return view[lacking:]

    def _begin(self) -> None:
        physical_offset, body_bytes = FRAME_HEAD.unpack(self._head)
        if physical_offset < 0 or body_bytes < 0:
            raise MalformedFrame(f"frame of {body_bytes} bytes at offset {physical_offset}")
        if body_bytes > self._body_bytes_max:
            raise FrameTooLarge(body_bytes, self._body_bytes_max)
        self._physical_offset, self._body_left = physical_offset, body_bytes
