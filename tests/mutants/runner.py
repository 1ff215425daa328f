"""Apply mutants to copies of the package, one at a time, and expect the tests of their rows to fail.

python -m tests.mutants.runner 33 100     # these rows; all without arguments
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
TEST_TIMEOUT_S = 45
"""A mutant that makes its test wait for ever is noticed, too."""
RUN_TIMEOUT_S = 600
TESTS_FAILED = 1
"""The exit code of pytest. Others mean that it could not run the tests."""


class BadMutant(Exception):
    """The table does not fit the code or the tests."""


def survivors(mutant: Mutant, directory: Path) -> list[str]:
    """Apply a mutant to a copy in `directory`; return its tests that pass all the same. Raises BadMutant."""
    copy = directory / "src"
    shutil.copytree(ROOT / "src", copy)  # with times and bytecode: only the mutant is compiled
    path = copy / "skylark" / mutant.file
    code = path.read_text()
    if code.count(mutant.text) != 1:
        raise BadMutant(
            f"SF-{mutant.row:03}: {mutant.file} has {mutant.text!r} {code.count(mutant.text)} times"
        )
    path.write_text(code.replace(mutant.text, mutant.replacement))
    nodes = [f"tests/{test}" for test in mutant.tests]
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", "0", "--tb=no", "-rfE", "-p", "no:cacheprovider",
        f"--timeout={TEST_TIMEOUT_S}", "--basetemp", str(directory / "tests"), *nodes,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(copy)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    if done.returncode not in (0, TESTS_FAILED):
        raise BadMutant(f"SF-{mutant.row:03}: pytest ended with {done.returncode}\n{done.stdout[-3000:]}")
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [node for node in nodes if not any(each.startswith(node) for each in failed)]


def main(rows: list[int]) -> int:
    chosen = [mutant for mutant in MUTANTS if not rows or mutant.row in rows]
    bad = 0
    for mutant in chosen:
        with tempfile.TemporaryDirectory(prefix="skylark-mutant-") as directory:
            try:
                alive = survivors(mutant, Path(directory))
            except BadMutant as error:
                verdict = str(error)
                bad += 1
            else:
                verdict = f"NOT NOTICED by {', '.join(alive)}" if alive else "noticed"
                bad += bool(alive)
        print(f"SF-{mutant.row:03} {mutant.what}: {verdict}", flush=True)  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main([int(row) for row in sys.argv[1:]]))
