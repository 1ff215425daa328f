"""`skylark demo` as a person runs it. With Spark it is in tests/pipelines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def skylark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "skylark.cli.start", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_the_demonstration_agrees_with_itself_and_can_be_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = skylark("demo", "--fast", "--no-spark", "--keep", str(kept))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert "orders billed in the end\t990\t990\tok" in done.stdout
    dumped = skylark("store", "dump", str(kept / "store"), "-t", "orders", "--key", "order-42", "--json")
    assert dumped.returncode == 0, dumped.stderr
    assert '\\"id\\":42' in dumped.stdout
    again = skylark("demo", "--keep", str(kept))
    assert again.returncode == 2
    assert "choose a new directory" in again.stderr
