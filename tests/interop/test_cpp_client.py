"""The C++ client, through the Python package that carries it, unchanged, with our servers."""

from pathlib import Path

import pytest

from skylark.processes import GroupProcess
from tests.interop.servers import Servers, create_topic
from tests.interop.verdict import Outcomes, Results, results
from tests.support.foreign import virtualenv
from tests.support.names import fresh_name

pytestmark = [pytest.mark.nightly, pytest.mark.interop()]

CPP = Path(__file__).parent / "cpp_python"
DRIVER_TIMEOUT_S = 300
TOPICS = {
    "round_trip": "Round",
    "send_async": "Async",
    "send_oneway": "Oneway",
    "orderly": "Orderly",
    "tag_filter": "Tags",
    "retry": "Retry",
    "delay_level": "Delay",
    "broadcasting": "Broadcast",
    "resume": "Resume",
    "batch": "Batch",
}


@pytest.fixture(scope="module")
def outcomes(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Every scenario, in one process."""
    interpreter = virtualenv(CPP / "requirements.txt")

    def run(*scenarios: str) -> Results:
        name, home = fresh_name("cpp"), tmp_path_factory.mktemp("cpp")
        for topic in TOPICS.values():
            create_topic(servers.broker, f"{topic}-{name}")
        command = [str(interpreter), str(CPP / "driver.py"), servers.name_server, name, *scenarios]
        with GroupProcess(command, log=home / "output.log", env={"HOME": str(home)}) as process:
            return results(process, DRIVER_TIMEOUT_S)

    return Outcomes(run)


@pytest.mark.parametrize("scenario", TOPICS)
def test_scenario(outcomes: Outcomes, scenario: str) -> None:
    assert outcomes.of(scenario) is None
