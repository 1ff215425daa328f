"""The Rust client, unchanged, with our servers. Its build takes minutes: only where SKYLARK_RUST is set."""

import os
from pathlib import Path

import pytest

from skylark.processes import GroupProcess
from tests.interop.servers import Servers, create_topic
from tests.interop.verdict import results
from tests.support.foreign import BUILD_TIMEOUT_S, cargo_binary

DRIVER_TIMEOUT_S = 200
RUST = Path(__file__).parent / "rust"
TOPICS = {
    "round_trip": "Round",
    "tag_filter": "Tags",
    "orderly": "Orderly",
    "delay_level": "Delay",
    "retry": "Retry",
}

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not os.environ.get("SKYLARK_RUST"), reason="SKYLARK_RUST is not set: minutes of build"
    ),
    pytest.mark.interop("cargo"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + DRIVER_TIMEOUT_S),
]


@pytest.fixture(scope="module")
def outcome(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Every scenario, in one process."""
    driver = cargo_binary(RUST)
    for topic in TOPICS.values():
        create_topic(servers.broker, f"{topic}-rust")
    home = tmp_path_factory.mktemp("rust")
    command = [str(driver), servers.name_server, "rust"]
    with GroupProcess(command, log=home / "output.log", env={"HOME": str(home)}, directory=home) as process:
        return results(process, DRIVER_TIMEOUT_S)


@pytest.mark.parametrize("scenario", TOPICS)
def test_scenario(outcome: dict[str, str | None], scenario: str) -> None:
    assert scenario in outcome, f"was not run; there are {sorted(outcome)}"
    assert outcome[scenario] is None
