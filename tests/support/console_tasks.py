"""What people do in the console, in a browser, on any cluster that has the data of `console_data`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, Page, Playwright, expect

from skylark import Admin, Message, Producer
from tests.support.names import fresh_name

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
TIMEOUT_MS = 60_000
expect.set_options(timeout=TIMEOUT_MS)  # not 5 s: machines may be busy


def launched(playwright: Playwright) -> Browser:
    """Debian's Chromium."""
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"] if os.getuid() == 0 else []
    return playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)


@contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page in a browser of its own: any console error, exception or refused content fails the test."""
    context = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **options})
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


@dataclass(frozen=True)
class Desk:
    """Where a task is done; `opened` gives another browser."""

    page: Page
    address: str
    namesrv: str
    opened: Callable[..., AbstractContextManager[Page]]


def a_message_is_found_by_a_field_of_its_body(desk: Desk) -> None:
    page, address = desk.page, desk.address
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


def new_messages_appear_live_until_stopped(desk: Desk) -> None:
    page, address = desk.page, desk.address
    with Producer("live", namesrv=desk.namesrv) as producer:
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


def a_group_is_reset_after_a_preview_and_put_back(desk: Desk) -> None:
    page, address = desk.page, desk.address
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


def a_dead_letter_is_edited_and_sent_again(desk: Desk) -> None:
    page, address = desk.page, desk.address
    page.goto(f"{address}/dead-letters")
    page.get_by_role("link", name="billing").click()
    page.locator("#grid-letters tbody tr").first.get_by_role("link", name="Edit, try").click()
    page.get_by_role("link", name="Journey").click()
    expect(page.get_by_text("Became a dead letter")).to_be_visible()
    expect(page.locator(".timeline li", has_text="billing · consumed")).to_have_count(0)
    page.go_back()
    page.get_by_label("Body").fill("{broken")
    expect(page.get_by_text("This is not JSON.")).to_be_visible()
    page.get_by_label("Body").fill('{"id": 7}')
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("status")).to_contain_text("sent dead letters of billing")


def the_map_leads_to_a_group(desk: Desk) -> None:
    page, address = desk.page, desk.address
    page.goto(f"{address}/map")
    expect(page.locator("svg.map .link").first).to_be_attached()  # a straight line has no height
    page.get_by_role("link", name="search").first.click()
    expect(page.get_by_role("heading", name="search", level=1)).to_be_visible()


def a_failed_job_says_why(desk: Desk) -> None:
    page, address = desk.page, desk.address
    page.goto(f"{address}/")
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", name="Pipelines", level=1)).to_be_visible()
    row = page.locator("#grid-jobs tbody tr", has_text="etl-payments")
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("2,190")
    page.get_by_role("link", name="cdc-users").click()
    expect(page.get_by_role("alert")).to_contain_text("expected a Debezium event")


def a_query_over_a_topic_is_run_and_shared(desk: Desk) -> None:
    page, address = desk.page, desk.address
    page.goto(f"{address}/")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.get_by_label("Query").fill(
        "select value.customer.city, count(*) n from orders group by 1 order by 1"
    )
    page.keyboard.press("Control+Enter")
    expect(page.locator("#grid-answer tbody tr").first).to_contain_text("Berlin")
    expect(page.get_by_role("status")).to_contain_text("5 rows")
    with desk.opened() as other:
        other.goto(page.url)
        expect(other.locator("#grid-answer tbody tr")).to_have_count(5)


def a_message_is_sent_from_an_old_one_with_the_keyboard_alone(desk: Desk) -> None:
    page, address = desk.page, desk.address
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


def single_keys_are_listed_and_switched_off(desk: Desk) -> None:
    page = desk.page
    page.goto(f"{desk.address}/brokers")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Next row, row before, open")
    page.get_by_role("checkbox", name="Single keys work").uncheck()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.reload()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("heading", name="Brokers", level=1)).to_be_visible()
    page.get_by_role("button", name="Keys").click()
    page.get_by_role("checkbox", name="Single keys work").check()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()


def a_link_shows_the_same_in_another_browser_and_language(desk: Desk) -> None:
    with desk.opened(locale="zh-CN", viewport=PHONE, color_scheme="dark") as page:
        page.goto(f"{desk.address}/topics/orders/messages?tag=paid")
        expect(page.locator("#grid-messages tbody tr")).to_have_count(20)
        expect(page.get_by_role("link", name="主题", exact=True).first).to_be_visible()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        # Only tables are wider than the screen, in their own box.
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.get_by_role("link", name="EN").click()
        expect(page.get_by_role("link", name="Topics", exact=True).first).to_be_visible()


def a_killed_consumer_is_why_its_group_lags(desk: Desk) -> None:
    page, group = desk.page, fresh_name("killed")
    script = (
        "import sys; from skylark import PushConsumer; group, namesrv = sys.argv[1:]; "
        "consumer = PushConsumer(group, namesrv=namesrv); "
        'consumer.subscribe("shipments", "*", lambda messages: None); consumer.run()'
    )
    with (
        Admin(namesrv=desk.namesrv) as admin,
        Producer("killed", namesrv=desk.namesrv) as producer,
        subprocess.Popen([sys.executable, "-c", script, group, desk.namesrv]) as member,
    ):
        try:
            while group not in admin.groups.names() or not any(
                admin.offsets.committed(group, "shipments").values()
            ):  # limited by the test's time
                assert member.poll() is None
                producer.send(Message("shipments", b"parcel"))
                time.sleep(0.2)
            page.goto(f"{desk.address}/groups/{group}")
            expect(page.locator("#grid-queues tbody tr").first).to_contain_text(f"@{member.pid}")
            page.get_by_role("link", name="Members", exact=True).click()
            expect(page.locator("#grid-members tbody tr")).to_have_count(1)
        finally:
            member.kill()
        producer.send(Message("shipments", b"parcel"))
        page.get_by_role("link", name="Why does it lag?").click()
        expect(page.get_by_text("No member is online")).to_be_visible()
        expect(page.get_by_text(f'PushConsumer("{group}"')).to_be_visible()


def a_tail_of_five_thousand_a_second_is_followed_and_stopped(desk: Desk) -> None:
    page, topic, done = desk.page, fresh_name("flood"), threading.Event()

    def send() -> None:
        with Producer("flood", namesrv=desk.namesrv) as producer:
            batch = [Message(topic, b'{"parcel": %d}' % number) for number in range(100)]
            began, sent = time.monotonic(), 0
            while not done.is_set():
                if sent < 5000 * (time.monotonic() - began):
                    producer.send_batch(batch)
                    sent += len(batch)
                else:
                    done.wait(0.01)

    with Admin(namesrv=desk.namesrv) as admin, Producer("first", namesrv=desk.namesrv) as producer:
        admin.topics.create(topic, queues=4)
        producer.send(Message(topic, b"first"))
    flood = threading.Thread(target=send, name="flood")
    page.goto(f"{desk.address}/topics/{topic}/messages")
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#live")).to_have_text("live")
    flood.start()
    condition = page.get_by_label("Condition on properties and body")
    try:
        expect(page.locator("#tail-state")).to_contain_text(re.compile(r"passed over: \d\d,\d{3}"))
        expect(page.locator("#grid-messages tbody tr")).to_have_count(500)  # the page does not grow for ever
        condition.fill("body.parcel = 7")  # nor does it hang
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Live")).to_be_visible()
    finally:
        done.set()
        flood.join()
    condition.press("Enter")
    expect(page.locator("#grid-messages tbody tr").first).to_contain_text('{"parcel": 7}')


TASKS: tuple[Callable[[Desk], None], ...] = (
    a_message_is_found_by_a_field_of_its_body,
    new_messages_appear_live_until_stopped,
    a_group_is_reset_after_a_preview_and_put_back,
    a_dead_letter_is_edited_and_sent_again,
    the_map_leads_to_a_group,
    a_failed_job_says_why,
    a_query_over_a_topic_is_run_and_shared,
    a_message_is_sent_from_an_old_one_with_the_keyboard_alone,
    single_keys_are_listed_and_switched_off,
    a_link_shows_the_same_in_another_browser_and_language,
)
LONG_TASKS = (
    a_killed_consumer_is_why_its_group_lags,
    a_tail_of_five_thousand_a_second_is_followed_and_stopped,
)
