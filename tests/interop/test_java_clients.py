"""Apache's Java client, two generations of it, unchanged, with our servers."""

import pytest

from tests.interop.client_driver import BINARY_HEADER, SCENARIOS_TIMEOUT_S, VERSIONS, ClientDriver
from tests.interop.servers import Servers
from tests.interop.verdict import results

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.timeout(600)]

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
    "resume_with_a_new_client",
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


@pytest.fixture(scope="module", params=VERSIONS)
def driver(
    request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> ClientDriver:
    return ClientDriver(request.param, servers.name_server, tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="module")
def outcome(driver: ClientDriver) -> dict[str, str | None]:
    """Every scenario, in one JVM."""
    return driver.run_all()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcome: dict[str, str | None], scenario: str) -> None:
    assert scenario in outcome, f"did not come to its end; there are {sorted(outcome)}"
    assert outcome[scenario] is None


def test_no_other_scenario_was_run(outcome: dict[str, str | None]) -> None:
    assert sorted(outcome) == sorted(SCENARIOS)


def test_a_group_resumes_after_a_restart_and_sends_survive_a_crash(
    driver: ClientDriver, outcome: dict[str, str | None], servers: Servers
) -> None:
    """A new process and a new run of the broker, then a crash between the clients' calls."""
    assert outcome["resume_with_a_new_client"] is None
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
