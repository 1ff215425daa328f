"""docs/requirements.md lists every numbered behaviour with its tests, and is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.requirements_page import PAGE, generated, numbers, page, proofs

ROWS = 131


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == generated(), "run: python -m scripts.requirements_page"


def test_every_behaviour_has_its_row_in_order() -> None:
    rows = re.findall(r"^\| (SF-\d{3}) \| [^|]+ \| \[", PAGE.read_text(), re.MULTILINE)
    assert rows == [f"SF-{number:03}" for number in range(1, ROWS + 1)]


@pytest.mark.parametrize(
    ("test", "proved"),
    [
        ("test_sf_005_a_message_within_200_ms", {"SF-005"}),
        ("test_sf_003_045_094_resume", {"SF-003", "SF-045", "SF-094"}),
        ("test_sf_012_031_sf_089_broadcasting", {"SF-012", "SF-031", "SF-089"}),
        ("test_sf_048_and_094_restart", {"SF-048", "SF-094"}),
        ("test_nothing_in_particular_123", set()),
    ],
)
def test_numbers_are_read_from_the_name_of_a_test(test: str, proved: set[str]) -> None:
    assert numbers(test) == proved


def test_tests_are_found_by_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_one.py").write_text("async def test_sf_001_it_runs() -> None: ...\n")
    (folder / "helper.py").write_text("def test_sf_002_not_collected() -> None: ...\n")
    assert proofs(tmp_path) == {"SF-001": {Path("tests/unit/test_one.py")}}


def test_a_row_without_a_test_and_a_test_without_a_row_are_refused() -> None:
    sections = [{"title": "All", "SF-001": "It runs."}]
    proved = {"SF-001": {Path("tests/unit/test_one.py")}}
    row = "| SF-001 | It runs. | [unit/one](../tests/unit/test_one.py) | it stands still |"
    assert row in page(sections, proved, {"SF-001": "it stands still"})
    with pytest.raises(ValueError, match="SF-001 has no test"):
        page(sections, {}, {})
    with pytest.raises(ValueError, match=r"SF-002 is in the name of a test, not in requirements\.toml"):
        page(sections, {**proved, "SF-002": set()}, {})
