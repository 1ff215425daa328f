"""How far groups have come: commits, resets, clones, the version, and the file."""

from collections.abc import Callable
from typing import Any

import pytest

from skylark.broker.offsets import UNREACHABLE, ConsumerOffsets
from skylark.errors import BrokerError
from skylark.model import java
from skylark.protocol.bodies import ConsumerOffsetTable, CorrectionOffsets, QueueOffsets, decode_body
from skylark.settings import BrokerSettings
from tests.unit.broker.tables import NOW_MS, answers, golden_config, live, refusal


def table(**settings: Any) -> ConsumerOffsets:
    return ConsumerOffsets(live(**settings), now_ms=NOW_MS)


def commit(offsets: ConsumerOffsets, topic: str, group: str, *queues: int) -> None:
    for queue_id, offset in enumerate(queues):
        offsets.commit(topic, group, queue_id, offset, now_ms=NOW_MS)


def test_sf_048_and_094_a_restarted_broker_knows_how_far_each_group_has_come() -> None:
    offsets = table()
    commit(offsets, "t1", "g1", 50, 7)
    again = table()
    again.load(offsets.snapshot()())
    assert again.query("t1", "g1", 0) == 50
    assert again.committed("t1", "g1") == {0: 50, 1: 7}


def test_sf_088_groups_have_offsets_of_their_own() -> None:
    offsets = table()
    commit(offsets, "t1", "g1", 10)
    assert offsets.query("t1", "g2", 0) is None
    assert offsets.query("t2", "g1", 0) is None
    assert offsets.query("t1", "g1", 1) is None
    commit(offsets, "t1", "g2", 3)
    assert (offsets.query("t1", "g1", 0), offsets.query("t1", "g2", 0)) == (10, 3)


def test_sf_130_any_offset_can_be_committed_also_a_smaller_one_and_one_beyond_the_end() -> None:
    offsets = table()
    for offset in (5, 10**15, 2):
        offsets.commit("t1", "g1", 0, offset, now_ms=NOW_MS)
        assert offsets.query("t1", "g1", 0) == offset


def test_the_version_grows_every_so_many_commits() -> None:
    offsets = table(offset_version_step=3)
    for number in range(7):
        offsets.commit("t1", "g1", 0, number, now_ms=NOW_MS + number)
    assert (offsets.data_version.counter, offsets.data_version.timestamp) == (2, NOW_MS + 5)
    assert offsets.changes == 7
    assert BrokerSettings().offset_version_step == 500


def test_a_reset_counts_until_the_group_has_heard_of_it() -> None:
    offsets = table()
    commit(offsets, "t1", "g1", 10, 10)
    offsets.reset("t1", "g1", {0: 3})
    assert offsets.query("t1", "g1", 0) == 3
    assert offsets.is_reset_pending("t1", "g1", 0)
    assert not offsets.is_reset_pending("t1", "g1", 1)
    assert offsets.take_reset("t1", "g1", 1) is None
    assert offsets.take_reset("t1", "g1", 0) == 3
    assert offsets.take_reset("t1", "g1", 0) is None
    assert not offsets.is_reset_pending("t1", "g1", 0)
    assert offsets.committed("t1", "g1") == {0: 3, 1: 10}


def test_a_reset_in_apaches_words() -> None:
    """Codes 222, 15 and 11 of `probe-members`: a reset, a commit that does not count, a pull that hears."""
    offsets = table()
    [(asked, answer)] = [pair for pair in answers("probe-members", 222) if pair[1].header["opaque"] == 16]
    group, topic = asked.header["extFields"]["group"], asked.header["extFields"]["topic"]
    wanted = decode_body(answer.body, QueueOffsets).offset_table
    offsets.reset(topic, group, {queue.queue_id: offset for queue, offset in wanted.items()})
    [(asked, answer)] = answers("probe-members", 15)
    assert answer.header["remark"] == "Offset has been previously reset"
    assert offsets.is_reset_pending(topic, group, int(asked.header["extFields"]["queueId"]))
    [(asked, answer)] = [pair for pair in answers("probe-members", 11) if pair[1].code == 21]
    assert offsets.take_reset(topic, group, 0) == int(answer.header["extFields"]["nextBeginOffset"])


def test_resets_on_the_brokers_side_can_be_switched_off() -> None:
    settings = live()
    offsets = ConsumerOffsets(settings, now_ms=NOW_MS)
    offsets.reset("t1", "g1", {0: 3})
    settings.current = BrokerSettings(server_side_reset=False)
    offsets.commit("t1", "g1", 0, 9, now_ms=NOW_MS)
    assert offsets.query("t1", "g1", 0) == 9
    assert not offsets.is_reset_pending("t1", "g1", 0)
    assert offsets.take_reset("t1", "g1", 0) is None
    settings.current = BrokerSettings()
    assert offsets.take_reset("t1", "g1", 0) is None


def test_how_far_a_group_has_pulled() -> None:
    offsets = table(offset_keys_max=1)
    assert offsets.pulled("t1", "g1", 0) is None
    commit(offsets, "t1", "g1", 4)
    assert offsets.pulled("t1", "g1", 0) == 4
    offsets.note_pull("t1", "g1", 0, 36)
    offsets.note_pull("t1", "g2", 0, 36)
    assert offsets.pulled("t1", "g1", 0) == 36
    assert offsets.pulled("t1", "g2", 0) is None
    assert offsets.query("t1", "g1", 0) == 4


def test_a_group_can_begin_where_another_stands() -> None:
    offsets = table()
    commit(offsets, "t1", "old", 1, 2)
    commit(offsets, "t2", "old", 3)
    commit(offsets, "t1", "new", 9, 9, 9)
    offsets.clone("old", "new", ["t1", "unheard"])
    assert offsets.committed("t1", "new") == {0: 1, 1: 2}
    assert offsets.committed("t2", "new") == {}
    offsets.commit("t1", "new", 0, 100, now_ms=NOW_MS)
    assert offsets.query("t1", "old", 0) == 1
    offsets.clone("old", "old", ["t1"])
    assert offsets.committed("t1", "old") == {0: 1, 1: 2}


def test_offsets_go_with_their_topic_and_their_group() -> None:
    offsets = table()
    for topic in ("t1", "t2"):
        for group in ("g1", "g2"):
            commit(offsets, topic, group, 5)
            offsets.note_pull(topic, group, 0, 6)
            offsets.reset(topic, group, {0: 2})
    offsets.delete_topic("t1")
    assert offsets.topics_by_group() == {"g1": ["t2"], "g2": ["t2"]}
    offsets.delete_group("g1")
    assert offsets.topics_by_group() == {"g2": ["t2"]}
    assert offsets.pulled("t2", "g1", 0) is None
    assert offsets.take_reset("t1", "g2", 0) is None
    assert offsets.take_reset("t2", "g2", 0) == 2


def test_who_consumes_what() -> None:
    offsets = table()
    offsets.load(golden_config("consumerOffset.json"))
    golden = decode_body(golden_config("consumerOffset.json"), ConsumerOffsetTable)
    assert golden.group_topic_map is not None
    assert {name: set(topics) for name, topics in offsets.topics_by_group().items()} == {
        name: set(topics) for name, topics in golden.group_topic_map.items()
    }
    assert offsets.topics_of("CG_retry") == ["%RETRY%CG_retry", "TopicRetry"]
    assert "CG_retry" in offsets.groups_of("TopicRetry")


def test_corrections_as_apache_computes_them() -> None:
    [(_, answer)] = answers("probe-members", 308)
    expected = decode_body(answer.body, CorrectionOffsets).correction_offsets
    offsets = table()
    commit(offsets, "TopicTest", "CG_member", 19, 2, 15, 18)
    commit(offsets, "TopicTest", "CG_probe", -1, -1, -1, -1)
    commit(offsets, "TopicTest", "CG_other", 0, 0, 0, 0)
    assert offsets.corrections("TopicTest", "CG_member", ["CG_probe"], lambda _: 0) == expected


def test_corrections_leave_out_what_is_gone_and_mark_the_last() -> None:
    offsets = table()
    commit(offsets, "t1", "me", 5, 5)
    commit(offsets, "t1", "ahead", 9, 9)
    commit(offsets, "t1", "gone", 1, 1)
    commit(offsets, "t2", "elsewhere", 0, 0)
    assert offsets.corrections("t1", "me", ["me"], lambda _: 2) == {0: UNREACHABLE, 1: UNREACHABLE}
    assert offsets.corrections("t1", "ahead", ["me"], lambda queue_id: 2 * queue_id) == {0: 1, 1: 9}


@pytest.mark.parametrize("queue_id", [-1, 8, 10**9])
def test_queues_that_cannot_be_are_refused(queue_id: int) -> None:
    offsets = table(topic_queues_max=8)
    with pytest.raises(BrokerError) as caught:
        offsets.commit("t1", "g1", queue_id, 1, now_ms=NOW_MS)
    assert refusal(caught.value) == (29, f"queueId[{queue_id}] is illegal, allowed is 0 to 7")
    with pytest.raises(BrokerError):
        offsets.reset("t1", "g1", {0: 1, queue_id: 1})
    assert offsets.topics_by_group() == {}
    assert not offsets.is_reset_pending("t1", "g1", 0)


def test_there_is_a_limit_of_topics_and_groups() -> None:
    offsets = table(offset_keys_max=1)
    commit(offsets, "t1", "g1", 1, 2, 3)
    changes: list[Callable[[], None]] = [
        lambda: offsets.commit("t1", "g2", 0, 1, now_ms=NOW_MS),
        lambda: offsets.reset("t1", "g2", {0: 1}),
        lambda: offsets.clone("g1", "g2", ["t1"]),
    ]
    for change in changes:
        with pytest.raises(BrokerError, match="no more than 1 pairs of a topic and a group"):
            change()
    assert offsets.groups_of("t1") == ["g1"]
    assert not offsets.is_reset_pending("t1", "g2", 0)
    offsets.reset("t1", "g1", {})
    assert offsets.query("t1", "g1", 0) == 1


def test_apaches_file_is_read_and_written_to_the_same_meaning() -> None:
    offsets = table()
    offsets.load(golden_config("consumerOffset.json"))
    golden = java.loads(golden_config("consumerOffset.json"))
    ours = java.loads(offsets.snapshot()())
    assert ours["offsetTable"] == golden["offsetTable"]
    assert ours["dataVersion"] == golden["dataVersion"]
    for document in (ours, golden):
        document["groupTopicMap"] = {name: set(topics) for name, topics in document["groupTopicMap"].items()}
    assert ours == golden


def test_offsets_that_were_pulled_up_to_are_kept() -> None:
    """As in files of RocketMQ 5.5."""
    offsets = table()
    offsets.load(b'{"offsetTable":{"t@g":{0:7}},"pullOffsetTable":{"t@g":{0:9,1:3}}}')
    assert (offsets.pulled("t", "g", 0), offsets.pulled("t", "g", 1)) == (9, 3)
    offsets.note_pull("t", "g", 1, 4)
    text = offsets.snapshot()()
    assert b'"pullOffsetTable":{"t@g":{0:9,1:4}}}' in text
    again = table()
    again.load(text)
    assert again.pulled("t", "g", 1) == 4
    offsets.delete_group("g")
    assert b"pullOffsetTable" not in offsets.snapshot()()


def test_numbers_are_bare_keys_and_names_are_not() -> None:
    offsets = table()
    commit(offsets, "12", "34", 5, 6)
    text = offsets.snapshot()()
    assert b'"offsetTable":{"12@34":{0:5,1:6}}' in text
    assert b'"groupTopicMap":{"34":["12"]}' in text
    again = table()
    again.load(text)
    assert again.committed("12", "34") == {0: 5, 1: 6}


def test_a_file_without_a_version_and_with_quoted_numbers_is_read() -> None:
    offsets = table()
    offsets.load(b'{"offsetTable":{"t@g":{"0":7},"nothing":{0:1},"t@g@broadcast":{0:2}}}')
    assert offsets.query("t", "g", 0) == 7
    assert offsets.query("t", "g@broadcast", 0) == 2
    assert offsets.topics_by_group() == {"g": ["t"]}
    assert offsets.topics_of("g") == ["t"]
    assert offsets.groups_of("t") == ["g"]
    assert offsets.data_version.timestamp == NOW_MS
    offsets.delete_group("g")
    assert offsets.query("t", "g@broadcast", 0) is None


def test_a_snapshot_does_not_change() -> None:
    offsets = table()
    commit(offsets, "t1", "g1", 5)
    snapshot = offsets.snapshot()
    commit(offsets, "t1", "g1", 6)
    commit(offsets, "t1", "g2", 6)
    assert b'"offsetTable":{"t1@g1":{0:5}}' in snapshot()


def test_every_change_is_counted_once_so_that_the_file_is_written() -> None:
    offsets = table()
    assert offsets.changes == 0
    steps: list[Callable[[], None]] = [
        lambda: commit(offsets, "t1", "g1", 5),
        lambda: offsets.reset("t1", "g1", {0: 3}),
        lambda: offsets.clone("g1", "g2", ["t1", "t9"]),
        lambda: offsets.follow(ConsumerOffsetTable({"t2@g1": {0: 7}})),
        lambda: offsets.delete_topic("t1"),
        lambda: offsets.delete_group("g1"),
    ]
    for number, step in enumerate(steps, 1):
        step()
        assert offsets.changes == number
    offsets.reset("t1", "g1", {})
    offsets.clone("g2", "g2", ["t1"])
    offsets.follow(ConsumerOffsetTable({"without a separator": {0: 7}}))
    assert offsets.changes == len(steps)


def test_what_a_master_says_again_is_no_change() -> None:
    offsets = table()
    for _ in range(2):
        offsets.follow(ConsumerOffsetTable({"t1@g1": {0: 7}}))
    assert offsets.changes == 1
    assert offsets.committed("t1", "g1") == {0: 7}


def test_an_illegal_queue_is_refused_also_of_a_group_that_has_offsets() -> None:
    offsets = table(topic_queues_max=8)
    commit(offsets, "t1", "g1", 5)
    offsets.commit("t1", "g1", 7, 1, now_ms=NOW_MS)
    for queue_id in (-1, 8):
        with pytest.raises(BrokerError, match="allowed is 0 to 7"):
            offsets.commit("t1", "g1", queue_id, 5, now_ms=NOW_MS)
    assert offsets.committed("t1", "g1") == {0: 5, 7: 1}


def test_the_version_of_every_fourth_commit() -> None:
    offsets = table(offset_version_step=4)
    versions = []
    for number in range(7):
        offsets.commit("t1", "g1", 0, number, now_ms=NOW_MS + number)
        versions.append(offsets.data_version.counter)
    assert [version - versions[0] for version in versions] == [0, 0, 0, 1, 1, 1, 1]


def test_a_reset_is_of_one_group_in_one_topic() -> None:
    offsets = table()
    assert not offsets.has_reset("t1", "g1")
    offsets.reset("t1", "g1", {0: 3, 1: 4})
    assert offsets.has_reset("t1", "g1")
    assert not offsets.has_reset("t1", "g2")
    assert not offsets.has_reset("t2", "g1")
    assert offsets.take_reset("t1", "g2", 0) is None
    assert offsets.take_reset("t1", "g1", 0) == 3
    assert offsets.has_reset("t1", "g1"), "of the other queue"
    assert offsets.take_reset("t1", "g1", 1) == 4
    assert not offsets.has_reset("t1", "g1")


def test_offsets_committed_at_a_slave_are_remembered_over_a_restart() -> None:
    offsets = table()
    assert offsets.stray is None
    commit(offsets, "t1", "g1", 5)
    offsets.stray = set()
    commit(offsets, "t1", "g1", 6, 7)
    commit(offsets, "t2", "g1", 8)
    assert offsets.stray == {("t1", "g1", 0), ("t1", "g1", 1), ("t2", "g1", 0)}
    data = offsets.snapshot()()
    again = table()
    again.load(data)
    assert again.stray is None, "a master does not care"
    again.stray = {("t3", "g1", 0)}
    again.load(data)
    assert again.stray == {*offsets.stray, ("t3", "g1", 0)}
    again.load(b'{"offsetTable":{}}')  # of an older version


def test_a_group_that_is_behind_all_others_is_unreachable() -> None:
    offsets = table()
    commit(offsets, "t1", "first", 10, 10, 10)
    commit(offsets, "t1", "second", 12, 5, 10)
    commit(offsets, "t1", "mine", 9, 7, 10, 0)
    found = offsets.corrections("t1", "mine", ["mine"], lambda queue_id: 0)
    assert UNREACHABLE == 2**63 - 1
    assert found == {0: UNREACHABLE, 1: 5, 2: 10}
    assert offsets.corrections("t1", "mine", ["mine"], lambda queue_id: 10) == {
        0: UNREACHABLE,
        1: UNREACHABLE,
        2: 10,
    }
