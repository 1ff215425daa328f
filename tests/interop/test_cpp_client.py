"""The C++ client, through the Python package that carries it, unchanged, with our servers."""

from pathlib import Path

import pytest

from skylark.bench.peers.process import GroupProcess
from tests.interop.servers import Servers, create_topic
from tests.interop.verdict import results
from tests.support.foreign import virtualenv

pytestmark = pytest.mark.interop()

CPP = Path(__file__).parent / "cpp_python"
DRIVER_TIMEOUT_S = 150
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
def outcome(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Every scenario, in one process."""
    for topic in TOPICS.values():
        create_topic(servers.broker, f"{topic}-cpp")
    home = tmp_path_factory.mktemp("cpp")
    interpreter = virtualenv(CPP / "requirements.txt")
    command = [str(interpreter), str(CPP / "driver.py"), servers.name_server, "cpp"]
    with GroupProcess(command, log=home / "output.log", env={"HOME": str(home)}) as process:
        return results(process, DRIVER_TIMEOUT_S)


@pytest.mark.parametrize("scenario", TOPICS)
def test_scenario(outcome: dict[str, str | None], scenario: str) -> None:
    assert scenario in outcome, f"was not run; there are {sorted(outcome)}"
    assert outcome[scenario] is None
