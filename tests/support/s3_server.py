"""A real S3 server for tests: Versity's gateway over a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.processes import PortReservation, Server, listens
from tests.support.foreign import go_binary

MODULE, VERSION = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"
ACCESS_KEY, SECRET_KEY = "lake-user", "lake-secret-5f0c"
BUCKET = "lake"


class S3Server(Server):
    """Versity's gateway with one bucket."""

    title = "versitygw"

    def __init__(self, home: Path) -> None:
        super().__init__(home, PortReservation(0))
        self._program = go_binary(MODULE, VERSION)

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    def command(self, start: int) -> list[str]:
        objects, facts = self.home / "objects", self.home / "facts"
        (objects / BUCKET).mkdir(parents=True, exist_ok=True)
        facts.mkdir(exist_ok=True)
        return [str(self._program), "--port", self.address, "posix", "--sidecar", str(facts), str(objects)]

    def environment(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def wait_until_serving(self) -> None:
        self._running().wait_until(lambda: listens(self.address, 1), "listening", 30)


def variables(endpoint: str) -> dict[str, str]:
    """The usual variables for this server."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Let clients of this process, and of those it starts, use this server by the usual variables."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables(endpoint).items():
        monkeypatch.setenv(name, value)
