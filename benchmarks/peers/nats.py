"""NATS with JetStream: its server is a Go program, built once into the cache."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from pathlib import Path

from benchmarks.peers.java import MissingToolchain
from skylark.bench.build_cache import build_once, cache_dir
from skylark.processes import GroupProcess, PortReservation, ProcessFailed, Server, listens

POM = Path(__file__).parent / "drivers" / "pom-nats.xml"
"""Of its Java client."""
CLIENT_VERSION = "2.26.2"
VERSION = "2.15.2"
MODULE = "github.com/nats-io/nats-server/v2"
BUILD_TIMEOUT_S = 480
ANSWER_TIMEOUT_S = 5


def fetch_server() -> Path:
    """The program, built by `go install` on first use. Raises MissingToolchain."""
    go = shutil.which("go")
    directory = cache_dir("peers") / f"nats-server-{VERSION}"
    if not directory.is_dir() and go is None:
        raise MissingToolchain("Go (go) is not installed: it builds nats-server")
    build_once(directory, lambda target: _install(str(go), target))
    return directory / "nats-server"


def _install(go: str, target: Path) -> None:
    """Everything that Go keeps while it builds stays beside the target and goes with it."""
    log = target / "build.log"
    work = target.parent / "go"
    environment = {"GOBIN": str(target), "GOFLAGS": "-modcacherw", "GOCACHE": str(work / "cache")}
    environment |= {"GOPATH": str(work / "path"), "CGO_ENABLED": "0"}
    try:
        with GroupProcess([go, "install", f"{MODULE}@v{VERSION}"], log=log, env=environment) as process:
            if process.wait(BUILD_TIMEOUT_S):
                raise MissingToolchain(f"nats-server {VERSION} cannot be built: {process.log_tail()}")
    except ProcessFailed as error:
        raise MissingToolchain(f"nats-server {VERSION} cannot be built: {error}") from error
    log.unlink()


class NatsServer(Server):
    """A server whose streams lie below `home`; every message is synced to the disk if `sync`."""

    title = "nats"

    def __init__(self, program: Path, home: Path, *, sync: bool) -> None:
        super().__init__(home, PortReservation(0))
        self._program = program
        self._sync = sync

    @property
    def url(self) -> str:
        return f"nats://{self.address}"

    def command(self, start: int) -> list[str]:
        jetstream: dict[str, object] = {"store_dir": str(self.home / "streams")}
        if self._sync:
            jetstream["sync_interval"] = "always"
        file = self.home / "nats.conf"  # JSON is part of its configuration language
        file.write_text(json.dumps({"listen": self.address, "jetstream": jetstream}))
        return [str(self._program), "--config", str(file)]

    def wait_until_serving(self) -> None:
        self._running().wait_until(
            lambda: listens(self.address, ANSWER_TIMEOUT_S), "connection", self.start_timeout_s
        )

    def try_send(self, stream: str) -> bool:
        """Whether a message into a new stream was acknowledged: as much protocol as a first send needs."""
        with contextlib.suppress(OSError), self._connect() as connection:
            config = {"name": stream, "subjects": [stream], "storage": "file"}
            created = _request(connection, f"$JS.API.STREAM.CREATE.{stream}", json.dumps(config).encode())
            if b'"error"' in created:
                return False
            return b'"seq"' in _request(connection, stream, os.urandom(128))
        return False

    def _connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        connection = socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S)
        connection.sendall(b'CONNECT {"verbose":false,"lang":"python","version":"1"}\r\nSUB inbox 1\r\n')
        return connection


def _request(connection: socket.socket, subject: str, body: bytes) -> bytes:
    """The payload of the first answer. Raises OSError."""
    connection.sendall(b"PUB %s inbox %d\r\n%s\r\n" % (subject.encode(), len(body), body))
    with connection.makefile("rb") as stream:
        while line := stream.readline():
            if line.startswith(b"MSG "):
                return stream.read(int(line.split()[-1]))
    raise ConnectionError("the server hung up")
