"""Apache's Java client, two generations of it: SQL92, transactions, timed messages, requests with replies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.client_driver import SCENARIOS_TIMEOUT_S, VERSIONS, ClientDriver
from tests.interop.servers import KINDS, SETTINGS, Servers, make_servers
from tests.interop.verdict import results

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.timeout(600)]

SCENARIOS = ("request_reply", "sql_filter", "sql_refused", "timed", "transactions")
QUICK = {
    **SETTINGS,
    "enablePropertyFilter": "true",  # Apache's has it switched off
    "recallMessageEnable": "true",  # and this
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
}


@pytest.fixture(scope="module", params=KINDS)
def asking_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    """Servers that soon ask about open transactions. They had nothing to complain about."""
    with make_servers(request.param, tmp_path_factory.mktemp("servers"), QUICK) as running:
        yield running
        assert running.complaints() == ""


@pytest.fixture(scope="module", params=VERSIONS)
def outcome(
    request: pytest.FixtureRequest, asking_servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str | None]:
    """Every scenario, in one JVM."""
    clients = ClientDriver(request.param, asking_servers.name_server, tmp_path_factory.mktemp("clients"))
    with clients.running("delivery") as process:
        return results(process, SCENARIOS_TIMEOUT_S)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcome: dict[str, str | None], scenario: str) -> None:
    assert scenario in outcome, f"did not come to its end; there are {sorted(outcome)}"
    assert outcome[scenario] is None


def test_no_other_scenario_was_run(outcome: dict[str, str | None]) -> None:
    assert sorted(outcome) == sorted(SCENARIOS)
