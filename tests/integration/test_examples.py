"""Every example runs against servers of ours, ends by itself, and complains about nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.testing import EmbeddedServers

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SPARK = "spark_"
"""Examples with this prefix need Java, and minutes on a busy machine."""
TIMEOUT_S = 180
SPARK_TIMEOUT_S = 600


def is_spark(path: Path) -> bool:
    return path.stem.startswith(SPARK)


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    """With delays that a test can wait for: all levels are a second."""
    levels = " ".join(["1s"] * 18)
    with EmbeddedServers(store={"delay_levels": levels}) as running:
        yield running


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.interop("java"), pytest.mark.nightly] if is_spark(path) else ())
        for path in EXAMPLES
    ],
    ids=lambda path: path.stem,
)
@pytest.mark.timeout(SPARK_TIMEOUT_S + 60)
def test_an_example(path: Path, servers: EmbeddedServers, tmp_path: Path) -> None:
    environment = {**os.environ, "NAMESRV_ADDR": servers.namesrv, "HOME": str(tmp_path)}
    if not is_spark(path):
        environment["PYTHONWARNINGS"] = "error"  # those of Spark are not ours
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S if is_spark(path) else TIMEOUT_S,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "an example shows something"
    assert is_spark(path) or "Traceback" not in done.stderr, done.stderr
