"""What needs attention: servers whose log, clock or transactions stand out."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request

from skylark.admin.results import BrokerNode, BrokerSummary, ClusterSummary
from skylark.console.connections import ClusterConnection
from skylark.console.pages.overview import concerns_of
from skylark.console.settings import ConsoleSettings
from skylark.console.view import Ask, Console
from skylark.console.watch import Inventory, Look

NOW_MS = 1_763_000_000_000
RUNTIME = {
    "bootTimestamp": str(NOW_MS - 90_061_000),
    "runtime": "[ 1 days, 1 hours, 1 minutes, 1 seconds ]",
    "commitLogMaxOffset": str(200 << 20),
}
MASTER = BrokerSummary.read(BrokerNode("c", "broker-a", 0, "10.0.0.1:10911"), RUNTIME)
SLAVE = replace(MASTER, node=BrokerNode("c", "broker-a", 1, "10.0.0.2:10911"))


def said(*brokers: BrokerSummary, open_transactions: int = 0) -> list[str]:
    settings = ConsoleSettings(clusters={"local": "127.0.0.1:1"})
    request = Request({"type": "http", "headers": [], "query_string": b"", "path": "/local/"})
    ask = Ask(Console(settings), request, ClusterConnection("local", "127.0.0.1:1", None))
    inventory = Inventory({}, frozenset(), (), {}, (), open_transactions)
    look = Look(NOW_MS, 0.0, ClusterSummary(brokers, {}, NOW_MS), {}, inventory, ())
    return [concern.text for concern in concerns_of(ask, look, {})]


def test_a_pair_with_the_same_log_and_clock_needs_no_attention() -> None:
    assert MASTER.clock_ms == NOW_MS
    assert said(MASTER, SLAVE) == []
    assert said(replace(MASTER, clock_ms=None), replace(SLAVE, log_end=190 << 20)) == []


def test_a_slave_that_is_behind_is_named_with_its_gap() -> None:
    assert said(MASTER, replace(SLAVE, log_end=100 << 20)) == ["broker-a:1 is 100.0 MiB behind its master"]


def test_a_clock_that_differs_is_named() -> None:
    ahead, behind = replace(MASTER, clock_ms=NOW_MS + 61_000), replace(SLAVE, clock_ms=NOW_MS - 9000)
    assert said(ahead, behind) == [
        "The clocks of broker-a:0 and of the console differ by +61 s: messages get wrong times",
        "The clocks of broker-a:1 and of the console differ by -9 s: messages get wrong times",
    ]


def test_transactions_that_wait_are_counted() -> None:
    assert said(MASTER, open_transactions=12) == ["12 transactions wait for a decision of their producers"]
