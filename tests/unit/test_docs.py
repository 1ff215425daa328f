"""The pages say what there is: tests, commands and options that they name; the translation keeps step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.cli.test_reference import check_line

ROOT = Path(__file__).parents[2]
PAGES = ["tutorial", "guarantees", "operations", "security", "migration", "zh/README"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_every_test_file_that_a_page_names_is_there(page: str) -> None:
    named = re.findall(r"tests/[\w/]+\.py", text_of(page))
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_test_that_the_page_on_migration_names_is_there() -> None:
    named = re.findall(r"`(test_\w+)`", text_of("migration"))
    source = (ROOT / "tests" / "interop" / "test_store_interchange.py").read_text()
    assert len(named) > 5
    assert [name for name in named if f"def {name}(" not in source] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_names_is_there_with_its_options(page: str) -> None:
    text = text_of(page)
    blocks = "\n".join(code for language, code in FENCE.findall(text) if language in ("", "sh"))
    lines = blocks.replace("\\\n", " ").splitlines()
    for line in [line.partition("  #")[0] for line in lines] + re.findall(r"`(skylark [a-z][^`]*)`", text):
        if line.startswith("skylark "):
            check_line(line.removesuffix(" …"))


def test_the_translation_has_the_readmes_programs() -> None:
    """Word for word, but for comments."""

    def programs(text: str) -> list[str]:
        code = [code for language, code in FENCE.findall(text) if language == "python"]
        return [re.sub(r" *#.*", "", block) for block in code]

    assert programs(text_of("zh/README")) == programs((ROOT / "README.md").read_text())
