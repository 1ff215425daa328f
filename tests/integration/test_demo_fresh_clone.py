"""`make setup demo` as the README promises it: in a fresh clone, with nothing but the system around it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = ("PIP_", "UV_", "SSL_", "REQUESTS_")
"""Where packages come from, and where those that were fetched are kept, is the machine's matter."""
SETUP_AND_DEMO_TIMEOUT_S = 1500
READY_TIMEOUT_S = 60


def fresh_environment(home: Path) -> dict[str, str]:
    """A home without anything in it; the tools that this process finds."""
    found = {Path(tool).parent for name in ("python3", "java", "git", "make") if (tool := shutil.which(name))}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(PASSED_ON) or name.lower().endswith("_proxy") or name in ("JAVA_HOME", "CI")
    }
    home.mkdir()
    return {**kept, "HOME": str(home), "PATH": ":".join([*sorted(map(str, found)), SYSTEM_PATH])}


def run(clone: Path, environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        words,
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SETUP_AND_DEMO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(2 * SETUP_AND_DEMO_TIMEOUT_S)
def test_two_commands_from_a_fresh_clone_to_a_table(tmp_path: Path) -> None:
    environment = fresh_environment(tmp_path / "home")
    clone = tmp_path / "clone"
    run(tmp_path, environment, "git", "clone", "--quiet", str(ROOT), str(clone))
    said = run(clone, environment, "make", "setup", "demo")
    assert "All counts agree" in said
    assert "orders archived" in said, "Spark was left out"
    assert run(clone, environment, "git", "status", "--porcelain") == "", "set-up left something behind"
    again = time.monotonic()
    run(clone, environment, "make", "setup")
    assert time.monotonic() - again < READY_TIMEOUT_S, "a second set-up does it all again"
