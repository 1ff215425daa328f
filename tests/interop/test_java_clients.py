"""Apache's Java client, several releases of it, unchanged, with our servers."""

from pathlib import Path

import pytest

from tests.interop.client_driver import BINARY_HEADER, SCENARIOS_TIMEOUT_S, ClientDriver
from tests.interop.servers import Servers
from tests.interop.verdict import Outcomes, results
from tests.interop.versions import CLIENTS

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.timeout(600)]

RESUME = "resume_with_a_new_client"
SCENARIOS = (
    "delay_levels",
    "lite_pull_assigned",
    "lite_pull_subscribed",
    "push_broadcasting",
    "push_orderly",
    "push_rebalance",
    "push_rebalance_by_broker",
    "push_tag_filter",
    "query_by_key_and_id",
    "query_offsets",
    RESUME,
    "retry_to_dead_letters",
    "send_async",
    "send_batch",
    "send_from_many_threads",
    "send_large_and_too_large",
    "send_on_fast_port",
    "send_oneway",
    "send_sync",
    "send_to_new_topic",
)


@pytest.fixture(scope="module", params=CLIENTS)
def version(request: pytest.FixtureRequest) -> str:
    number: str = request.param
    return number


@pytest.fixture(scope="module")
def outcomes(version: str, servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Every scenario, in one JVM."""
    directory = tmp_path_factory.mktemp("clients")
    return Outcomes(
        lambda *scenarios: ClientDriver(version, servers.name_server, directory).run("all", *scenarios)
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes: Outcomes, scenario: str) -> None:
    assert outcomes.of(scenario) is None


def test_no_other_scenario_was_run(outcomes: Outcomes) -> None:
    assert sorted(outcomes.found) == sorted(SCENARIOS)


def test_a_group_resumes_after_a_restart_and_sends_survive_a_crash(
    version: str, servers: Servers, tmp_path: Path
) -> None:
    """A new process and a new run of the broker, then a crash between the clients' calls."""
    driver = ClientDriver(version, servers.name_server, tmp_path)
    assert driver.run("all", RESUME) == {RESUME: None}
    servers.stop()
    servers.start()
    # The binary header is the other half of what a client may speak.
    with driver.running("resume", options=[BINARY_HEADER]) as process:
        process.wait_until(
            lambda: "RESTART NOW" in process.log_text(), "clients at work", SCENARIOS_TIMEOUT_S
        )
        servers.kill()
        servers.start()
        assert results(process, SCENARIOS_TIMEOUT_S) == {"resume": None}
