"""`skylark top` shows the replicas of masters that a controller chooses."""

from __future__ import annotations

from skylark.admin.results import BrokerNode, BrokerSummary, ClusterSummary
from skylark.cli.top import BROKER_COLUMNS, Sample, View

MASTER = {"replicationEpoch": "7", "replicationMembers": "1 2", "replicationLapsed": "false"}


def rows(*tables: dict[str, str]) -> list[dict[str, object]]:
    """What the table of brokers shows of brokers with this run-time information."""
    brokers = [
        BrokerSummary.read(BrokerNode("C", "broker-a", number, f"127.0.0.1:{number}"), table)
        for number, table in enumerate(tables)
    ]
    now = Sample(0, 0.0, ClusterSummary(tuple(brokers), {}), (), 0, (), (), ())
    listing = View().tables(now)[0]
    return [dict(zip(listing.columns, row, strict=True)) for row in listing.rows]


def test_masters_have_their_epoch_and_the_members_of_their_set() -> None:
    slave = {"replicationEpoch": "7", "replicationMembers": "", "replicationLapsed": "false"}
    shown = [(row["epoch"], row["in sync"]) for row in rows(MASTER, slave, {})]
    assert shown == [(7, "1 2"), (7, ""), (None, "")]


def test_a_master_that_no_controller_answers_says_so() -> None:
    assert rows({**MASTER, "replicationLapsed": "true"})[0]["in sync"] == "1 2, no controller answers"


def test_without_a_controller_there_are_no_such_columns() -> None:
    assert tuple(rows({})[0]) == BROKER_COLUMNS
