"""Java consumers of one group that start one after the other learn of each other from the broker, at once.

Java's clients since 5.0 rebalance at most once a second, counted from their start. Without the broker's
notifications they would rebalance every 20 seconds only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.java import jvm_command
from skylark.processes import GroupProcess
from tests.interop.client_driver import HEAP_MB
from tests.interop.servers import KINDS, SETTINGS, Servers, create_topic, make_servers
from tests.interop.versions import JAVA, POMS
from tests.support.java import compiled
from tests.support.names import fresh_name

pytestmark = [pytest.mark.nightly, pytest.mark.interop("java", "javac", "mvn"), pytest.mark.timeout(600)]

EVEN_MS_MAX = 10_000
"""Half of the interval without notifications."""
TIMEOUT_S = 150


@pytest.fixture(scope="module", params=KINDS)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with make_servers(request.param, tmp_path_factory.mktemp("servers"), SETTINGS) as running:
        yield running


@pytest.mark.parametrize(
    ("version", "way"),
    [("5.5.0", "concurrently"), ("5.5.0", "orderly"), ("4.9.8", "concurrently")],
    # In order, those of 4.9 try a queue that is still locked again after 20 seconds.
)
def test_members_share_the_queues_evenly_soon_after_the_last_start(
    servers: Servers, version: str, way: str, tmp_path: Path
) -> None:
    topic = fresh_name("members")
    create_topic(servers.broker, topic, 8)
    classpath = compiled(POMS[version], [JAVA / "members" / "Members.java"])
    command = jvm_command(
        classpath, "Members", servers.name_server, topic, f"G_{topic}", way, home=tmp_path, heap_mb=HEAP_MB
    )
    with GroupProcess(command, log=tmp_path / "driver.log") as process:
        process.wait(TIMEOUT_S)
        text = process.log_text()
    found = re.search(r"STARTED \d+ EVEN (\d+)", text)
    assert text.splitlines()[-1] == "PASS" and found is not None, text[-2000:]
    assert int(found[1]) < EVEN_MS_MAX, text
