"""The load client: processes that only fill numbers into prepared frames, so the server is measured."""

from __future__ import annotations

import contextlib
import functools
import platform
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from skylark.bench.build_cache import build_once, cache_dir, digest
from skylark.bench.latencies import LatencyHistogram
from skylark.bench.load import BadLoad, Counted, Load, LoadFailed, frames_of, texts_of
from skylark.bench.machine import BROKER_CPU, pinned
from skylark.protocol.signature import Signer
from skylark.remoting.address import split_address
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.remoting.tls_client import ClientTls
from skylark.settings.credentials import Credentials
from skylark.settings.tls import ClientTlsSettings

SOURCE = Path(__file__).with_name("load.c")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
SECURE_FLAGS = ("-DSECURE",)
SECURE_LIBRARIES = ("-lssl", "-lcrypto")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT_S = 60
# Time beyond that of the load: connecting, and 15 s for the last replies.
RUN_MARGIN_S = 30

Watch = Callable[[str], None]


class LoadClient:
    """Runs loads with `load.c`, compiled on first use into the cache outside any checkout.

    Signatures and TLS need the headers of OpenSSL.
    """

    kind = "C"

    def __init__(self, credentials: Credentials | None = None, tls: ClientTlsSettings | None = None) -> None:
        """Raises SettingsError for files that cannot be loaded, BadLoad for what the client cannot do."""
        if tls is not None and tls.check_server and tls.trusted is None:
            raise BadLoad("the load client needs the CAs of the servers: set SKYLARK_TLS_TRUSTED")
        if tls is not None and tls.key_password:
            raise BadLoad("the load client cannot use a key with a password")
        self._credentials = credentials
        self._signer = None if credentials is None else Signer(credentials)
        self._tls_settings = tls
        self._tls = None if tls is None else ClientTls(tls)

    def connection(self, address: str) -> BlockingConnection:
        """A connection for requests besides the load, with the same credentials and TLS."""
        return BlockingConnection(address, signer=self._signer, tls=self._tls)

    def run(self, load: Load, watch: Watch | None = None, cpu: int | None = None) -> Counted:
        """Run the load and count replies.

        `watch` is called with "begin" and "end" of the measured window, and in between, once a second, with
        "tick SECONDS REPLIES". Raises LoadFailed without a compiler, or if a client fails or does not end.
        """
        program = load_program(is_secure=self._signer is not None or self._tls is not None)
        with tempfile.TemporaryDirectory(prefix="skylark-load-") as directory:
            with pinned(cpu):
                started = [
                    self._start(program, share, Path(directory) / f"frames-{number}")
                    for number, share in enumerate(load.shares())
                ]
            try:
                return Counted.together(_gather(started, _limit_s(load), watch or (lambda _: None)))
            finally:
                for process in started:
                    with process:  # waits, and closes its pipes
                        process.kill()

    def _start(self, program: Path, load: Load, frames: Path) -> subprocess.Popen[str]:
        now_ns = time.time_ns()
        frames.write_bytes(frames_of(load, now_ns, self._signer))
        host, port = split_address(load.address)
        numbers = [load.in_flight, load.frames_per_s, load.warm_up_s, load.seconds, load.frames_max]
        secure = self._secure_arguments(load, now_ns, frames.with_suffix(".texts"), host)
        return subprocess.Popen(  # noqa: S603 - our own program
            [str(program), "run", host, str(port), str(frames), *map(str, numbers), *secure],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _secure_arguments(self, load: Load, now_ns: int, texts: Path, host: str) -> list[str]:
        """The arguments about signatures and TLS. The file is in a directory that only this user can read."""
        if self._credentials is not None and self._signer is not None:
            texts.write_bytes(texts_of(load, now_ns, self._signer, self._credentials.secret_key))
        arguments = ["" if self._signer is None else str(texts)]
        tls = self._tls_settings
        if tls is not None:
            name = tls.server_name or host if tls.check_server else ""
            arguments += [str(tls.trusted or ""), name]
            if tls.certificate is not None:
                arguments += [str(tls.certificate), str(tls.key)]
        return arguments if arguments != [""] else []

    @contextmanager
    def answering(self, seconds: int) -> Iterator[str]:
        """The address of a server that replies to everything at once: the limit of the client."""
        command = [str(load_program()), "answer", str(seconds)]
        with (
            pinned(BROKER_CPU),
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,  # noqa: S603
        ):
            try:
                assert process.stdout is not None
                yield f"127.0.0.1:{int(process.stdout.readline())}"
            finally:
                process.kill()


def _limit_s(load: Load) -> float:
    return load.warm_up_s + load.seconds + RUN_MARGIN_S


def _gather(processes: list[subprocess.Popen[str]], limit_s: float, watch: Watch) -> list[Counted]:
    """Read the output of all clients until each has reported its figures."""
    said: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for number, process in enumerate(processes):
        threading.Thread(
            target=_pass_on, args=(process, number, said), name=f"skylark-load-{number}", daemon=True
        ).start()
    joined = _JoinedClients(len(processes), watch)
    deadline = time.monotonic() + limit_s
    while not joined.is_complete:
        try:
            number, line = said.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            raise LoadFailed(f"load client not ended within {limit_s:g} s") from None
        if not line:
            joined.check_end(number, processes[number])
        joined.hear(number, line.strip())
    return joined.counted


def _pass_on(process: subprocess.Popen[str], number: int, said: queue.SimpleQueue[tuple[int, str]]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # closed: its figures have been read
        for line in process.stdout:
            said.put((number, line))
    said.put((number, ""))


class _JoinedClients:
    """The output of several clients as that of one."""

    def __init__(self, count: int, watch: Watch) -> None:
        self._watch = watch
        self._count = count
        self._words = {"begin": 0, "end": 0}
        self._series: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        self._parts: dict[int, Counted] = {}

    @property
    def is_complete(self) -> bool:
        return len(self._parts) == self._count

    @property
    def counted(self) -> list[Counted]:
        return list(self._parts.values())

    def hear(self, number: int, line: str) -> None:
        word = line.partition(" ")[0]
        if word in self._words:
            self._words[word] += 1
            # The window is open from the first that begins to the last that ends.
            if self._words[word] == (1 if word == "begin" else self._count):
                self._watch(word)
        elif word == "tick":
            self._tick(number, line)
        elif line:
            self._parts[number] = _counted(line, self._series[number])

    def _tick(self, number: int, line: str) -> None:
        _, second, answers = line.split()
        self._series[number].append((float(second), int(answers)))
        reports = len(self._series[number])
        if all(len(series) >= reports for series in self._series):
            total = sum(series[reports - 1][1] for series in self._series)
            self._watch(f"tick {second} {total}")

    def check_end(self, number: int, process: subprocess.Popen[str]) -> None:
        """Raises LoadFailed for a client that ended without its figures."""
        if number not in self._parts:
            assert process.stderr is not None
            reason = process.stderr.read().strip()
            raise LoadFailed(reason or f"load client ended with code {process.wait()}")


def _counted(line: str, series: list[tuple[float, int]]) -> Counted:
    found: dict[str, Any] = msgspec.json.decode(line)
    latencies = LatencyHistogram(found.pop("bins"))
    return Counted(**found, latencies=latencies, series=series)


@functools.cache
def load_program(*, is_secure: bool = False) -> Path:
    """The compiled client, with signatures and TLS if `is_secure`. Raises LoadFailed if it cannot be made."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None or sys.platform != "linux":
        raise LoadFailed(f"cannot compile the load client: install one of {', '.join(COMPILERS)} on Linux")
    kind = "-secure" if is_secure else ""
    directory = cache_dir("benchmarks") / f"{digest(SOURCE)}-{platform.machine()}{kind}"

    def build(target: Path) -> None:
        command = [compiler, *FLAGS, "-o", str(target / "load"), str(SOURCE)]
        if is_secure:
            command += [*SECURE_FLAGS, *SECURE_LIBRARIES]
        subprocess.run(  # noqa: S603 - the compiler
            command, check=True, timeout=COMPILE_TIMEOUT_S, capture_output=True, text=True
        )

    try:
        build_once(directory, build)
    except subprocess.SubprocessError as error:  # such as a compiler without the headers of the C library
        detail = getattr(error, "stderr", None) or error
        raise LoadFailed(f"cannot compile the load client with {compiler}: {detail}") from None
    return directory / "load"
