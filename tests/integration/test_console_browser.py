"""Tasks in the console, in a browser: any console error, exception or refused content fails the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from skylark import Message, Producer
from skylark.console.settings import ConsoleSettings
from skylark.testing import EmbeddedServers
from tests.support.console import running_console
from tests.support.console_data import shop

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None and not os.environ.get("CI"), reason="needs chromium: run `make setup`"
)
WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
TIMEOUT_MS = 20_000
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
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, **options: object) -> Iterator[Page]:
    """A page in a browser of its own that must not complain."""
    context = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **options})  # type: ignore[arg-type]
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}"))
    try:
        yield page
    finally:
        context.close()
    assert faults == []


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with opened(browser) as page:
        yield page


def test_a_message_is_found_by_a_field_of_its_body(page: Page, address: str) -> None:
    page.goto(f"{address}/topics")
    page.get_by_role("link", name="orders", exact=True).click()
    page.get_by_label("Condition on properties and body").fill("body.customer.city = 'Oslo' AND body.id < 10")
    page.keyboard.press("Enter")
    expect(page.locator("#grid-messages tbody tr")).to_have_count(2)
    page.locator("#grid-messages tbody tr").first.get_by_role("link").first.click()
    expect(page.locator("#body-json")).to_contain_text('"city": "Oslo"')
    page.get_by_role("tab", name="Hex").click()
    expect(page.locator("#body-hex")).to_contain_text("7b 22 69 64 22")
    page.get_by_role("link", name="Journey").click()
    expect(page.get_by_text("Sent by its producer")).to_be_visible()


def test_new_messages_appear_live_until_stopped(page: Page, address: str, servers: EmbeddedServers) -> None:
    with Producer("live", namesrv=servers.namesrv) as producer:
        producer.send(Message("audit-log", b"before"))
        page.goto(f"{address}/topics/audit-log/messages")
        page.get_by_role("button", name="Live").click()
        expect(page.locator("#live")).to_have_text("live")
        producer.send(
            Message("audit-log", b"<img src=x onerror=alert(1)>", keys=["<script>alert(2)</script>"])
        )
        expect(page.locator("#grid-messages tbody tr").first).to_contain_text("<img src=x onerror=alert(1)>")
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Live")).to_be_visible()


def test_a_group_is_reset_after_a_preview_and_put_back(page: Page, address: str) -> None:
    page.goto(f"{address}/groups/search")
    lag = page.locator("#figures .value").nth(1)
    expect(lag).to_have_text("32")
    page.get_by_role("link", name="Reset").click()
    page.get_by_label("To", exact=True).fill("end")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("0 messages come again, 32 are skipped")).to_be_visible()
    page.get_by_role("button", name="Reset as shown").click()
    expect(lag).to_have_text("0")
    page.get_by_role("button", name="Put back").click()
    expect(page.get_by_role("cell", name="put back", exact=True)).to_be_visible()
    page.goto(f"{address}/groups/search")
    expect(lag).to_have_text("32")


def test_a_dead_letter_is_edited_and_sent_again(page: Page, address: str) -> None:
    page.goto(f"{address}/dead-letters")
    page.get_by_role("link", name="billing").click()
    page.locator("#grid-letters tbody tr").first.get_by_role("link", name="Edit, try").click()
    page.get_by_label("Body").fill("{broken")
    expect(page.get_by_text("This is not JSON.")).to_be_visible()
    page.get_by_label("Body").fill('{"id": 7}')
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("status")).to_contain_text("sent dead letters of billing")


def test_the_map_leads_to_a_group(page: Page, address: str) -> None:
    page.goto(f"{address}/map")
    expect(page.locator("svg.map .link").first).to_be_attached()  # a straight line has no height
    page.get_by_role("link", name="search").first.click()
    expect(page.get_by_role("heading", name="search", level=1)).to_be_visible()


def test_a_failed_job_says_why(page: Page, address: str) -> None:
    page.goto(f"{address}/")
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", name="Pipelines", level=1)).to_be_visible()
    row = page.locator("#grid-jobs tbody tr", has_text="etl-payments")
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("2,190")
    page.get_by_role("link", name="cdc-users").click()
    expect(page.get_by_role("alert")).to_contain_text("expected a Debezium event")


def test_a_query_over_a_topic_is_run_and_shared(browser: Browser, page: Page, address: str) -> None:
    page.goto(f"{address}/")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.get_by_label("Query").fill(
        "select value.customer.city, count(*) n from orders group by 1 order by 1"
    )
    page.keyboard.press("Control+Enter")
    expect(page.locator("#grid-answer tbody tr").first).to_contain_text("Berlin")
    expect(page.get_by_role("status")).to_contain_text("5 rows")
    with opened(browser) as other:
        other.goto(page.url)
        expect(other.locator("#grid-answer tbody tr")).to_have_count(5)


def test_a_message_is_sent_from_an_old_one_with_the_keyboard_alone(page: Page, address: str) -> None:
    page.goto(f"{address}/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("ord")
    page.keyboard.press("Enter")
    expect(page.locator("#grid-topics tbody tr")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="orders")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Send again").press("Enter")
    page.get_by_label("Tag").press("Control+a")
    page.keyboard.type("again")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("sent to orders")
    expect(page.locator(".properties").first).to_contain_text("again")


def test_a_link_shows_the_same_in_another_browser_and_language(browser: Browser, address: str) -> None:
    with opened(browser, locale="zh-CN", viewport=PHONE, color_scheme="dark") as page:
        page.goto(f"{address}/topics/orders/messages?tag=paid")
        expect(page.locator("#grid-messages tbody tr")).to_have_count(20)
        expect(page.get_by_role("link", name="主题", exact=True).first).to_be_visible()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        # Only tables are wider than the screen, in their own box.
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.get_by_role("link", name="EN").click()
        expect(page.get_by_role("link", name="Topics", exact=True).first).to_be_visible()


PAGES = (
    "/", "/topics", "/topics/orders", "/topics/orders/messages", "/topics/orders/at/broker-a/0/0",
    "/topics/orders/send", "/topics/orders/settings", "/groups", "/groups/billing", "/groups/billing/members",
    "/groups/search/why", "/groups/search/reset?topic=orders&to=begin", "/dead-letters/billing", "/brokers",
    "/brokers/broker-a", "/name-servers", "/clients", "/health", "/changes", "/new-topic",
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
