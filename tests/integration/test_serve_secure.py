"""`skylark serve --secure`: the printed lines are enough for a client, and nobody else gets anything."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skylark.processes import GroupProcess

TIMEOUT_S = 60
_EXPORT = re.compile(r"(\w+)='?([^'\s]+)'?")


def exports(text: str) -> dict[str, str]:
    """The variables of the printed lines."""
    lines = [line for line in text.splitlines() if line.startswith("export ")]
    return {name: value for line in lines for name, value in _EXPORT.findall(line)}


def skylark(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "skylark", *words],
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env={**os.environ, **environment},
    )  # fmt: skip


def test_three_lines_are_enough_and_without_them_nothing_is_answered(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "skylark", "serve", "--secure", "--data", str(tmp_path / "data"),
        "--namesrv-port", "0", "--broker-port", "0", "--set", "metricsPromExporterPort=0",
    ]  # fmt: skip
    secrets = []
    for start in ("first", "second"):  # the second uses what the first has made
        with GroupProcess(command, log=tmp_path / f"{start}.log") as process:
            process.wait_until(
                lambda: len(exports(process.log_text())) == 4, "the lines for a client", TIMEOUT_S
            )
            given = exports(process.log_text())
            sent = skylark("send", "orders", "hello", **given)
            assert sent.returncode == 0, sent.stderr
            for missing in ("SKYLARK_CREDENTIALS_FILE", "SKYLARK_TLS_ENABLED"):
                refused = skylark(
                    "topic", "list", **{name: value for name, value in given.items() if name != missing}
                )
                assert refused.returncode == 2, refused.stdout
            secrets.append(Path(given["SKYLARK_CREDENTIALS_FILE"]).read_text())
            secret = secrets[-1].split("secretKey=")[1].strip()
            assert secret not in process.log_text()
    assert secrets[0] == secrets[1]
    directory = tmp_path / "data" / "secure"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}


@pytest.mark.nightly
def test_several_brokers_share_certificates_and_users(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "skylark", "serve", "--secure", "--brokers", "2",
        "--data", str(tmp_path / "data"),
        "--namesrv-port", "0", "--broker-port", "0", "--set", "metricsPromExporterPort=0",
    ]  # fmt: skip
    with GroupProcess(command, log=tmp_path / "log") as process:
        process.wait_until(
            lambda: len(exports(process.log_text())) == 4, "the lines for a client", 2 * TIMEOUT_S
        )
        given = exports(process.log_text())
        listed = skylark("broker", "list", "--json", **given)
        assert {node["broker"] for node in json.loads(listed.stdout)} == {"broker-a", "broker-b"}, (
            listed.stderr
        )
        for _ in range(4):
            sent = skylark("send", "orders", "hello", **given)
            assert sent.returncode == 0, sent.stderr
        del given["SKYLARK_CREDENTIALS_FILE"]
        assert skylark("topic", "list", **given).returncode == 2
        secret = (tmp_path / "data/secure/admin.credentials").read_text().split("secretKey=")[1].strip()
        processes = Path("/proc").glob("[0-9]*/cmdline")
        lines = [file.read_text() for file in processes if file.exists()]
        assert sum("innerClientAuthenticationCredentials" in line for line in lines) >= 2
        assert not any(secret in line for line in lines)
