"""Java's remoting push consumer in pop mode, unchanged, with our servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.java import jvm_command
from skylark.processes import GroupProcess
from tests.interop.client_driver import HEAP_MB, SCENARIOS_TIMEOUT_S
from tests.interop.servers import SETTINGS, Servers, make_servers
from tests.interop.verdict import Outcomes, Results, results
from tests.interop.versions import JAVA, MAIN, NEWEST, POMS
from tests.support.java import compiled
from tests.support.names import fresh_name

pytestmark = [pytest.mark.interop("java", "javac", "mvn"), pytest.mark.timeout(600)]

SOURCES = sorted([*(JAVA / "clients").glob("*.java"), *(JAVA / "pop").glob("*.java")])
REBALANCE_OPTION = "-Drocketmq.client.rebalance.waitInterval=1000"
"""Milliseconds between two questions for the assignment; 20 seconds by default."""
SCENARIOS = ("pop_after_pull", "pop_normal", "pop_retry", "pop_two_members")


@pytest.fixture(scope="module")
def servers(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A name server and a broker that pops; Apache's only in the slow run."""
    settings = {**SETTINGS, "reviveQueueNum": 2}
    with make_servers(kind, tmp_path_factory.mktemp("servers"), settings) as running:
        yield running
        assert running.complaints() == ""


@pytest.fixture(scope="module", params=[MAIN, NEWEST])
def outcomes(
    request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    """Every scenario, in one JVM."""
    directory: Path = tmp_path_factory.mktemp("pop-mode")

    def run(*scenarios: str) -> Results:
        name = fresh_name("pop")
        line = jvm_command(
            compiled(POMS[request.param], SOURCES),
            "PopDriver",
            servers.name_server,
            name,
            *scenarios,
            home=directory,
            heap_mb=HEAP_MB,
            options=[REBALANCE_OPTION],
        )
        with GroupProcess(line, log=directory / f"{name}.log") as process:
            return results(process, SCENARIOS_TIMEOUT_S)

    return Outcomes(run)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_pop_mode(outcomes: Outcomes, scenario: str) -> None:
    assert outcomes.of(scenario) is None
