"""Pictures of every page of the console in both themes: `python -m scripts.console_screenshots DIR`."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Literal

import deltalake
import pyarrow
from playwright.sync_api import sync_playwright

from skylark.console.settings import ConsoleSettings
from tests.support.console import running_console
from tests.support.console_data import shop, traffic
from tests.support.console_tasks import launched

PAGES = {
    "overview": "",
    "topics": "topics",
    "messages": "topics/orders/messages",
    "message": "topics/orders/at/broker-a/0/1",
    "columns": "topics/orders/messages?columns=body.customer.city,body.amount&where=body.amount+%3E+300",
    "journey": "topics/orders/messages?key=order-20 > a[href*='/at/'] > a[href*='/journey/']",
    "queues": "topics/orders",
    "topic-settings": "topics/orders/settings",
    "send": "topics/orders/send?like=broker-a:0:1",
    "groups": "groups",
    "group": "groups/search",
    "members": "groups/billing/members",
    "member": "groups/billing/members > a[href*='/members/']",
    "owners": "groups/billing",
    "letter": "dead-letters/billing > a[href*='/edit/']",
    "proxies": "proxies",
    "find": "find?q=o",
    "brokers": "brokers",
    "broker": "brokers/broker-a",
    "broker-settings": "brokers/broker-a/settings",
    "name-servers": "name-servers",
    "map": "map",
    "store": "store",
    "controllers": "controllers",
    "access": "access",
    "why": "groups/search/why",
    "reset": "groups/search/reset?topic=orders&to=begin",
    "dead-letters": "dead-letters/billing",
    "pipelines": "pipelines",
    "pipeline": "pipelines/etl-payments-77e0b3f1",
    "tables": "tables",
    "table": "tables/orders",
    "sql": "sql?q=select+value.customer.city,+tags,+count(*)+as+orders,+round(sum(value.amount),2)+as+amount"
    "%0Afrom+orders%0Agroup+by+all%0Aorder+by+amount+desc",
    "clients": "clients",
    "health": "health",
    "changes": "changes",
    "new-topic": "new-topic",
}
LINK = " > "
"""Between the address of a page and a link there, by CSS, that leads to the page of the picture."""
VARIANTS: dict[str, tuple[int, int, Literal["light", "dark"], str]] = {
    "light": (1440, 900, "light", "en-GB"),
    "light-phone": (390, 844, "light", "en-GB"),
    "dark": (1440, 900, "dark", "en-GB"),
    "dark-phone": (390, 844, "dark", "en-GB"),
    "chinese": (1440, 900, "light", "zh-CN"),
}
"""Size, theme and language; Chinese needs a font of the system, such as Debian's fonts-wqy-zenhei."""
CURVE_MS = 20_000
"""Time for curves to begin."""


def _table() -> str:
    """A small Delta table, where the job of the shop says that it writes."""
    place = Path("lake/orders")
    for batch in range(6):
        rows = {"id": list(range(batch * 400, batch * 400 + 400)), "city": ["Oslo", "Lyon"] * 200}
        deltalake.write_deltalake(place, pyarrow.table(rows), mode="append")
    return f"delta:{place}"


def main(directory: Path, wanted: list[str]) -> None:
    """Write the pictures of the wanted pages, or of all."""
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        shop() as servers,
        traffic(servers.namesrv),
        running_console(
            ConsoleSettings(clusters={"local": servers.namesrv}, lake={"orders": _table()})
        ) as address,
        sync_playwright() as playwright,
    ):
        browser = launched(playwright)
        for variant, (width, height, theme, locale) in VARIANTS.items():
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=theme, locale=locale
            )
            page = context.new_page()
            page.goto(f"{address}/local/")
            page.wait_for_timeout(CURVE_MS)
            for name, path in PAGES.items():
                if not wanted or name in wanted:
                    start, *links = path.split(LINK)
                    page.goto(f"{address}/local/{start}")
                    for link in links:
                        page.locator(f"main {link}").first.click()
                    page.evaluate("document.fonts.ready.then(() => true)")
                    page.screenshot(path=directory / f"{name}-{variant}.png", full_page="phone" in variant)
            context.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
