"""Load for a broker: hand-made frames, and the thin client, a process of its own, that keeps them in flight.

The client is `_load.c`, compiled on first use into `$SKYLARK_CACHE` (default `~/.cache/skylark`), outside
the clone; where there is no compiler it is `_load_client.py`.
"""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from skylark.model.message import encode_properties
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import VERSION, prefix
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION
from tests.support.java import build_once, cache_dir, digest

SOURCE = Path(__file__).with_name("_load.c")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
COMPILE_TIMEOUT_S = 60
# What the client may take beyond the time it was given: connecting, and 15 s for the last answers.
RUN_MARGIN_S = 30
BROKER_CPU, CLIENT_CPU = 0, 1
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LISTENING = "0A"  # in the kernel's table of connections

GROUP = "benchmark"
ELEMENT = struct.Struct(
    ">iiiii"
)  # element_bytes, magic, body_crc, flag, body_bytes: the client leaves 2 to 4
PROPERTIES_BYTES = struct.Struct(">h")

# --- Frames, as the Java client writes them ---


def send_frames(topic: str, queues: int, body_bytes: int, batch: int = 1) -> bytes:
    """One 310 per queue, or one 320 with `batch` messages; each message has a tag and a unique key."""
    now_ns = time.time_ns()
    unique_key = f"7F000001{now_ns:016X}@NUMBER@"  # of this run alone
    properties = {"UNIQ_KEY": unique_key, "WAIT": "true", "TAGS": "TagA"}
    body = random.Random(body_bytes).randbytes(body_bytes)
    code = RequestCode.SEND_MESSAGE_V2
    if batch > 1:
        body = _element(body, encode_properties(properties)) * batch
        code = RequestCode.SEND_BATCH_MESSAGE
        del properties["TAGS"]
    fields = {
        "a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": str(now_ns // 1_000_000), "h": "0",
        "i": encode_properties(properties).decode(), "j": "0", "k": "false",
        "m": "true" if batch > 1 else "false", "n": "broker-a",
    }  # fmt: skip
    return b"".join(_frame(code, fields | {"e": str(queue)}, body) for queue in range(queues))


def pull_frames(topic: str, queues: int, count: int) -> bytes:
    """One 11 per queue: `count` messages from a place that the client fills in, all tags, no waiting."""
    fields = {
        "queueId": "0", "commitOffset": "0", "subscription": "*", "suspendTimeoutMillis": "0",
        "bname": "broker-a", "sysFlag": str(PULL_SUBSCRIPTION), "expressionType": "TAG", "ReqT": "0",
        "topic": topic, "consumerGroup": GROUP, "maxMsgNums": str(count), "queueOffset": "@OFFSET@",
        "subVersion": "0", "maxMsgBytes": "2147483647",
    }  # fmt: skip
    pull = RequestCode.PULL_MESSAGE
    return b"".join(_frame(pull, fields | {"queueId": str(queue)}, b"") for queue in range(queues))


def _element(body: bytes, properties: bytes) -> bytes:
    """A message within a batch."""
    length = ELEMENT.size + len(body) + PROPERTIES_BYTES.size + len(properties)
    head = ELEMENT.pack(length, 0, 0, 0, len(body))
    return head + body + PROPERTIES_BYTES.pack(len(properties)) + properties


def _frame(code: RequestCode, fields: dict[str, str], body: bytes) -> bytes:
    members = {
        "code": int(code), "extFields": fields, "flag": 0, "language": "JAVA", "opaque": "@OPAQUE@",
        "serializeTypeCurrentRPC": "JSON", "version": VERSION,
    }  # fmt: skip
    header = json.dumps(members, separators=(",", ":")).replace('"@OPAQUE@"', "@OPAQUE@").encode()
    return prefix(len(header), len(body)) + header + body


# --- The client ---


@dataclass(frozen=True)
class Counted:
    """What the client saw; times and `answers`, `records`, `client_cpu_us` are of the window alone."""

    seconds: float
    sent: int
    acknowledged: int
    refused: int
    refusal_code: int
    unexpected: int
    answers: int
    records: int
    p50_us: float
    p99_us: float
    p999_us: float
    client_cpu_us: float


class Client:
    """Runs the client, compiled if this machine can. `kind` says which one it is."""

    def __init__(self) -> None:
        program = _compiled()
        self.kind = "C" if program else "Python: there is no C compiler, the client is the limit"
        self._command = [str(program)] if program else [sys.executable, "-m", "benchmarks._load_client"]

    @property
    def can_answer(self) -> bool:
        """Only the compiled one has the other end to measure it with."""
        return self.kind == "C"

    def run(
        self,
        address: str,
        frames: Path,
        *,
        in_flight: int,
        warm_up_s: float,
        seconds: float,
        frames_max: int = 0,
        watch: Callable[[str], None] = lambda _: None,
    ) -> Counted:
        """Send the frames of a file and count. `watch` hears "begin" and "end" of the window.

        Raises RuntimeError when the client fails or does not end in time.
        """
        host, _, port = address.rpartition(":")
        numbers = [in_flight, warm_up_s, seconds, frames_max]
        command = [*self._command, "run", host, port, str(frames), *map(str, numbers)]
        with pinned(CLIENT_CPU):
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=SOURCE.parent.parent
            )
        limit = threading.Timer(warm_up_s + seconds + RUN_MARGIN_S, process.kill)
        limit.start()
        try:
            with process:
                assert process.stdout is not None
                assert process.stderr is not None
                line = ""
                for line in process.stdout:
                    if not line.startswith("{"):
                        watch(line.strip())
                reason = process.stderr.read().strip()
        finally:
            limit.cancel()
        if process.returncode:
            raise RuntimeError(reason or f"the load client ended with code {process.returncode}")
        return Counted(**json.loads(line))

    @contextmanager
    def answering(self, seconds: int) -> Iterator[str]:
        """The address of a server that answers and does nothing: what the client can drive."""
        with (
            pinned(BROKER_CPU),
            subprocess.Popen(
                [*self._command, "answer", str(seconds)], stdout=subprocess.PIPE, text=True
            ) as process,
        ):
            try:
                assert process.stdout is not None
                yield f"127.0.0.1:{int(process.stdout.readline())}"
            finally:
                process.kill()


def _compiled() -> Path | None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        return None
    directory = cache_dir().with_name("benchmarks") / f"{digest(SOURCE)}-{platform.machine()}"

    def build(target: Path) -> None:
        command = [compiler, *FLAGS, "-o", str(target / "load"), str(SOURCE)]
        subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT_S)

    build_once(directory, build)
    return directory / "load"


# --- Processes ---


@contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """What is started inside runs on one processor: broker and client must not take each other's.

    Nothing where there is only one.
    """
    if not can_pin():
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[cpu]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def can_pin() -> bool:
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > CLIENT_CPU


class Process:
    """Whoever listens at an address of the loopback: what it uses of processor and memory."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._directory = _listener(int(port)) if host in LOOPBACK else None

    def cpu_us(self) -> float | None:
        """Microseconds used so far, in steps of 10 ms; None for a process that we cannot see."""
        if self._directory is None:
            return None
        fields = (self._directory / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e6

    def signal(self, number: signal.Signals) -> None:
        if self._directory is not None:
            os.kill(int(self._directory.name), number)

    def anonymous_mib(self) -> float | None:
        if self._directory is None:
            return None
        lines = (self._directory / "status").read_text().splitlines()
        (kib,) = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
        return int(kib) / 1024

    @contextmanager
    def spread(self) -> Iterator[None]:
        """Meanwhile it may use every processor that we may."""
        if self._directory is None or not can_pin():
            yield
            return
        allowed = os.sched_getaffinity(int(self._directory.name))
        _allow(self._directory, os.sched_getaffinity(0))
        try:
            yield
        finally:
            _allow(self._directory, allowed)


def _allow(process: Path, processors: set[int]) -> None:
    for thread in (process / "task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), processors)


def _listener(port: int) -> Path | None:
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        try:
            if any(os.readlink(entry) in inodes for entry in os.scandir(process / "fd")):  # noqa: PTH115
                return process
        except OSError:
            continue  # gone, or another user's
    return None
