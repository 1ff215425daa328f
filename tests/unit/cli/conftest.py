"""A small store and a runner for the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from skylark.cli.main import app
from skylark.model.message import PutMessage, SystemFlag, encode_properties
from skylark.store.disk import RealDisk
from tests.support.clock import ManualClock
from tests.support.store import opened, put_all, small_settings

GEOMETRY = ["--index-slots", "16", "--index-items", "24"]
START_MS = 1_700_000_000_000

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("info", directory, …)` runs `skylark store info`; neither terminal nor colours."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)

    def run_command(command: str, *arguments: object) -> Result:
        return CliRunner().invoke(app, ["store", command, *map(str, arguments)])

    return run_command


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Forty messages of two topics, one a second, the last with a body that is no text."""
    root = tmp_path / "store"
    clock = ManualClock(START_MS)
    with opened(small_settings(root), RealDisk(), clock) as store:
        for number in range(40):
            put_all(
                store,
                [
                    PutMessage(
                        ("orders", "payments")[number % 2],
                        number // 2 % 2,
                        f"body {number}".encode() if number < 39 else b"\xff\x00",
                        encode_properties(
                            {"TAGS": f"tag{number % 4}", "KEYS": f"key-{number} third-{number % 3}"}
                        ),
                        sys_flag=int(SystemFlag.TRANSACTION_PREPARED) if number == 10 else 0,
                    )
                ],
            )
            clock.advance(1000)
    return root
