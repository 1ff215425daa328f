"""`_load.c` in Python, for machines without a compiler: same arguments and output, far slower.

python -m benchmarks._load_client run HOST PORT FRAMES IN_FLIGHT WARM_UP_S SECONDS FRAMES_MAX
"""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path

PREFIX = struct.Struct(">iI")  # frame_bytes, header_bytes
RECORD = struct.Struct(">i16xq")  # record_bytes, …, queue_offset
SLOT = re.compile(rb"(@OPAQUE@|@NUMBER@|@OFFSET@)")
READ_BYTES = 1 << 20
TURN_S = 0.1
DRAIN_S = 15


class Template:
    """A frame with places to fill; of a pull also where its queue goes on."""

    def __init__(self, frame: bytes) -> None:
        _, header_bytes = PREFIX.unpack_from(frame)
        end = PREFIX.size + header_bytes
        self._header, self._body = SLOT.split(frame[PREFIX.size : end]), SLOT.split(frame[end:])
        self.pulls = b"@OFFSET@" in self._header
        self.queue_offset = 0

    def frame(self, opaque: int, number: int) -> bytes:
        """The frame; `number` is the first of those that its places may take."""
        parts = []
        for template in (self._header, self._body):
            filled = []
            for part in template:
                if part == b"@NUMBER@":
                    number += 1
                    filled.append(b"%08X" % number)
                elif part == b"@OPAQUE@":
                    filled.append(b"%d" % opaque)
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
        self.queue_offset = 0 if next_offset == end else next_offset
        return count


class Client:
    """The run: who waits, since when, and what came back."""

    def __init__(self, templates: list[Template], in_flight: int) -> None:
        self._idle = deque(templates)
        self._pulling = templates[0].pulls
        self._window = len(templates) if self._pulling else in_flight
        self._waiting: dict[int, tuple[Template, float]] = {}
        self._number = 0
        self._received = bytearray()
        self.measuring = False
        self.latencies: list[float] = []
        self.sent = self.acknowledged = self.refused = self.refusal_code = self.unexpected = self.records = 0

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def next_frames(self, frames_max: int) -> bytes:
        """As many frames as the window has room for."""
        now = time.perf_counter()
        frames = []
        while len(self._waiting) < self._window and not (frames_max and self.sent >= frames_max):
            template = self._idle.popleft()
            if not self._pulling:
                self._idle.append(template)
            self.sent += 1
            self._waiting[self.sent] = (template, now)
            frames.append(template.frame(self.sent, self._number))
            self._number += template.numbers
        return b"".join(frames)

    def receive(self, data: bytes) -> None:
        self._received += data
        now = time.perf_counter()
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
        if code:
            self.refused += 1
            self.refusal_code = code
            return
        records = template.take_records(dict(header["extFields"]), body) if self._pulling else 0  # type: ignore[call-overload]
        if self._pulling and not records:
            self.unexpected += 1
            return
        self.acknowledged += 1
        if self.measuring:
            self.records += records
            self.latencies.append(now - sent_at)


def run(
    host: str, port: int, templates: list[Template], in_flight: int, times: list[float], frames_max: int
) -> None:
    """Send, take answers, print as `_load.c` does."""
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    client = Client(templates, in_flight)
    begin = time.perf_counter() + times[0]
    began = ended = cpu = 0.0
    pending = b""
    while True:
        now = time.perf_counter()
        if not began and not ended and now >= begin:
            began, cpu, client.measuring = now, time.process_time(), True
            print("begin", flush=True)
        if not ended and ((began and now >= began + times[1]) or (frames_max and client.sent >= frames_max)):
            ended, cpu, client.measuring = now, time.process_time() - cpu, False
            print("end", flush=True)
        if not ended and not pending:
            pending = client.next_frames(frames_max)
        if pending:
            try:
                pending = pending[connection.send(pending) :]
            except BlockingIOError:
                pass
        if ended and (not client.is_waiting or now > ended + DRAIN_S):
            break
        readable, _, _ = select.select([connection], [connection] if pending else [], [], TURN_S)
        if readable:
            data = connection.recv(READ_BYTES)
            if not data:
                sys.exit("load: the connection was lost")
            client.receive(data)
    latencies = sorted(client.latencies) or [0.0]
    print(
        json.dumps(
            {
                "seconds": ended - began if began else 0.0,
                "sent": client.sent,
                "acknowledged": client.acknowledged,
                "refused": client.refused,
                "refusal_code": client.refusal_code,
                "unexpected": client.unexpected,
                "answers": len(client.latencies),
                "records": client.records,
                **{
                    name: round(latencies[int(share * (len(latencies) - 1))] * 1e6, 1)
                    for name, share in (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999))
                },
                "client_cpu_us": round(cpu * 1e6),
            }
        )
    )


def main() -> None:
    _, host, port, path, in_flight, warm_up_s, seconds, frames_max = sys.argv[1:]
    data = Path(path).read_bytes()
    templates = []
    while data:
        frame_bytes, _ = PREFIX.unpack_from(data)
        templates.append(Template(data[: 4 + frame_bytes]))
        data = data[4 + frame_bytes :]
    run(host, int(port), templates, int(in_flight), [float(warm_up_s), float(seconds)], int(frames_max))


if __name__ == "__main__":
    main()
