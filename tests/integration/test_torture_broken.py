"""Deliberately broken copies of the product: torture must find what they break."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import skylark

ARGUMENTS = ("--mode", "failover", "--seed", "14180", "--minutes", "0.33", "--members", "2", "--json")
TIMEOUT_S = 400
TRIES = 3
"""Whether a fault hits the moment is chance."""
LINK_SPEED, SLOWER = "str(1 << 20)", "str(200_000)"
"""So that a former master compares its log for seconds."""


@dataclass(frozen=True)
class Break:
    """One line of a module, and what a mistake would make of it."""

    module: str
    right: str
    wrong: str
    finds: str
    """The guarantee that is broken."""


BROKEN = {
    "a master acknowledges before its slaves have the message": Break(
        "broker/replication/group_master.py",
        "if self._is_alone or end <= self._reached:",
        "if True:",
        "lost",
    ),
    "a master drops a member before the controller agrees": Break(
        "broker/replication/sync_state.py",
        "return self.members | proposed | self._joining.keys()",
        "return (proposed or self.members) | self._joining.keys()",
        "lost",
    ),
}


@pytest.mark.nightly
@pytest.mark.timeout(TRIES * TIMEOUT_S)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_copy_is_caught(name: str, tmp_path: Path) -> None:
    broken = BROKEN[name]
    package = tmp_path / "src" / "skylark"
    shutil.copytree(Path(skylark.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    replace_in(package / broken.module, broken.right, broken.wrong)
    replace_in(package / "torture" / "replica_group.py", LINK_SPEED, SLOWER)
    found: list[object] = []
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, "-m", "skylark", "torture", *ARGUMENTS],
            env={**os.environ, "PYTHONPATH": str(package.parent)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        [report] = json.loads(done.stdout)
        faults = report["verdict"]["faults"]
        if faults[broken.finds]["count"]:
            assert done.returncode == 1
            return
        found.append(faults)
    pytest.fail(f"not noticed: {found}")


def replace_in(module: Path, old: str, new: str) -> None:
    text = module.read_text()
    assert text.count(old) == 1
    module.write_text(text.replace(old, new))
