"""A broker that gets no more memory drops connections, says so, and goes on when it gets some again."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from skylark.bench.load import Load, LoadFailed
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import LoadTarget
from skylark.bench.servers import own_servers

BODY_BYTES = 1 << 20
FLOOD_CONNECTIONS, FLOOD_IN_FLIGHT = 16, 128


def address_space(pid: int) -> int:
    """Bytes that a process has reserved."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmSize:")).split()[1]) * 1024


@pytest.mark.nightly  # a process without memory may do anything: its neighbours in CI shall not see it
def test_no_more_memory_for_a_while(tmp_path: Path) -> None:
    client = LoadClient()
    with own_servers(tmp_path, settings={"mappedFileSizeCommitLog": 64 << 20}) as served:
        load = Load(
            address=served.broker, topic="large", body_bytes=BODY_BYTES, warm_up_s=0.0, messages_max=100
        )
        with LoadTarget(served.broker, client) as target:
            assert target.measure("before", load).wrong == []
        unlimited = resource.prlimit(served.pid, resource.RLIMIT_AS)
        resource.prlimit(served.pid, resource.RLIMIT_AS, (address_space(served.pid), unlimited[1]))
        flood = replace(
            load, body_bytes=3 * BODY_BYTES, processes=FLOOD_CONNECTIONS, in_flight=FLOOD_IN_FLIGHT,
            messages_max=0,
        )  # fmt: skip
        with suppress(LoadFailed):  # connections are lost: nothing is promised to their clients
            client.run(flood)
        resource.prlimit(served.pid, resource.RLIMIT_AS, unlimited)
        assert "MemoryError" in (tmp_path / "output-1.log").read_text()
        with LoadTarget(served.broker, client) as target:
            assert target.stored(load) >= 100
            assert target.measure("after", load).wrong == []
