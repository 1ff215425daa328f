"""Hooks of mkdocs: the site's table of contents, and links that lead out of `docs`."""

import posixpath
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
FRONT = {"Home": "index.md", "Tutorial": "tutorial.md"}
"""Pages that come first, outside the sections."""
RUNNING = "Running it"
EXPLANATION = "Explanation"
SECTIONS = {
    "How-to": "howto",
    RUNNING: None,
    "Spark": "spark",
    "Reference": "reference",
    EXPLANATION: "design",
    "中文": "zh",
}
"""The folder of each section. Pages of a folder that ORDER does not name come last, by name."""
ORDER = {
    "How-to": (
        "send-messages consume-messages choose-a-consumer duplicates test-your-code web-frameworks "
        "send-in-order consume-in-order batch-messages delay-messages timers transactions request-reply "
        "consume-broadcast filter-with-sql92 pull-messages dataframes hooks-and-traces "
        "run-a-nameserver run-a-broker replicate run-a-cluster administer mqadmin inspect-a-store "
        "benchmark plan-capacity compare-with-others torture coming-from-the-java-client"
    ),
    RUNNING: "operations security migration",
    "Spark": "source-options archive etl cdc agg sql state report run sink replay dlq notebook clusters",
    "Reference": (
        "commands api-producers api-consumers api-messages api-asyncio api-admin api-settings api-errors "
        "api-testing producer-settings push-consumer-settings pull-consumer-settings broker-settings metrics "
        "errors"
    ),
    EXPLANATION: (
        "guarantees architecture formats protocol faults performance comparison interop requirements glossary"
    ),
    "中文": "README quickstart guarantees operations migration",
}
"""The pages of a section in the order in which a reader needs them."""


def on_config(config: Any) -> Any:
    """Give every page a place: those of a folder in its section, the others among the explanations."""
    front = [{title: page} for title, page in FRONT.items()]
    config.nav = [*front, *({title: pages_of(title, folder)} for title, folder in SECTIONS.items())]
    return config


def pages_of(title: str, folder: str | None) -> list[str]:
    """Return the pages of a section: the named ones first, then the rest of its folder."""
    within = "" if folder is None or title == EXPLANATION else f"{folder}/"
    named = [f"{within}{name}.md" for name in ORDER.get(title, "").split()]
    rest = (
        [] if folder is None else [path.relative_to(DOCS).as_posix() for path in (DOCS / folder).glob("*.md")]
    )
    if title == EXPLANATION:
        elsewhere = {*FRONT.values(), *(f"{name}.md" for name in ORDER[RUNNING].split())}
        rest += [path.name for path in DOCS.glob("*.md") if path.name not in elsewhere]
    return [*(page for page in named if (DOCS / page).exists()), *sorted(set(rest) - set(named))]


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Point links that lead out of `docs` to the repository, as the site does not have their targets."""
    folder = posixpath.dirname(page.file.src_uri)

    def absolute(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, found[2]))
        if target.startswith("docs/") or re.match(r"[a-z]+:", found[2]):
            return found[0]
        return f"[{found[1]}]({config.extra['repository']}/{target})"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(absolute, part) for part in parts)
