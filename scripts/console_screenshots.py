"""Pictures of every page of the console in both themes: `python -m scripts.console_screenshots DIR`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

from skylark.console.settings import ConsoleSettings
from tests.support.console import running_console
from tests.support.console_data import shop

PAGES = {
    "overview": "",
    "topics": "topics",
    "messages": "topics/orders/messages",
    "message": "topics/orders/at/broker-a/0/1",
    "queues": "topics/orders",
    "topic-settings": "topics/orders/settings",
    "send": "topics/orders/send?like=broker-a:0:1",
    "groups": "groups",
    "group": "groups/search",
    "members": "groups/billing/members",
    "brokers": "brokers",
    "broker": "brokers/broker-a",
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
    "sql": "sql?q=select+value.customer.city,+tags,+count(*)+as+orders,+round(sum(value.amount),2)+as+amount"
    "%0Afrom+orders%0Agroup+by+all%0Aorder+by+amount+desc",
    "clients": "clients",
    "health": "health",
    "changes": "changes",
    "new-topic": "new-topic",
}
SIZES = {"": (1440, 900), "-phone": (390, 844)}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
CURVE_MS = 5000
"""Time for curves to begin."""


def launch(browser_type: object) -> Browser:
    """Debian's Chromium. Raises FileNotFoundError without it."""
    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("chromium is missing; run `make setup`")
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"] if os.getuid() == 0 else []
    browser: Browser = browser_type.launch(executable_path=path, args=arguments)  # type: ignore[attr-defined]
    return browser


def main(directory: Path, wanted: list[str]) -> None:
    """Write the pictures of the wanted pages, or of all."""
    directory.mkdir(parents=True, exist_ok=True)
    with (
        shop() as servers,
        running_console(ConsoleSettings(clusters={"local": servers.namesrv})) as address,
        sync_playwright() as playwright,
    ):
        browser = launch(playwright.chromium)
        for theme in THEMES:
            for size, (width, height) in SIZES.items():
                context = browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=theme, locale="en-GB"
                )
                page = context.new_page()
                page.goto(f"{address}/local/")
                page.wait_for_timeout(CURVE_MS)
                for name, path in PAGES.items():
                    if not wanted or name in wanted:
                        page.goto(f"{address}/local/{path}")
                        page.evaluate("document.fonts.ready.then(() => true)")
                        page.screenshot(path=directory / f"{name}-{theme}{size}.png", full_page=bool(size))
                context.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
