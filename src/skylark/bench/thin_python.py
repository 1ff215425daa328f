"""`load.c` in Python, for machines without a compiler: same arguments and output, far slower.

python -m skylark.bench.thin_python run HOST PORT FRAMES IN_FLIGHT RATE WARM_UP_S SECONDS FRAMES_MAX
"""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

from skylark.bench.transaction import OpenLoopSchedule

PREFIX = struct.Struct(">iI")  # frame_bytes, header_bytes
RECORD = struct.Struct(">i16xq")  # record_bytes, …, queue_offset
SLOT = re.compile(rb"(@OPAQUE@|@NUMBER@|@OFFSET@|@DUE_NS@)")
DUE_NS = struct.Struct(">q")
ONEWAY = b'"flag":2,'
READ_BYTES = 1 << 20
FRAMES_AT_ONCE_MAX = 1024
PULL_OFFSET_MOVED = 21
TURN_S = 0.1
DRAIN_S = 15


class Template:
    """A frame with places to fill; of a pull also where its queue goes on."""

    def __init__(self, frame: bytes) -> None:
        _, header_bytes = PREFIX.unpack_from(frame)
        end = PREFIX.size + header_bytes
        self._header, self._body = SLOT.split(frame[PREFIX.size : end]), SLOT.split(frame[end:])
        self.pulls = b"@OFFSET@" in self._header
        self.is_oneway = ONEWAY in frame[PREFIX.size : end]
        self.queue_offset = 0

    def frame(self, opaque: int, number: int, due: float) -> bytes:
        """The frame; `number` is the one before those that its places take."""
        parts = []
        for template in (self._header, self._body):
            filled = []
            for part in template:
                if part == b"@NUMBER@":
                    number += 1
                    filled.append(b"%08X" % number)
                elif part == b"@OPAQUE@":
                    filled.append(b"%d" % opaque)
                elif part == b"@DUE_NS@":
                    filled.append(DUE_NS.pack(round(due * 1e9)))
                else:
                    filled.append(b"%d" % self.queue_offset if part == b"@OFFSET@" else part)
            parts.append(b"".join(filled))
        header, body = parts
        return PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body

    @property
    def numbers(self) -> int:
        """How many numbers a frame takes."""
        return (self._header + self._body).count(b"@NUMBER@")

    def take_records(self, fields: dict[str, str], body: bytes) -> int:
        """How many records came; 0 if they are not the queue's next ones."""
        next_offset, end = int(fields["nextBeginOffset"]), int(fields["maxOffset"])
        expected, position = self.queue_offset, 0
        while position < len(body):
            record_bytes, queue_offset = RECORD.unpack_from(body, position)
            if queue_offset != expected:
                return 0
            expected += 1
            position += record_bytes
        if expected != next_offset or position != len(body):
            return 0
        count = expected - self.queue_offset
        self.queue_offset = int(fields["minOffset"]) if next_offset == end else next_offset
        return count

    def follow(self, fields: dict[str, str]) -> bool:
        """What was to be read has expired: go on where the queue begins now."""
        before, self.queue_offset = self.queue_offset, int(fields["nextBeginOffset"])
        return self.queue_offset > before


class PythonLoadClient:
    """The run: who waits, since when, and what came back."""

    def __init__(
        self, templates: list[Template], in_flight: int, pace: OpenLoopSchedule, frames_max: int
    ) -> None:
        self._idle = deque(templates)
        self._pulling = templates[0].pulls
        self._oneway = templates[0].is_oneway
        self._window = len(templates) if self._pulling else in_flight
        self._pace = pace
        self._frames_max = frames_max
        self._waiting: dict[int, tuple[Template, float]] = {}
        self._number = 0
        self._received = bytearray()
        self.began = self.ended = 0.0
        self.latencies_ns: Counter[int] = Counter()
        self.sent = self.acknowledged = self.refused = self.refusal_code = self.unexpected = 0
        self.answers = self.records = 0

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_measuring(self) -> bool:
        return bool(self.began) and not self.ended

    @property
    def is_done(self) -> bool:
        return bool(self._frames_max) and self.sent >= self._frames_max

    @property
    def is_wanted(self) -> bool:
        """Shall another frame be sent, now or when it is due?"""
        if self.is_done:
            return False
        return not self.ended or (bool(self._pace.rate) and self._pace.due(self.sent) < self.ended)

    @property
    def unsent(self) -> int:
        """What was due before the end and has not been sent."""
        due = self._pace.count_until(self.ended) if self._pace.rate and not self._frames_max else 0
        return max(due - self.sent, 0)

    def wait_s(self, now: float) -> float:
        """How long the next frame may be waited for."""
        if not self.is_wanted or len(self._waiting) >= self._window:
            return TURN_S
        return min(max(self._pace.due(self.sent) - now, 0.0), TURN_S)

    def next_frames(self, now: float) -> bytes:
        """As many frames as are due and the window has room for."""
        return b"".join(self._next_frames(now))

    def _next_frames(self, now: float) -> Iterator[bytes]:
        for _ in range(FRAMES_AT_ONCE_MAX):
            due = self._pace.due(self.sent) if self._pace.rate else now
            if len(self._waiting) >= self._window or not self.is_wanted or due > now:
                return
            template = self._idle.popleft()
            if not self._pulling:
                self._idle.append(template)
            self.sent += 1
            if self._oneway:
                self.acknowledged += 1
                self.answers += self.is_measuring
            else:
                self._waiting[self.sent] = (template, due)
            yield template.frame(self.sent, self._number, due)
            self._number += template.numbers

    def receive(self, data: bytes, now: float) -> None:
        self._received += data
        position = 0
        while len(self._received) - position >= PREFIX.size:
            frame_bytes, header_bytes = PREFIX.unpack_from(self._received, position)
            end = position + 4 + frame_bytes
            if end > len(self._received):
                break
            body = position + PREFIX.size + header_bytes
            header = json.loads(self._received[position + PREFIX.size : body])
            self._take(header, bytes(self._received[body:end]), now)
            position = end
        del self._received[:position]

    def _take(self, header: dict[str, object], body: bytes, now: float) -> None:
        template, sent_at = self._waiting.pop(int(str(header["opaque"])), (None, 0.0))
        if template is None:
            self.unexpected += 1
            return
        if self._pulling:
            self._idle.append(template)
        code = int(str(header["code"]))
        fields: dict[str, str] = header.get("extFields") or {}  # type: ignore[assignment]
        if self._pulling and code == PULL_OFFSET_MOVED and template.follow(fields):
            self.acknowledged += 1
            return
        if code:
            self.refused += 1
            self.refusal_code = code
            return
        records = template.take_records(fields, body) if self._pulling else 0
        if self._pulling and not records:
            self.unexpected += 1
            return
        self.acknowledged += 1
        if self.is_measuring:
            self.answers += 1
            self.records += records
        # As in load.c: what was due within the window counts, whenever its answer came.
        if self.began and sent_at >= self.began:
            self.latencies_ns[max(round((now - sent_at) * 1e9), 0)] += 1

    def figures(self, cpu_s: float) -> dict[str, object]:
        return {
            "seconds": self.ended - self.began if self.began else 0.0,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "refused": self.refused,
            "refusal_code": self.refusal_code,
            "unexpected": self.unexpected,
            "unsent": self.unsent,
            "answers": self.answers,
            "records": self.records,
            "client_cpu_us": round(cpu_s * 1e6),
            "bins": sorted(self.latencies_ns.items()),
        }


def say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def run(connection: socket.socket, client: PythonLoadClient, warm_up_s: float, seconds: float) -> None:
    """Send, take answers, print as `load.c` does."""
    begin = time.perf_counter() + warm_up_s
    tick = cpu = 0.0
    pending = b""
    while True:
        now = time.perf_counter()
        if not client.began and not client.ended and now >= begin:
            client.began, tick, cpu = now, now + 1, time.process_time()
            say("begin")
        if not client.ended and ((client.began and now >= client.began + seconds) or client.is_done):
            client.ended, cpu = now, time.process_time() - cpu
            say("end")
        if client.is_measuring and now >= tick:
            say(f"tick {now - client.began:.3f} {client.records or client.answers}")
            tick += 1
        if not pending:
            pending = client.next_frames(now)
        if pending:
            try:
                pending = pending[connection.send(pending) :]
            except BlockingIOError:
                pass
        is_over = not client.is_waiting and not pending and not client.is_wanted
        if client.ended and (is_over or now > client.ended + DRAIN_S):
            break
        wait_s = TURN_S if pending else client.wait_s(now)
        readable, _, _ = select.select([connection], [connection] if pending else [], [], wait_s)
        if readable:
            data = connection.recv(READ_BYTES)
            if not data:
                sys.exit("load: the connection was lost")
            client.receive(data, time.perf_counter())
    say(json.dumps(client.figures(cpu)))


def main() -> None:
    _, host, port, path, in_flight, rate, warm_up_s, seconds, frames_max = sys.argv[1:]
    data = Path(path).read_bytes()
    templates = []
    while data:
        frame_bytes, _ = PREFIX.unpack_from(data)
        templates.append(Template(data[: 4 + frame_bytes]))
        data = data[4 + frame_bytes :]
    try:
        connection = socket.create_connection((host, int(port)))
    except OSError as error:
        sys.exit(f"load: cannot connect: {error}")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    pace = OpenLoopSchedule(time.perf_counter(), float(rate))
    run(
        connection,
        PythonLoadClient(templates, int(in_flight), pace, int(frames_max)),
        float(warm_up_s),
        float(seconds),
    )


if __name__ == "__main__":
    main()
