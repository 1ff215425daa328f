"""`make docs` finds links that lead nowhere, and only those."""

from pathlib import Path

from scripts.check_links import broken_links

PAGE = """# A title, with `code`

[here](#a-title-with-code) [there](other.md#second) [folder](folder) [out](https://example.org/x#y)
[gone](gone.md) [no heading](other.md#third) [nor here](#second)

```
[not a link](nowhere.md)
```
"""


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.md").write_text("# First\n\n## Second\n")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert list(broken_links(page)) == [
        "gone.md: no such file",
        "other.md#third: no such heading",
        "#second: no such heading",
    ]
