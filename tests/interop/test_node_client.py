"""The Node client `ali-ons`, unchanged, with our servers."""

from pathlib import Path

import pytest

from skylark.bench.peers.process import GroupProcess
from tests.interop.servers import Servers, create_topic
from tests.interop.verdict import results
from tests.support.foreign import node_modules

pytestmark = pytest.mark.interop("node", "npm")

NODE = Path(__file__).parent / "node"
DRIVER_TIMEOUT_S = 120
TOPICS = {
    "round_trip": "Round",
    "tag_filter": "Tags",
    "retry": "Retry",
    "delay_level": "Delay",
    "sharding_key": "Shard",
    "broadcasting": "Broadcast",
    "resume": "Resume",
    "compressed": "Packed",
}


@pytest.fixture(scope="module")
def outcome(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Every scenario, in one process."""
    for topic in TOPICS.values():
        create_topic(servers.broker, f"{topic}-node")
    home = tmp_path_factory.mktemp("node")
    environment = {"HOME": str(home), "NODE_PATH": str(node_modules(NODE / "package.json"))}
    command = ["node", str(NODE / "driver.js"), servers.name_server, "node"]
    with GroupProcess(command, log=home / "output.log", env=environment) as process:
        return results(process, DRIVER_TIMEOUT_S)


@pytest.mark.parametrize("scenario", TOPICS)
def test_scenario(outcome: dict[str, str | None], scenario: str) -> None:
    assert scenario in outcome, f"was not run; there are {sorted(outcome)}"
    assert outcome[scenario] is None
