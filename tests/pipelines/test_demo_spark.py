"""The whole demonstration, with Spark in a process of its own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skylark.cli.main import app
from tests.support import spark_program

TIMEOUT_S = 400


@pytest.mark.timeout(TIMEOUT_S + 100)
def test_the_demonstration_archives_and_adds_up(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    command = [sys.executable, "-m", "skylark", "demo", "--fast", "--keep", str(kept)]
    output = spark_program.run(command, tmp_path / "demo.log", TIMEOUT_S)
    story = output.partition("\n\n")[0].splitlines()
    assert [line for line in story if not line.startswith("- ")] == [], "Spark or Java has said something"
    assert "orders archived\t990\t990\tok" in output
    assert "orders in the totals\t990\t990\tok" in output
    assert (kept / "orders-delta" / "_delta_log").is_dir()
    assert "<svg" in (kept / "report.html").read_text()
    [question] = re.findall(r"^ *skylark (spark sql .*)$", output, re.MULTILINE)
    shown = CliRunner().invoke(app, [*shlex.split(question), "--dry-run"])
    assert "990 messages" in shown.stdout, "what is said to be next does not work"


@pytest.mark.nightly
@pytest.mark.timeout(TIMEOUT_S + 100)
def test_ctrl_c_ends_it_while_spark_works(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "skylark", "demo", "--fast"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with spark_program.started(command, tmp_path / "demo.log", {"TMPDIR": str(temporary)}) as demo:
        demo.wait_until(lambda: "Spark started" in demo.log_text(), "at work with Spark", TIMEOUT_S)
        os.kill(demo.pid, signal.SIGINT)
        assert demo.wait(TIMEOUT_S) == 130, demo.log_text()
        assert "skylark: interrupted\n" in demo.log_text()
        assert list(temporary.glob("skylark-demo-*")) == []
