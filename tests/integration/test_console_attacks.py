"""Attacks on the console: scripts in data, other sites, paths, sizes, slow clients.

Forged forms, DNS rebinding, headers and users are in `test_console.py` and `test_console_api.py`, SQL that
reads files in `test_console_sql.py`.
"""

from __future__ import annotations

import asyncio
import http.server
import os
import re
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator, MutableMapping
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from skylark import Admin, ClientSettings, Message, Producer, PushConsumer
from skylark.admin.results import Group
from skylark.console import guard, server
from skylark.console.server import PAGES, serve
from skylark.console.settings import ConsoleSettings
from skylark.pipelines.job_reporter import JobReporter
from skylark.testing import EmbeddedServers
from tests.support.console import ConsoleClient, console_client, running_console

needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None and not os.environ.get("CI"), reason="needs chromium: run `make setup`"
)
SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'
TEMPLATE = "{{ 7 * 7 }}{% raise %}"
HOSTILE = f"{SCRIPT}{IMAGE}{TEMPLATE}"


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    """Everything that others may write holds a script: keys, tags, properties, bodies, client ids, jobs."""
    with EmbeddedServers(settings={"auto_create_topics": True}) as servers:
        servers.create_topic("orders", 1)
        dead = Message("%DLQ%billing", HOSTILE.encode(), keys=[IMAGE.replace(" ", "")], tags="<b>")
        with Admin(namesrv=servers.namesrv) as admin, Producer("shop", namesrv=servers.namesrv) as producer:
            admin.groups.create(Group("billing"))
            admin.topics.create("%DLQ%billing", queues=1)
            message = Message(
                "orders",
                f'{{"name": "{SCRIPT}"}}'.encode(),
                tags="<b>",
                keys=[SCRIPT, IMAGE.replace(" ", "")],
                properties={SCRIPT: IMAGE, "note": HOSTILE},
            )
            producer.send(message)
            producer.send(dead)
            consumer = PushConsumer(
                "billing", namesrv=servers.namesrv, client=ClientSettings(instance_name=SCRIPT)
            )
            consumer.subscribe("orders", "*", lambda _: None)
            with (
                consumer,
                JobReporter(
                    servers.namesrv, kind=SCRIPT, name="job-<b>", topics=[SCRIPT], outputs=[f"delta:{IMAGE}"],
                    group=SCRIPT, directory=IMAGE, every_s=0.1,
                ) as job,
            ):  # fmt: skip
                job.batch(query=SCRIPT, number=0, rows=1, rows_per_s=1.0, lag=1)
                yield servers


@pytest.fixture
async def client(servers: EmbeddedServers) -> AsyncIterator[ConsoleClient]:
    async with console_client(ConsoleSettings(clusters={"local": servers.namesrv})) as client:
        yield client


PATHS = [
    path.format(topic="orders", group="billing", broker="broker-a", queue=0, offset=0, job="job-%3Cb%3E")
    for path, _ in PAGES
    if not re.search(r"\{(client|id|user|table)\}", path)
] + ["topics/%25DLQ%25billing/messages", "find?q=%3Cscript%3Ealert(1)%3C/script%3E", "sql?q=select+'%3Cb%3E'"]


async def test_what_others_wrote_is_text_on_every_page(client: ConsoleClient) -> None:
    for path in PATHS:
        page = await client.get(f"/local/{path}")
        assert page.status == 200, (path, page.text)
        for hostile in (SCRIPT, "<img src=x", "<b>", ">49{"):
            assert hostile not in page.text, (path, hostile)


@needs_browser
def test_no_page_runs_what_others_wrote(servers: EmbeddedServers) -> None:
    faults: list[str] = []
    with (
        running_console(ConsoleSettings(clusters={"local": servers.namesrv})) as address,
        sync_playwright() as playwright,
    ):
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page()
        page.on("dialog", lambda dialog: faults.append(f"{page.url} {dialog.message}"))
        page.on("pageerror", lambda error: faults.append(f"{page.url} {error}"))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        for path in ("", "topics/orders/messages", "topics/orders/at/broker-a/0/0", "clients", "pipelines",
                     "tables", "groups/billing/members", "dead-letters/billing", "map"):  # fmt: skip
            page.goto(f"{address}/local/{path}")
            page.locator("h1").wait_for()
        browser.close()
    assert faults == []


@needs_browser
def test_another_site_can_neither_frame_nor_read_nor_post(servers: EmbeddedServers) -> None:
    evil = b"""<!doctype html><iframe id=frame src="%(it)s/local/topics/orders/settings"></iframe>
        <form id=form method=post action="%(it)s/local/topics/orders/send">
        <input name=body value=stolen></form>"""
    with (
        running_console(ConsoleSettings(clusters={"local": servers.namesrv})) as address,
        other_site(evil.replace(b"%(it)s", address.encode())) as site,
        sync_playwright() as playwright,
    ):
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page()
        page.goto(site)
        framed = page.frames[1]
        assert framed.url.startswith("chrome-error:") or "orders" not in framed.content()
        read = page.evaluate(
            "url => fetch(url).then(() => 'read', () => 'refused')", f"{address}/local/topics.json"
        )
        assert read == "refused"
        with page.expect_navigation():
            page.evaluate("document.getElementById('form').submit()")
        assert "comes from another" in page.content()
        browser.close()
    with Admin(namesrv=servers.namesrv) as admin:
        assert all(message.body != b"stolen" for message in admin.messages.newest("orders").messages)


class _Site(http.server.BaseHTTPRequestHandler):
    page = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: object) -> None: ...


class other_site:
    """A page of another origin, on the same machine."""

    def __init__(self, page: bytes) -> None:
        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Site", (_Site,), {"page": page})
        )
        self._thread = threading.Thread(target=self._server.serve_forever, name="other-site")

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://localhost:{self._server.server_port}/"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py", "/static//etc/passwd",
        "/static/%2e%2e%2f%2e%2e%2fsettings.py", "/static/..\\server.py", "/..%2f..%2fetc/passwd",
        "/local/tables/..%2f..%2fetc", "/local/topics/..%2f..%2fetc%2fpasswd", "/local/../../etc/passwd",
        "/local/topics/orders%00/messages", "/local/brokers/127.0.0.1%3A1", "//evil.example/local",
        "/api/v1/local/topics/..%2f..", "/api/v1/..%2f/topics", "/local/topics/" + "x" * 5000,
    ],
)  # fmt: skip
async def test_paths_lead_nowhere_else(client: ConsoleClient, path: str) -> None:
    answer = await client.get(path)
    assert 300 <= answer.status < 500, answer.text
    assert "root:" not in answer.text and "import " not in answer.text
    location = answer.headers.get("location", "/").removeprefix("http://127.0.0.1:8088")
    assert location.startswith("/") and not location.startswith("//")


async def test_a_body_of_unknown_length_is_limited(client: ConsoleClient) -> None:
    """Neither its size nor its time can be chosen by who sends it."""
    sent = 0

    async def endless() -> MutableMapping[str, Any]:
        nonlocal sent
        sent += 1 << 20
        return {"type": "http.request", "body": b"x" * (1 << 20), "more_body": True}

    answer = await asked(client, endless)
    assert answer == 413 and sent <= guard.REQUEST_BYTES_MAX + (2 << 20)


async def test_a_body_must_arrive_in_time(client: ConsoleClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_S", 0.1)

    async def never() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    assert await asked(client, never) == 408


async def asked(client: ConsoleClient, receive: Any) -> int:
    """The status for a form whose body `receive` gives."""
    statuses: list[int] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = {"host": "127.0.0.1:8088", "origin": "http://127.0.0.1:8088"}
    path = "/local/topics/orders/send"
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8088), "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
    }  # fmt: skip
    await client.app(scope, receive, send)
    return statuses[0]


async def test_slow_clients_are_ended_and_others_are_served(
    servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.5)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = ConsoleSettings(clusters={"local": servers.namesrv}, port=0)
    task = asyncio.create_task(serve(settings, ready.set_result))
    port = int((await ready).rstrip("/").rpartition(":")[2])
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(server.CONNECTIONS_MAX // 2)]
    try:
        for number, connection in enumerate(slow):
            if number % 2:
                connection.send(b"GET /local/ HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        answer = await asyncio.to_thread(_get, port)
        assert answer.startswith(b"HTTP/1.1 200")
        for connection in slow:
            connection.settimeout(20)
            assert await asyncio.to_thread(connection.recv, 1) == b""
    finally:
        for connection in slow:
            connection.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _get(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(
            b"GET /static/console.css HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        return connection.recv(100)
