"""Retention waits for an archive: what its group has read may go, the rest only if the disk is full."""

from __future__ import annotations

import logging
from datetime import datetime

import pytest

from skylark.broker.group_topics import ArchiveProgress
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.topics import TopicTable
from skylark.errors import BrokerError
from skylark.model.archived_topics import LAKE_RULES, ArchivedTopics
from skylark.model.message import SCHEDULE_TOPIC
from skylark.model.names import TRACE_TOPIC, reply_topic
from skylark.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from skylark.store.message_store import MessageStore
from tests.support.clock import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import message, put_all, simulated_disk, sized, small_settings
from tests.unit.broker.tables import NOW_MS, live

HOUR_MS = 3_600_000
FOUR = int(datetime(2026, 11, 15, 4, 0).timestamp() * 1000)


class Rig:
    """A store with expired files, four records of topic T a file, and an archive of group `lake`."""

    def __init__(self, *, group: str = "lake") -> None:
        clock = ManualClock(FOUR - 80 * HOUR_MS)
        self.disk: SimulatedDisk = simulated_disk(clock)
        self.store = MessageStore(small_settings(), disk=self.disk, clock=clock)
        settings = live(archive_group=group)
        self.offsets = ConsumerOffsets(settings, now_ms=NOW_MS)
        self.topics = TopicTable(settings, now_ms=NOW_MS)
        self.groups = SubscriptionGroups(settings, now_ms=NOW_MS)
        progress = ArchiveProgress(settings, self.topics, self.groups, self.offsets, self.store)
        self.store.needed_from = progress.needed_from
        self.store.open()
        put_all(self.store, [sized(1000) for _ in range(13)])
        clock.advance(80 * HOUR_MS)
        put_all(self.store, [sized(1000) for _ in range(4)])

    def commit(self, offset: int, topic: str = "T", group: str = "lake") -> None:
        self.offsets.commit(topic, group, 0, offset, now_ms=NOW_MS)

    def register(self, rules: ArchivedTopics) -> None:
        attributes = {f"+{LAKE_RULES}": rules.encode()}
        self.groups.update(SubscriptionGroupConfig(group_name="lake", attributes=attributes), now_ms=NOW_MS)

    def clean(self) -> list[int]:
        return self.store.housekeeper.clean()


def test_files_go_as_far_as_the_archive_has_committed() -> None:
    rig = Rig()
    assert rig.clean() == []  # it has not begun
    rig.commit(3)
    assert rig.clean() == []  # offset 3 is in the first file
    rig.commit(4)
    assert rig.clean() == [0]
    assert rig.store.housekeeper.unread.held == 2
    rig.commit(12)
    assert rig.clean() == [4096, 8192]
    assert (rig.store.housekeeper.unread.held, rig.store.housekeeper.unread.lost) == (0, 0)
    rig.store.close()


def test_without_an_archive_expired_files_go() -> None:
    rig = Rig(group="")
    assert rig.clean() == [0, 4096, 8192]
    rig.store.close()


def test_a_queue_that_the_archive_has_not_met_is_needed_from_its_beginning() -> None:
    rig = Rig()
    put_all(rig.store, [message("T", queue_id=1)])
    rig.commit(17)
    [entry] = [queue.entry(0) for queue in rig.store.queues.values() if queue.queue_id == 1]
    assert entry is not None
    assert rig.store.needed_from() == entry[0]
    rig.store.close()


def test_topics_and_groups_of_others_hold_nothing() -> None:
    rig = Rig()
    put_all(rig.store, [message("other")])
    rig.commit(0, group="somebody")
    rig.commit(17)
    assert rig.store.needed_from() is None
    assert rig.clean() == [0, 4096, 8192]
    rig.store.close()


def test_topics_that_are_to_be_archived_are_kept_before_the_archive_has_met_them() -> None:
    rig = Rig()
    rig.commit(0, topic="elsewhere")
    for table, is_held in (("raw", True), ("none", False)):
        rig.topics.update(TopicConfig(topic_name="T", attributes={"+lake.table": table}), now_ms=NOW_MS)
        assert (rig.store.needed_from() == 0) is is_held
    assert rig.clean() == [0, 4096, 8192]
    rig.store.close()


@pytest.mark.parametrize(
    ("rules", "table", "is_held"),
    [
        (ArchivedTopics(("raw",), ("T|U",)), None, True),
        (ArchivedTopics(("raw",), ("U", "T")), None, True),
        (ArchivedTopics(("raw",), (".*",), skip=("T.*",)), None, False),
        (ArchivedTopics(("raw",), (".*",), skip=("T.*",)), "raw", False),
        (ArchivedTopics(("raw",), (".*",)), "none", False),
        (ArchivedTopics(("raw",), (".*",)), "of_another_lake", False),
        (ArchivedTopics(("raw",), ("U",)), "raw", True),
        (ArchivedTopics(("raw",), ("U",)), None, False),
        (ArchivedTopics(topics=("T.*",)), "raw", True),
        (ArchivedTopics(topics=("U",)), "raw", False),
    ],
)
def test_topics_that_the_rules_of_the_lake_choose_are_kept_before_it_has_met_them(
    rules: ArchivedTopics, table: str | None, is_held: bool
) -> None:
    rig = Rig()
    rig.commit(0, topic="elsewhere")
    attributes = {} if table is None else {"+lake.table": table}
    rig.topics.update(TopicConfig(topic_name="T", attributes=attributes), now_ms=NOW_MS)
    rig.register(rules)
    restarted = SubscriptionGroups(live(), now_ms=NOW_MS)
    restarted.load(rig.groups.snapshot()())
    rig.groups.follow(restarted.table())
    assert rig.clean() == ([] if is_held else [0, 4096, 8192])
    rig.store.close()


def test_rules_topics_and_attributes_that_change_are_noticed() -> None:
    rig = Rig()
    rig.commit(0, topic="elsewhere")
    rig.topics.update(TopicConfig(topic_name="T"), now_ms=NOW_MS)
    rig.register(ArchivedTopics(("raw",), ("U",)))
    assert rig.store.needed_from() is None
    rig.register(ArchivedTopics(("raw",), ("T",)))
    assert rig.store.needed_from() == 0
    rig.topics.update(TopicConfig(topic_name="T", attributes={"+lake.table": "none"}), now_ms=NOW_MS)
    assert rig.store.needed_from() is None
    rig.commit(17)
    put_all(rig.store, [message("T2")])
    rig.topics.update(TopicConfig(topic_name="T2"), now_ms=NOW_MS)
    assert rig.store.needed_from() is None
    rig.register(ArchivedTopics(topics=("T2?",)))
    assert rig.store.needed_from() is not None
    rig.store.close()


def test_topics_that_a_lake_cannot_see_hold_nothing() -> None:
    rig = Rig()
    put_all(
        rig.store, [message(topic) for topic in (SCHEDULE_TOPIC, TRACE_TOPIC, reply_topic("DefaultCluster"))]
    )
    rig.register(ArchivedTopics(("raw",), (".*",)))
    rig.commit(17)
    assert rig.store.needed_from() is None
    rig.store.close()


def test_invalid_rules_are_refused() -> None:
    rig = Rig()
    for text in (
        "no json",
        '{"tables": ["raw"], "topics": ["("]}',
        '{"tables": ["raw"], "skip": ["(a+)+b"]}',
        '{"tables": ["' + "x" * (64 << 10) + '"]}',
    ):
        config = SubscriptionGroupConfig(group_name="lake", attributes={f"+{LAKE_RULES}": text})
        with pytest.raises(BrokerError, match=LAKE_RULES + "|topic"):
            rig.groups.update(config, now_ms=NOW_MS)
    rig.store.close()


def test_a_full_disk_is_obeyed_and_the_loss_is_told(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.commit(4)
    rig.disk.used = 0.86
    with caplog.at_level(logging.ERROR):
        assert rig.clean() == [0, 4096, 8192, 12288]
    assert rig.store.housekeeper.unread.lost == 3
    assert "files are deleted that the archive has not read files=3 physical_offset=4096" in caplog.text
    rig.store.close()
