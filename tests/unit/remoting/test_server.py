"""A flood of connections that are refused does not flood the log."""

from __future__ import annotations

import pytest

from skylark.remoting.server import SAID_EVERY_S, RefusedConnections


def test_one_line_for_all_of_a_while(caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedConnections()
    for number in range(500):
        refused.add(f"10.0.0.1:{number}", "2 are open", 100 + number / 1000)
    assert [record.getMessage() for record in caplog.records] == [
        "connections refused count=1 last=10.0.0.1:0 reason=2 are open"
    ]
    refused.add("10.0.0.2:1", "2 are open", 100 + SAID_EVERY_S)
    assert caplog.records[-1].getMessage() == (
        "connections refused count=500 last=10.0.0.2:1 reason=2 are open"
    )
    assert len(caplog.records) == 2
