"""`skylark demo` as a person runs it. With Spark it is in tests/pipelines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def skylark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "skylark", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_the_demonstration_agrees_with_itself_and_can_be_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = skylark("demo", "--fast", "--no-spark", "--keep", str(kept))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert "orders billed after the resend\t990\t990\tok" in done.stdout
    dumped = skylark("store", "dump", str(kept / "store"), "-t", "orders", "--key", "order-42", "--json")
    assert dumped.returncode == 0, dumped.stderr
    assert '\\"id\\":42' in dumped.stdout
    again = skylark("demo", "--keep", str(kept))
    assert again.returncode == 2
    assert "choose a new directory" in again.stderr


@pytest.mark.parametrize("keep", [False, True])
def test_ctrl_c_cleans_up(tmp_path: Path, keep: bool) -> None:
    temporary, kept = tmp_path / "temporary", tmp_path / "kept"
    temporary.mkdir()
    command = [sys.executable, "-u", "-m", "skylark", "demo", "--no-spark"]
    with subprocess.Popen(
        [*command, *(("--keep", str(kept)) if keep else ())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as demo:
        assert demo.stdout is not None
        assert "started a name server and a broker" in demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=200)
    assert (demo.returncode, errors) == (130, "skylark: interrupted\n")
    assert list(tmp_path.iterdir()) == [temporary]
    assert list(temporary.iterdir()) == []
