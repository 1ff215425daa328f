"""The picture of the demo shows what a terminal shows at the end of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.demo_picture import PICTURE, last_state, picture, recorded

ROOT = Path(__file__).parents[2]


def test_a_program_is_recorded_on_a_terminal() -> None:
    program = "import os, sys; print(sys.stdout.isatty(), os.environ['COLUMNS'])"
    assert recorded([sys.executable, "-c", program]) == "True 116\n"


def test_a_program_that_fails_is_an_error() -> None:
    with pytest.raises(OSError, match="exit code 3"):
        recorded([sys.executable, "-c", "raise SystemExit(3)"])


def test_only_the_last_state_of_a_line_is_shown() -> None:
    assert last_state("10 %\r90 %\r\x1b[2Kdone") == "done"


def test_the_picture_has_the_text_but_neither_fonts_of_other_sites_nor_directories_of_this_machine() -> None:
    drawn = picture("\x1b[1msent\x1b[0m 10\n\nNext:\n  cd /somewhere\n")
    assert "skylark&#160;demo" in drawn
    assert "sent" in drawn
    assert "@font-face" not in drawn
    assert "somewhere" not in drawn


def test_the_readme_shows_the_picture() -> None:
    assert f"]({PICTURE.relative_to(ROOT).as_posix()})" in (ROOT / "README.md").read_text()
    assert PICTURE.read_text().startswith("<svg")
