"""How values are printed."""

from __future__ import annotations

import pytest

from skylark.cli.output import Screen, clean, counted, format_bytes, format_time


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_times() -> None:
    assert format_time(None) == "-"
    assert format_time(1_700_000_000_123).endswith(".123")
    assert format_time(1 << 62) == str(1 << 62)


def test_numbers_of_things() -> None:
    assert [counted(number, "file", "files") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


def test_what_a_message_holds_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert clean("a\x1b[2Jb\tc\nd 订单") == "a·[2Jb·c·d 订单"
    Screen().cells(["x\ty", 1])
    Screen().line("[bold]not markup[/bold]")
    assert capsys.readouterr().out == "x·y\t1\n[bold]not markup[/bold]\n"
