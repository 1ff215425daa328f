"""Stands before one HTTP server, in a process of its own, and fails requests as a test tells it.

Its own process, because a client library may hold the interpreter's lock while it waits for the reply.
`python -m tests.support.faulty_http PORT UPSTREAM` runs it; `FaultyHttp` starts and steers it.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from skylark.processes import HOST, PortReservation, Server, listens, python_command

CONTROL = "/-/"
TIMEOUT_S = 60.0


@dataclass
class Fault:
    """What happens to the next `times` requests that match: `refuse` them with 503, `drop` the connection
    before they reach the server, `lose` the reply after the server has done them."""

    method: str
    path: str
    kind: str
    times: int

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and method == self.method and re.search(self.path, path) is not None


class Handler(BaseHTTPRequestHandler):
    """Passes requests on, or not."""

    protocol_version = "HTTP/1.1"
    upstream = ""
    faults: ClassVar[list[Fault]] = []
    requests: ClassVar[list[str]] = []
    failed: ClassVar[list[str]] = []
    lock = threading.Lock()

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith(CONTROL):
            self._control(body)
            return
        fault = self._fault()
        if fault is not None and fault.kind == "refuse":
            self._reply(503, [], b"")
        elif fault is not None and fault.kind == "drop":
            self.close_connection = True
        else:
            self._pass(body, is_lost=fault is not None)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request

    def _fault(self) -> Fault | None:
        with self.lock:
            self.requests.append(f"{self.command} {self.path}")
            for fault in self.faults:
                if fault.matches(self.command, self.path):
                    fault.times -= 1
                    self.failed.append(f"{fault.kind} {self.command} {self.path}")
                    return fault
        return None

    def _control(self, body: bytes) -> None:
        with self.lock:
            if body:
                self.faults.append(Fault(**json.loads(body)))
            state = {"requests": self.requests, "failed": self.failed}
            self._reply(200, [], json.dumps(state).encode())

    def _pass(self, body: bytes, *, is_lost: bool) -> None:
        upstream = http.client.HTTPConnection(self.upstream, timeout=TIMEOUT_S)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body or None)
            reply = upstream.getresponse()
            data = reply.read()
        except OSError:  # the server is down
            self.close_connection = True
            return
        finally:
            upstream.close()
        if is_lost:
            self.close_connection = True
            return
        kept = [(n, v) for n, v in reply.getheaders() if n.lower() not in ("transfer-encoding", "connection")]
        self._reply(reply.status, kept, data)

    def _reply(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: `requests` has it."""


class FaultyHttp(Server):
    """The process, for tests."""

    title = "faulty-http"

    def __init__(self, home: Path, upstream: str) -> None:
        super().__init__(home, PortReservation(0))
        self._upstream = upstream

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    def command(self, start: int) -> list[str]:
        return python_command("tests.support.faulty_http", str(self.port), self._upstream)

    def wait_until_serving(self) -> None:
        self._running().wait_until(lambda: listens(self.address, 1), "listening", 60)

    def fail(self, method: str, path: str, kind: str, times: int = 1) -> None:
        """Add a fault for requests whose path contains the pattern."""
        self._ask({"method": method, "path": path, "kind": kind, "times": times})

    @property
    def requests(self) -> list[str]:
        """What clients asked, in order."""
        return self._ask(None)["requests"]

    @property
    def failed(self) -> list[str]:
        """The requests that met a fault."""
        return self._ask(None)["failed"]

    def _ask(self, fault: dict[str, Any] | None) -> dict[str, list[str]]:
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)
        try:
            connection.request("POST", CONTROL, json.dumps(fault) if fault else None)
            found: dict[str, list[str]] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return found


def main(port: str, upstream: str) -> None:
    Handler.upstream = upstream
    server = ThreadingHTTPServer((HOST, int(port)), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
