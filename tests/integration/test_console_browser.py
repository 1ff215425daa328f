"""Tasks in the console, in a browser, on our broker; and every page with axe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, sync_playwright

from skylark.console.settings import ConsoleSettings
from skylark.testing import EmbeddedServers
from tests.support.console import running_console
from tests.support.console_data import shop
from tests.support.console_tasks import LONG_TASKS, PHONE, TASKS, WIDE, Desk, launched, opened

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None and not os.environ.get("CI"), reason="needs chromium: run `make setup`"
)
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with shop(60) as servers:
        yield servers


@pytest.fixture(scope="module")
def address(servers: EmbeddedServers) -> Iterator[str]:
    with running_console(ConsoleSettings(clusters={"local": servers.namesrv})) as address:
        yield f"{address}/local"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.mark.parametrize(
    "task",
    [*TASKS, *(pytest.param(task, marks=pytest.mark.nightly) for task in LONG_TASKS)],
    ids=lambda task: task.__name__,
)
def test_a_task_is_done(
    browser: Browser, address: str, servers: EmbeddedServers, task: Callable[[Desk], None]
) -> None:
    with opened(browser) as page:
        task(Desk(page, address, servers.namesrv, lambda **more: opened(browser, **more)))


PAGES = (
    "/", "/topics", "/topics/orders", "/topics/orders/messages", "/topics/orders/at/broker-a/0/0",
    "/topics/orders/send", "/topics/orders/settings", "/groups", "/groups/billing", "/groups/billing/members",
    "/groups/search/why", "/groups/search/reset?topic=orders&to=begin", "/dead-letters/billing", "/brokers",
    "/brokers/broker-a", "/brokers/broker-a/settings", "/tables", "/name-servers", "/clients",
    "/health", "/changes", "/new-topic",
    "/map", "/store", "/controllers", "/access", "/sql?q=select+*+from+orders+limit+5", "/pipelines",
    "/pipelines/etl-payments-77e0b3f1",
)  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desk", "phone"])
def test_every_page_is_accessible(browser: Browser, address: str, theme: str, size: dict[str, int]) -> None:
    with opened(browser, color_scheme=theme, viewport=size) as page:
        for path in PAGES:
            page.goto(f"{address}{path}")
            found = Axe().run(page).response["violations"]
            serious = [(item["id"], item["nodes"][0]["html"]) for item in found if item["impact"] in SERIOUS]
            assert serious == [], path
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], path
