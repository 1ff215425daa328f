"""The pages say what there is: tests, commands and options that they name; the translation keeps step."""

from __future__ import annotations

import builtins
import pkgutil
import re
from dataclasses import fields
from pathlib import Path

import pytest

from skylark.cli.reference import MEANINGS, errors_page
from skylark.protocol.codes import ResponseCode
from skylark.settings import NameServerSettings
from tests.support.pages import PAGES as CODE_PAGES
from tests.support.pages import blocks
from tests.unit.cli.test_reference import check_line

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page.relative_to(ROOT / "docs").with_suffix("").as_posix()
    for page in (ROOT / "docs").rglob("*.md")
    if page.name != "commands.md"
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text()


def test_the_index_names_every_page() -> None:
    folder = ROOT / "docs"
    pages = {str(page.relative_to(folder)) for page in folder.rglob("*.md")} - {"index.md"}
    assert pages - set(re.findall(r"\]\(([^)#]+)", text_of("index"))) == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_test_file_that_a_page_names_is_there(page: str) -> None:
    named = re.findall(r"tests/[\w/]+\.py", text_of(page))
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("page", "folder"), [("migration", "interop/test_store_interchange.py"), ("design/failover", "")]
)
def test_every_test_that_a_page_names_is_there(page: str, folder: str) -> None:
    named = re.findall(r"`(test_\w+)`", text_of(page))
    searched = ROOT / "tests" / folder
    files = sorted(searched.rglob("test_*.py")) if searched.is_dir() else [searched]
    source = "".join(file.read_text() for file in files)
    assert len(named) > 5
    assert [name for name in named if f"def {name}(" not in source] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_names_is_there_with_its_options(page: str) -> None:
    text = text_of(page)
    blocks = "\n".join(code for language, code in FENCE.findall(text) if language in ("", "sh"))
    lines = blocks.replace("\\\n", " ").splitlines()
    for line in [line.partition("  #")[0] for line in lines] + re.findall(r"`(skylark [a-z][^`]*)`", text):
        if line.startswith("skylark "):
            check_line(line.rstrip(" …"))


def test_errors_that_an_example_catches_are_imported_there() -> None:
    """Readers copy one block: the tests of blocks give each all public names, and would not notice."""
    caught = 0
    for block in (block for page in CODE_PAGES for block in blocks(page) if block.language == "python"):
        imported = set(
            re.findall(r"\w+", " ".join(re.findall(r"^ *from skylark import (.*)$", block.code, re.M)))
        )
        for name in re.findall(r"except \(?(\w+)", block.code):
            caught += 1
            assert name in imported or hasattr(builtins, name), f"{block} catches {name} without importing it"
    assert caught


def test_the_reference_of_codes_and_errors_is_up_to_date() -> None:
    page = text_of("reference/errors")
    assert page == errors_page(), "run: python -m skylark.cli.reference errors > docs/reference/errors.md"


def test_every_code_that_a_server_answers_is_explained() -> None:
    source = "".join(
        path.read_text()
        for part in ("broker", "namesrv")
        for path in (ROOT / "src/skylark" / part).rglob("*.py")
    )
    answered = {ResponseCode[name] for name in re.findall(r"ResponseCode\.([A-Z_]+)", source)}
    assert answered <= MEANINGS.keys()


WALK_FILES_MAX = 15


def test_every_module_that_the_architecture_names_is_there() -> None:
    text = text_of("architecture")
    named = [name for name in re.findall(r"`([\w/]+\.py)`", text) if not name.startswith(("tests/", "bench"))]
    assert [name for name in named if not (ROOT / "src/skylark" / name).is_file()] == []
    walk = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| (.+) \|$", text, re.MULTILINE)
    assert 10 <= len(walk) <= WALK_FILES_MAX
    for name, story in walk:
        source = (ROOT / "src/skylark" / name).read_text()
        named = [word for names in re.findall(r"`(\w+(?:\.\w+)*)`", story) for word in names.split(".")]
        assert named, name
        assert [word for word in named if not re.search(rf"(class|def) {word}\b", source)] == []


TRANSLATIONS = {
    "README": ROOT / "README.md",
    "quickstart": ROOT / "docs" / "tutorial.md",
    "guarantees": ROOT / "docs" / "guarantees.md",
    "operations": ROOT / "docs" / "operations.md",
    "migration": ROOT / "docs" / "migration.md",
}
"""Pages of docs/zh, and what they translate."""
NOT_TRANSLATED = re.compile(r"^## Every fault and its tests\n.*?(?=^## )", re.MULTILINE | re.DOTALL)


def test_every_page_in_chinese_is_a_translation() -> None:
    assert {page.stem for page in (ROOT / "docs" / "zh").glob("*.md")} == TRANSLATIONS.keys()


@pytest.mark.parametrize("page", TRANSLATIONS)
def test_a_translation_has_the_programs_and_commands_of_its_original(page: str) -> None:
    """The code blocks are the same except for comments, and the sentences name the same commands."""

    def code(text: str) -> list[str]:
        blocks = [code for language, code in FENCE.findall(text) if language != "mermaid"]
        return [re.sub(r" *#.*", "", block) for block in blocks]

    def commands(text: str) -> set[str]:
        return set(re.findall(r"`((?:skylark|docker|make|pip|mqadmin) [^`\n]+)`", text))

    translation = text_of(f"zh/{page}")
    original = NOT_TRANSLATED.sub("", TRANSLATIONS[page].read_text())
    assert code(translation) == code(original)
    assert commands(translation) == commands(original)


def table_below(mark: str) -> list[str]:
    """The rows of a table of the page on performance."""
    return (
        text_of("performance")
        .partition(f"<!-- table: {mark} -->")[2]
        .partition("<!-- end -->")[0]
        .splitlines()
    )


def test_the_comparison_has_rows_of_the_page_on_performance() -> None:
    figures = text_of("comparison").partition("## Figures")[2]
    rows = [line for line in figures.splitlines() if line.startswith("| ") and "/" in line]
    assert len(rows) > 3
    assert set(rows) <= set(table_below("peers")), "copy the rows from docs/performance.md"


@pytest.mark.parametrize("page", ["README.md", "docs/zh/README.md"])
def test_the_readmes_figures_are_those_of_the_page_on_performance(page: str) -> None:
    rows = re.findall(r"^\|.*\| ([\d,]+)/s.*\| ([\d,]+)/s.*\|$", (ROOT / page).read_text(), re.MULTILINE)
    assert len(rows) == 7
    measured = [re.findall(r"[\d,.]+", line.partition("B |")[2])[:2] for line in table_below("apache-whole")]
    assert [list(row) for row in rows if list(row) not in measured] == [], (
        "copy them from docs/performance.md"
    )


def test_every_name_of_ours_in_the_glossary_is_there() -> None:
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|$", text_of("glossary"), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([a-z_0-9]+(?:\.\w+)+)`", row)]
    assert len(names) > 40
    for name in names:
        pkgutil.resolve_name(name if name.startswith("skylark.") else f"skylark.{name}")


def test_the_page_on_name_servers_tells_every_setting_with_its_default() -> None:
    text = text_of("howto/run-a-nameserver")
    told: dict[str, tuple[str, bool]] = {}
    for keys, defaults in re.findall(r"^\| (`(?!skylark_)[^|]+) \| ([^|]+) \|", text, re.MULTILINE):
        named = re.findall(r"`(\w+)`( \*)?", keys)
        values = defaults.split(", ") if ", " in defaults else [defaults] * len(named)
        told |= {name: (value, bool(star)) for (name, star), value in zip(named, values, strict=True)}
    limits = text[text.index("Limits, so that") : text.index("## In a program")]
    told |= {name: (value, False) for name, value in re.findall(r"`(\w+)` (\d+)", limits)}
    expected = {}
    for each in fields(NameServerSettings):
        if "java" not in each.metadata:
            continue  # a group of settings that has its own page
        default = "none" if each.default in (None, "") else str(each.default)
        default = default.lower() if isinstance(each.default, bool) else default
        expected[each.metadata["java"]] = (default, each.metadata["live"])
    assert told == expected
