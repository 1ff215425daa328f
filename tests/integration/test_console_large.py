"""The console of a large cluster: requests grow with brokers and the rows on screen, not with what exists."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from skylark.client.session.session import Session
from skylark.console import watch
from skylark.console.settings import ConsoleSettings
from tests.support.console import console_client, running_console
from tests.support.console_large import large_cluster

LETTERS = 20
LOOK = 16 + 3 * LETTERS
"""Requests for what all pages share: a few, and three for each dead-letter topic that is counted at once."""
ROWS = 50
ALLOWED = {
    "": 8 + ROWS,
    "topics": ROWS,
    "topics?page=3": ROWS,
    "topics/topic-0001": 4,
    "topics/topic-0001/messages": 30,
    "topics/topic-0001/groups": 2 + 2 * ROWS,
    "groups": ROWS,
    "groups?sort=group&page=4": ROWS,
    "groups/group-0001": 4,
    "groups/group-0001/why": 12,
    "dead-letters": 0,
    "pipelines": 20,
    "tables": 20,
    "map": 20,
    "store": 4,
    "brokers": 0,
    "clients": 201,
    "find?q=topic": 0,
    "sql": 0,
}
"""By page, the requests of one look beside LOOK, with one broker."""
SHARED = ("", "topics", "topics?page=3", "groups", "groups?sort=group&page=4")
"""Pages whose requests all watchers share; the others show one thing, or are asked for rarely."""
PAINT_MS_MAX = 1000


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Every request to a broker or name server, by its name."""
    counts: Counter[str] = Counter()
    original = Session.call

    async def counting(self: Session, address: str, request: Any, **more: Any) -> Any:
        counts[type(request).__name__] += 1
        return await original(self, address, request, **more)

    monkeypatch.setattr(Session, "call", counting)
    yield counts


async def test_ten_watchers_ask_no_more_than_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LETTER_TOPICS_MAX", LETTERS)
    with (
        large_cluster(tmp_path / "data", topics=110, groups=220, letters=40) as cluster,
        counted(monkeypatch) as counts,
    ):
        async with console_client(ConsoleSettings(clusters={"local": cluster.namesrv})) as client:
            first = await client.get("/local/brokers")
            assert first.status == 200
            assert counts.total() <= LOOK, counts
            for path, allowed in ALLOWED.items():
                counts.clear()
                answers = await asyncio.gather(*(client.get(f"/local/{path}") for _ in range(10)))
                assert {answer.status for answer in answers} == {200}, path
                watchers = 1 if path in SHARED else 10
                assert counts.total() <= LOOK + watchers * allowed, (path, counts)
            assert len((await client.get("/local/groups.json?page=5")).json()["groups"]) == 20
            # Dead letters that were not counted at first are counted next; until then they are unknown.
            rows = (await client.get("/local/dead-letters.json")).json()["dead_letters"]
            assert len(rows) in (LETTERS, 2 * LETTERS)


@pytest.mark.nightly
@pytest.mark.skipif(
    shutil.which("chromium") is None and not os.environ.get("CI"), reason="needs chromium: run `make setup`"
)
def test_every_page_of_a_thousand_topics_is_painted_within_a_second(tmp_path: Path) -> None:
    with (
        large_cluster(tmp_path / "data", topics=1000, groups=2300, letters=300) as cluster,
        running_console(ConsoleSettings(clusters={"local": cluster.namesrv})) as address,
        sync_playwright() as playwright,
    ):
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{address}/static/icon.svg")  # the browser starts a process for the site
        painted = {}
        for path in ALLOWED:
            page.goto(f"{address}/local/{path}")
            page.locator("h1").wait_for()
            painted[path] = page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? performance.now()"
            )
        browser.close()
    slow = {path: round(ms) for path, ms in painted.items() if ms > PAINT_MS_MAX}
    assert slow == {}, painted
