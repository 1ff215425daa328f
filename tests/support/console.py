"""The console in the test's own loop, asked without a network; or on a port, for browsers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import uvicorn

from skylark.console.server import application
from skylark.console.settings import ConsoleSettings

START_TIMEOUT_S = 30


@dataclass
class Answer:
    """A response of the console."""

    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class ConsoleClient:
    """Calls the application as a server would, without sockets."""

    app: Any
    headers: dict[str, str] = field(default_factory=lambda: {"host": "127.0.0.1:8088"})

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, headers=headers)

    async def post(self, path: str, form: dict[str, Any] | None = None, **headers: str) -> Answer:
        """A form, as a browser sends it from our own page."""
        sent = {"origin": f"http://{self.headers['host']}", "sec-fetch-site": "same-origin", **headers}
        sent["content-type"] = "application/x-www-form-urlencoded"
        return await self.ask("POST", path, urlencode(form or {}, doseq=True).encode(), sent)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        answer = Answer(0, {})
        async for message in self.stream(method, path, body, headers):
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")
        return answer

    async def stream(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> AsyncGenerator[MutableMapping[str, Any]]:
        """What the application sends, until it ends or the caller stops."""
        parts = urlsplit(path)
        sent = {name.replace("_", "-"): value for name, value in {**self.headers, **(headers or {})}.items()}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(parts.path),
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 1234),
            "server": ("127.0.0.1", 8088),
        }
        messages: asyncio.Queue[MutableMapping[str, Any] | None] = asyncio.Queue()
        asked = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def run() -> None:
            try:
                await self.app(scope, receive, messages.put)
            finally:
                await messages.put(None)

        task = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
            await task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.asynccontextmanager
async def console_client(settings: ConsoleSettings) -> AsyncIterator[ConsoleClient]:
    """A started console; its connections are closed at the end."""
    app = application(settings)
    incoming: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    outgoing: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()

    async def live() -> None:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}}, incoming.get, outgoing.put)

    life = asyncio.create_task(live())
    await incoming.put({"type": "lifespan.startup"})
    assert (await outgoing.get())["type"] == "lifespan.startup.complete"
    try:
        yield ConsoleClient(app)
    finally:
        await incoming.put({"type": "lifespan.shutdown"})
        assert (await outgoing.get())["type"] == "lifespan.shutdown.complete"
        await life


@contextlib.contextmanager
def running_console(settings: ConsoleSettings) -> Iterator[str]:
    """The console on a free port; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(application(settings), log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), name="test-console", daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(START_TIMEOUT_S)
