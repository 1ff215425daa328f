"""The site's table of contents has every page once, in the order in which a reader needs them."""

from __future__ import annotations

from types import SimpleNamespace

from scripts.mkdocs_hooks import DOCS, FRONT, ORDER, SECTIONS, on_config, on_page_markdown

REPOSITORY = "https://example.org/skylark/blob/main"


def test_every_page_has_one_place() -> None:
    nav = on_config(SimpleNamespace(nav=None)).nav
    front, sections = nav[: len(FRONT)], nav[len(FRONT) :]
    assert front == [{title: page} for title, page in FRONT.items()]
    pages = [page for section in sections for pages in section.values() for page in pages]
    written = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted([*FRONT.values(), *pages]) == sorted(written)


def test_every_page_that_the_order_names_is_there() -> None:
    for title, names in ORDER.items():
        folders = [DOCS, DOCS / (SECTIONS[title] or "")]
        for name in names.split():
            assert any((folder / f"{name}.md").exists() for folder in folders), f"{title}: {name}"


def test_links_out_of_the_documentation_lead_to_the_repository() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="howto/a.md"))
    config = SimpleNamespace(extra={"repository": REPOSITORY})
    text = "[a](../../examples/send.py) [b](b.md) [c](https://example.org)\n```\n[d](../../x.py)\n```\n"
    assert on_page_markdown(text, page, config) == text.replace("../../examples", f"{REPOSITORY}/examples")
