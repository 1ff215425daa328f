"""The console against Apache's brokers, 5.3.3 and 4.9: every page, and the tasks of people in a browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from skylark.console.server import PAGES
from skylark.console.settings import ConsoleSettings
from tests.interop.servers import SETTINGS, ApacheServers
from tests.interop.versions import MAIN, OLDEST
from tests.support.console import console_client, running_console
from tests.support.console_data import stocked
from tests.support.console_tasks import LONG_TASKS, TASKS, Desk, launched, opened
from tests.support.names import fresh_name

pytestmark = [pytest.mark.nightly, pytest.mark.interop("java", "mvn"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=[MAIN, OLDEST])
def namesrv(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of Apache's with the data of the shop."""
    directory = tmp_path_factory.mktemp("apache")
    with ApacheServers(directory, SETTINGS, request.param) as running, stocked(running.name_server, 60):
        yield running.name_server


async def test_every_page_shows_apaches_cluster(namesrv: str) -> None:
    topic = fresh_name("console")
    async with console_client(ConsoleSettings(clusters={"local": namesrv})) as client:
        made = await client.post("/local/new-topic", {"topic": topic, "queues": "2"})
        assert made.status == 303, made.text
        sent = await client.post(
            f"/local/topics/{topic}/send", {"body": '{"id": 1}', "tag": "paid", "keys": "k-1"}
        )
        assert sent.status == 303, sent.text
        place = sent.headers["location"].partition("?")[0]
        assert "&#34;id&#34;" in (await client.get(place)).text
        broker = place.split("/")[5]
        group = (await client.ask("PUT", f"/api/v1/local/groups/{topic}", b"{}")).json()["group"]
        for path, _ in PAGES:
            if not re.search(r"\{(client|id|offset|job|user|table)\}", path):
                page = await client.get(f"/local/{path.format(topic=topic, group=group, broker=broker)}")
                assert page.status == 200, (path, page.text)
        found = (await client.get(f"/local/topics/{topic}/messages.json?where=body.id=1")).json()
        assert [message["keys"] for message in found["messages"]] == [["k-1"]]


@pytest.fixture
def browser() -> Iterator[Browser]:
    """For one test: it runs an event loop, and another test has its own."""
    if shutil.which("chromium") is None:
        pytest.skip("needs chromium: run `make setup`")
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(namesrv: str) -> Iterator[str]:
    with running_console(ConsoleSettings(clusters={"local": namesrv})) as address:
        yield f"{address}/local"


@pytest.mark.parametrize("task", [*TASKS, *LONG_TASKS], ids=lambda task: task.__name__)
def test_a_task_is_done_on_apaches_cluster(
    browser: Browser, address: str, namesrv: str, task: Callable[[Desk], None]
) -> None:
    with opened(browser) as page:
        task(Desk(page, address, namesrv, lambda **more: opened(browser, **more)))
