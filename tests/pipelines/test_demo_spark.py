"""The whole demonstration, with Spark in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_demonstration_archives_and_adds_up(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    command = [sys.executable, "-m", "skylark.cli.start", "demo", "--fast", "--keep", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "orders archived\t990\t990\tok" in done.stdout
    assert "orders in the totals\t990\t990\tok" in done.stdout
    assert (kept / "orders-delta" / "_delta_log").is_dir()
    assert "<svg" in (kept / "report.html").read_text()
