"""Consumer groups: who makes them, what administrators change, and the file."""

from typing import Any

import pytest

from skylark.broker.groups import SubscriptionGroups
from skylark.errors import BrokerError
from skylark.model import java, names
from skylark.protocol.bodies import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    decode_body,
    encode_body,
)
from skylark.settings import BrokerSettings
from tests.unit.broker.tables import NOW_MS, answers, golden_config, live, refusal


def table(**settings: Any) -> SubscriptionGroups:
    return SubscriptionGroups(live(**settings), now_ms=NOW_MS)


def test_system_groups_are_there_from_the_start() -> None:
    groups = table(auto_create_groups=False)
    golden = decode_body(golden_config("subscriptionGroup.json"), SubscriptionGroupTable)
    assert {config.group_name: config for config in groups.all()} == {
        name: golden.subscription_group_table[name] for name in names.SYSTEM_GROUPS
    }
    assert len(groups) == 8
    assert "TOOLS_CONSUMER" in groups


def test_groups_make_themselves_on_first_use() -> None:
    groups = table()
    assert groups.get("g1") is None
    made = groups.find("g1", now_ms=NOW_MS + 5)
    assert made == SubscriptionGroupConfig(group_name="g1")
    assert groups.find("g1", now_ms=NOW_MS + 6) is made
    assert (groups.data_version.counter, groups.data_version.timestamp) == (1, NOW_MS + 5)


@pytest.mark.parametrize("name", ["", " ", "a b", "../x", "g" * 121, "组"])
def test_groups_with_bad_names_do_not(name: str) -> None:
    groups = table()
    assert groups.find(name, now_ms=NOW_MS) is None
    assert groups.data_version.counter == 0


def test_without_auto_creation_only_system_groups_make_themselves() -> None:
    settings = live(auto_create_groups=False)
    groups = SubscriptionGroups(settings, now_ms=NOW_MS)
    assert groups.find("g1", now_ms=NOW_MS) is None
    assert groups.find("CID_RMQ_SYS_X", now_ms=NOW_MS) is not None
    settings.current = BrokerSettings(auto_create_groups=False, create_system_groups=False)
    assert groups.find("CID_RMQ_SYS_Y", now_ms=NOW_MS) is None


def test_a_group_is_found_as_apache_finds_it() -> None:
    for asked, answer in answers("probe-admin", 352):
        made = table().find(asked.header["extFields"]["group"], now_ms=NOW_MS)
        assert java.loads(encode_body(made)) == java.loads(answer.body)


def test_administrators_may_give_any_name_as_with_apache() -> None:
    groups = table()
    bodies = [asked.body for asked, answer in answers("probe-admin", 200) if answer.code == 0]
    bodies += [asked.body for asked, answer in answers("probe-send", 200) if answer.code == 0]
    for body in bodies:
        groups.update(decode_body(body, SubscriptionGroupConfig), now_ms=NOW_MS)
    assert groups.get("a b") == SubscriptionGroupConfig(group_name="a b")
    raw = groups.get("CG_raw")
    assert raw is not None
    assert raw.retry_max_times == 3
    assert max(len(config.group_name) for config in groups.all()) > names.GROUP_CHARS_MAX


@pytest.mark.parametrize(
    ("wanted", "remark"),
    [
        (SubscriptionGroupConfig(group_name=" "), "The specified group is blank."),
        (
            SubscriptionGroupConfig(group_name="g" * 256),
            "The specified group is longer than group max length.",
        ),
        (
            SubscriptionGroupConfig(group_name="g", retry_queue_nums=10**9),
            "retryQueueNums is 1000000000, allowed is up to 65536",
        ),
    ],
)
def test_impossible_groups_are_refused(wanted: SubscriptionGroupConfig, remark: str) -> None:
    groups = table()
    with pytest.raises(BrokerError) as caught:
        groups.update(SubscriptionGroupConfig(group_name="good"), wanted, now_ms=NOW_MS)
    assert refusal(caught.value) == (29, remark)
    assert "good" not in groups


def test_groups_have_no_attributes_yet() -> None:
    groups = table()
    wanted = SubscriptionGroupConfig(group_name="g", attributes={"+a": "b"})
    with pytest.raises(BrokerError) as caught:
        groups.update(wanted, now_ms=NOW_MS)
    assert refusal(caught.value) == (1, "unsupported key: a")


def test_an_update_that_changes_nothing_is_no_change() -> None:
    groups = table()
    changes = []
    groups.on_change = lambda: changes.append(groups.data_version.counter)
    for retries in (3, 3, 4):
        groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=retries), now_ms=NOW_MS)
    assert changes == [1, 2]


def test_there_is_a_limit_of_groups() -> None:
    groups = table(groups_max=9)
    assert groups.find("g1", now_ms=NOW_MS) is not None
    assert groups.find("g2", now_ms=NOW_MS) is None
    with pytest.raises(BrokerError, match="no more than 9 consumer groups"):
        groups.update(SubscriptionGroupConfig(group_name="g2"), now_ms=NOW_MS)
    groups.update(SubscriptionGroupConfig(group_name="g1", consume_enable=False), now_ms=NOW_MS)
    assert groups.delete("g1", now_ms=NOW_MS)
    assert groups.find("g2", now_ms=NOW_MS) is not None


def test_what_is_forbidden_is_answered_as_apache_answers_it() -> None:
    groups = table()
    for asked, answer in answers("probe-admin", 353):
        fields = asked.header["extFields"]
        group, topic = fields["group"], fields["topic"]
        groups.set_readable(group, topic, fields["readable"] == "true", now_ms=NOW_MS)
        body = GroupForbidden(group=group, topic=topic, readable=groups.is_readable(group, topic))
        assert encode_body(body) == answer.body


def test_allowing_one_topic_leaves_the_others_forbidden() -> None:
    groups = table()
    groups.set_readable("g", "t1", False, now_ms=NOW_MS)
    groups.set_readable("g", "t2", False, now_ms=NOW_MS)
    assert groups.table().forbidden_table == {"g": {"t1": 4, "t2": 4}}
    groups.set_readable("g", "t1", True, now_ms=NOW_MS)
    assert groups.is_readable("g", "t1")
    assert not groups.is_readable("g", "t2")
    assert groups.data_version.counter == 3
    groups.set_readable("g", "t1", True, now_ms=NOW_MS)
    assert groups.data_version.counter == 3
    assert not groups.delete("g", now_ms=NOW_MS)
    assert groups.is_readable("g", "t2")
    assert groups.table().forbidden_table == {}


def test_what_is_forbidden_has_a_limit() -> None:
    groups = table(groups_max=2)
    for topic in ("t1", "t2"):
        groups.set_readable("g", topic, False, now_ms=NOW_MS)
    with pytest.raises(BrokerError, match="no more than 2 forbidden pairs"):
        groups.set_readable("h", "t3", False, now_ms=NOW_MS)
    assert groups.is_readable("h", "t3")
    assert groups.table().forbidden_table.keys() == {"g"}


def test_apaches_file_is_read_and_written_to_the_same_meaning() -> None:
    groups = table()
    groups.load(golden_config("subscriptionGroup.json"))
    assert java.loads(groups.snapshot()()) == java.loads(golden_config("subscriptionGroup.json"))
    groups.set_readable("CG_probe", "TopicTest", False, now_ms=NOW_MS)
    again = table()
    again.load(groups.snapshot()())
    assert again.table() == groups.table()


def test_a_snapshot_does_not_change() -> None:
    groups = table()
    groups.set_readable("g1", "t", False, now_ms=NOW_MS)
    snapshot = groups.snapshot()
    groups.find("g2", now_ms=NOW_MS)
    groups.set_readable("g1", "t", True, now_ms=NOW_MS)
    assert b'"g2"' not in snapshot()
    assert b'"forbiddenTable":{"g1":{"t":4}}' in snapshot()


def test_a_damaged_file_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="body is not a"):
        table().load(b'{"subscriptionGroupTable":[]}')
