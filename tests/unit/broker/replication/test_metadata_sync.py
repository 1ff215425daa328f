"""Tables of a slave become those of its master."""

from __future__ import annotations

from skylark.broker.groups import RequestModes, SubscriptionGroups
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.topics import TopicTable
from skylark.protocol.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    RequestMode,
    RequestModeTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings

VERSION = DataVersion(timestamp=5, counter=7)


def live() -> LiveSettings[BrokerSettings]:
    return LiveSettings(BrokerSettings())


def test_topics_that_the_master_has_not_are_gone() -> None:
    topics = TopicTable(live(), now_ms=1)
    topics.for_send("Mine", "TBW102", 4, now_ms=2)
    changed: list[bool] = []
    topics.on_change = lambda: changed.append(True)
    kept = topics.get("TBW102")
    assert kept is not None
    theirs = {"TBW102": kept, "Theirs": TopicConfig(topic_name="Theirs", read_queue_nums=3)}
    gone = topics.follow(TopicConfigTable(topic_config_table=theirs, data_version=VERSION))
    assert "Mine" in gone
    assert {config.topic_name for config in topics.all()} == {"TBW102", "Theirs"}
    assert (topics.data_version, changed) == (VERSION, [True])
    assert [config.topic_name for config in topics.take_unregistered()] == ["Theirs"]


def test_groups_are_replaced() -> None:
    groups = SubscriptionGroups(live(), now_ms=1)
    groups.find("Mine", now_ms=2)
    config = SubscriptionGroupConfig(group_name="Theirs")
    table = SubscriptionGroupTable(
        subscription_group_table={"Theirs": config},
        forbidden_table={"Theirs": {"T": 4}},
        data_version=VERSION,
    )
    groups.follow(table)
    assert groups.all() == [config]
    assert not groups.is_readable("Theirs", "T")
    assert groups.data_version == VERSION


def test_offsets_are_merged_and_saved_only_when_new() -> None:
    offsets = ConsumerOffsets(live(), now_ms=1)
    offsets.commit("T", "Mine", 0, 5, now_ms=2)
    table = ConsumerOffsetTable(offset_table={"T@Theirs": {0: 9}}, data_version=VERSION)
    changes = offsets.changes
    offsets.follow(table)
    assert offsets.changes == changes + 1
    offsets.follow(table)
    assert offsets.changes == changes + 1
    assert (offsets.query("T", "Mine", 0), offsets.query("T", "Theirs", 0)) == (5, 9)


def test_commits_at_a_slave_are_noted() -> None:
    offsets = ConsumerOffsets(live(), now_ms=1)
    offsets.commit("T", "G", 0, 5, now_ms=2)
    offsets.stray = set()
    offsets.commit("T", "G", 1, 5, now_ms=2)
    assert offsets.stray == {("T", "G", 1)}


def test_commits_at_a_slave_are_noted_in_its_file() -> None:
    offsets, slave, master = (ConsumerOffsets(live(), now_ms=1) for _ in range(3))
    offsets.stray, slave.stray = set(), set()
    for queue_id in (1, 3):
        offsets.commit("T", "G@x", queue_id, 5, now_ms=2)
    file = offsets.snapshot()()
    slave.load(file)
    master.load(file)
    assert slave.stray == {("T", "G@x", 1), ("T", "G@x", 3)}
    assert master.stray is None
    assert slave.committed("T", "G@x") == master.committed("T", "G@x") == {1: 5, 3: 5}
    assert b"stray" not in master.snapshot()()


def test_modes_are_replaced() -> None:
    modes = RequestModes(live())
    changed: list[bool] = []
    modes.on_change = lambda: changed.append(True)
    mode = RequestMode(topic="T", consumer_group="G", mode="POP")
    table = RequestModeTable(message_request_mode_map={"T": {"G": mode}})
    modes.follow(table)
    modes.follow(table)
    assert modes.table() == table
    assert changed == [True]
