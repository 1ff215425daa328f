"""Sans-IO. The replication link: a slave reports its log end, the master sends the bytes that follow.

    slave to master     physical_offset: i64
    master to slave     physical_offset: i64, body_bytes: i32, body

A report acknowledges everything before it. The first one sets the start; 0 means the start of the master's
last file. A body is a range of log bytes, blanks included, that may begin and end inside a record but does
not cross the end of a file. A frame without a body is a heartbeat.
"""

import struct
from typing import NamedTuple

from skylark.errors import FrameTooLarge, MalformedFrame

REPORT = struct.Struct(">q")
FRAME_HEAD = struct.Struct(">qi")
BODY_BYTES_MAX = 4 << 20
"""The limit of Apache's slaves."""


class LogBytes(NamedTuple):
    """A range of the master's log; an empty one is a heartbeat."""

    physical_offset: int
    data: memoryview


class ReportReader:
    """Parses the reports of a slave, in chunks of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, data: bytes) -> list[int]:
        """Return the completed reports in order. Raises MalformedFrame for a negative offset."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        reports = [physical_offset for (physical_offset,) in REPORT.iter_unpack(data[:whole])]
        for physical_offset in reports:
            if physical_offset < 0:
                raise MalformedFrame(f"negative offset {physical_offset} reported")
        return reports


class FrameReader:
    """Parses the frames of a master, in chunks of any size. Bodies are passed on, not buffered."""

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        self._head = b""
        self._physical_offset = 0
        self._body_left = 0

    def receive(self, data: bytes) -> list[LogBytes]:
        """Return the log ranges in the bytes, as slices. Raises MalformedFrame, FrameTooLarge."""
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
        """Complete the head; return the remaining bytes."""
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
