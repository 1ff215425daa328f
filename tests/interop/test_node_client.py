"""The Node client `ali-ons`, unchanged, with our servers."""

from pathlib import Path

import pytest

from skylark.processes import GroupProcess
from tests.interop.servers import Servers, create_topic
from tests.interop.verdict import Outcomes, Results, results
from tests.support.foreign import node_modules
from tests.support.names import fresh_name

pytestmark = [pytest.mark.nightly, pytest.mark.interop("node", "npm")]

NODE = Path(__file__).parent / "node"
DRIVER_TIMEOUT_S = 300
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
def outcomes(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Every scenario, in one process."""
    modules = node_modules(NODE / "package.json")

    def run(*scenarios: str) -> Results:
        name, home = fresh_name("node"), tmp_path_factory.mktemp("node")
        for topic in TOPICS.values():
            create_topic(servers.broker, f"{topic}-{name}")
        environment = {"HOME": str(home), "NODE_PATH": str(modules)}
        command = ["node", str(NODE / "driver.js"), servers.name_server, name, *scenarios]
        with GroupProcess(command, log=home / "output.log", env=environment) as process:
            return results(process, DRIVER_TIMEOUT_S)

    return Outcomes(run)


@pytest.mark.parametrize("scenario", TOPICS)
def test_scenario(outcomes: Outcomes, scenario: str) -> None:
    assert outcomes.of(scenario) is None
