"""The topics of a broker: names, built-in ones, who makes new ones, attributes, limits, and the file."""

from typing import Any

import msgspec
import pytest

from skylark.broker.topics import TopicTable, built_in_topics, describe, parse_changes
from skylark.errors import BrokerError, TopicNotExist
from skylark.model import java, names
from skylark.protocol.bodies import (
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    decode_body,
)
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.settings import BrokerSettings, StoreSettings
from tests.unit.broker.tables import NOW_MS, answers, golden_config, live, refusal

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def table(**settings: Any) -> TopicTable:
    return TopicTable(live(**settings), now_ms=NOW_MS)


def golden_table() -> TopicTable:
    topics = table(trace_topic=True)
    topics.load(golden_config("topics.json"))
    return topics


def group(name: str = "g1", **members: Any) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(group_name=name, **members)


# --- Names ---


@pytest.mark.parametrize(
    ("topic", "fault"),
    [
        ("", "is blank."),
        (" \t", "is blank."),
        ("../x", "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("%RETRY%../x", "contains illegal characters"),
        ("a b", "contains illegal characters"),
        ("a\n", "contains illegal characters"),
        ("a\x00", "contains illegal characters"),
        ("主题", "contains illegal characters"),
        ("t\u0301", "contains illegal characters"),
        ("\uff11", "contains illegal characters"),
        ("a+b", "contains illegal characters"),
        ("t" * 128, "is longer than topic max length."),
        ("%RETRY%" + "g" * 121, "is longer than topic max length."),
    ],
)
def test_bad_names_are_refused(topic: str, fault: str) -> None:
    topics = table()
    before = topics.data_version
    with pytest.raises(BrokerError) as caught:
        topics.for_send(topic, "TBW102", 4, now_ms=NOW_MS)
    assert caught.value.code == 29
    assert caught.value.remark.startswith(f"The specified topic {fault}")
    with pytest.raises(BrokerError, match="The specified topic"):
        topics.update(TopicConfig(topic_name=topic), now_ms=NOW_MS)
    assert topics.data_version == before


@pytest.mark.parametrize("topic", ["a", "t" * 127, "%a|b-C_9", "%RETRY%" + "g" * 120])
def test_good_names_are_taken(topic: str) -> None:
    assert names.topic_name_error(topic) is None
    assert table().for_send(topic, "TBW102", 4, now_ms=NOW_MS).topic_name == topic


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "The specified group is blank."),
        ("a/b", "The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("g" * 121, "The specified group is longer than group max length."),
        ("g" * 120, None),
    ],
)
def test_names_of_groups(name: str, fault: str | None) -> None:
    assert names.group_name_error(name) == fault


def test_retry_topics_name_their_group() -> None:
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dead_letter_topic("g") == "%DLQ%g"
    assert names.pop_retry_topics("t", "g") == ("%RETRY%g_t", "%RETRY%g+t")


# --- Built in ---


def test_built_in_topics_are_those_of_apache() -> None:
    golden = decode_body(golden_config("topics.json"), TopicConfigTable).topic_config_table
    made = {config.topic_name: config for config in built_in_topics(BrokerSettings(trace_topic=True))}
    assert made == {name: golden[name] for name in made}
    assert len(made) == 14


def test_the_list_of_system_topics_is_that_of_apache() -> None:
    [(_, answer)] = answers("probe-admin", 305)
    assert table(trace_topic=True).system_topics() == sorted(decode_body(answer.body, TopicList).topic_list)


def test_built_in_topics_follow_the_settings() -> None:
    settings = BrokerSettings(
        cluster="C", name="b", cluster_topic=False, broker_topic=False, auto_create_topics=False
    )
    topics = {config.topic_name: config for config in built_in_topics(settings)}
    assert (topics["C"].perm, topics["b"].perm) == (1, 1)
    assert "TBW102" not in topics
    assert "RMQ_SYS_TRACE_TOPIC" not in topics
    assert {"C_REPLY_TOPIC", "rmq_sys_REVIVE_LOG_C", "rmq_sys_SYNC_BROKER_MEMBER_b"} <= topics.keys()
    levels = StoreSettings(delay_levels=" ".join(["1s"] * 20))
    assert TopicTable(live(store=levels), now_ms=0).get("SCHEDULE_TOPIC_XXXX") == TopicConfig(
        topic_name="SCHEDULE_TOPIC_XXXX", read_queue_nums=20, write_queue_nums=20
    )


# --- Topics that make themselves ---


def test_sf_062_a_send_makes_the_topic_after_the_default_topic() -> None:
    topics = table()
    made = topics.for_send("TopicNew", "TBW102", 4, now_ms=NOW_MS + 1)
    assert made == TopicConfig(topic_name="TopicNew", read_queue_nums=4, write_queue_nums=4, perm=6)
    assert topics.get("TopicNew") is made
    assert topics.for_send("TopicNew", "nobody", 9, now_ms=NOW_MS + 2) is made
    assert (topics.data_version.counter, topics.data_version.timestamp) == (1, NOW_MS + 1)
    assert topics.take_unregistered() == [made]
    assert topics.take_unregistered() == []


def test_sf_062_without_auto_creation_there_is_neither_the_topic_nor_the_default_one() -> None:
    topics = table(auto_create_topics=False)
    assert topics.get("TBW102") is None
    with pytest.raises(TopicNotExist) as caught:
        topics.for_send("TopicNew", "TBW102", 4, now_ms=NOW_MS)
    assert refusal(caught.value) == (17, f"topic[TopicNew] not exist, apply first please!{FAQ}")
    topics.load(golden_config("topics.json"))  # of a broker that had it
    assert topics.get("TBW102") is None
    assert topics.get("TopicTest") is not None


def test_auto_creation_can_be_switched_while_the_broker_runs() -> None:
    settings = live()
    topics = TopicTable(settings, now_ms=NOW_MS)
    settings.current = BrokerSettings(auto_create_topics=False)
    with pytest.raises(TopicNotExist):
        topics.for_send("t1", "TBW102", 4, now_ms=NOW_MS)
    assert topics.for_send("t1", "DefaultCluster", 4, now_ms=NOW_MS).perm == 6
    settings.current = BrokerSettings()
    assert topics.for_send("t2", "TBW102", 4, now_ms=NOW_MS).write_queue_nums == 4


@pytest.mark.parametrize(("asked", "queues"), [(-3, 0), (0, 0), (1, 1), (8, 8), (100, 8), (10**9, 8)])
def test_a_topic_gets_no_more_queues_than_the_default_one(asked: int, queues: int) -> None:
    made = table().for_send("t1", "TBW102", asked, now_ms=NOW_MS)
    assert (made.read_queue_nums, made.write_queue_nums) == (queues, queues)


def test_sends_are_answered_as_apache_answers_them() -> None:
    """Every refusal of `probe-send` that the table decides: names, system topics, auto-creation, queues."""
    topics = golden_table()
    replayed = 0
    for asked, answer in answers("probe-send", 310):
        fields = asked.header["extFields"]
        if answer.code not in (16, 17, 29) or "b" not in fields:
            continue
        try:
            config = topics.for_send(fields["b"], fields["c"], int(fields["d"]), now_ms=NOW_MS)
        except BrokerError as error:
            assert refusal(error) == (answer.code, answer.header["remark"])
        else:
            assert answer.header["remark"].startswith(
                f"request queueId[{fields['e']}] is illegal, {describe(config)} Producer: "
            )
        replayed += 1
    assert replayed >= 14


@pytest.mark.parametrize(
    ("topic", "default_topic", "queues"),
    [
        ("TopicFromCluster", "DefaultCluster", 100),
        ("TopicNegative", "TBW102", -3),
        ("TopicTest", "TBW102", 4),
    ],
)
def test_topics_are_made_as_apache_made_them(topic: str, default_topic: str, queues: int) -> None:
    golden = decode_body(golden_config("topics.json"), TopicConfigTable).topic_config_table
    assert table().for_send(topic, default_topic, queues, now_ms=NOW_MS) == golden[topic]


def test_the_brokers_own_topics_take_no_sends_but_others_that_are_built_in_do() -> None:
    topics = table()
    for topic in names.UNSENDABLE_TOPICS:
        with pytest.raises(BrokerError) as caught:
            topics.for_send(topic, "TBW102", 4, now_ms=NOW_MS)
        assert refusal(caught.value) == (16, f"Sending message to topic[{topic}] is forbidden.")
    for topic in ("TBW102", "BenchmarkTest", "DefaultCluster", "broker-a"):
        assert topics.for_send(topic, "TBW102", 4, now_ms=NOW_MS) is topics.get(topic)


def test_unit_mode_marks_the_topic() -> None:
    topics = table()
    assert topics.for_send("t1", "TBW102", 4, unit_mode=True, now_ms=NOW_MS).topic_sys_flag == 1
    assert topics.for_send("%RETRY%g", "TBW102", 4, unit_mode=True, now_ms=NOW_MS).topic_sys_flag == 2


def test_a_filter_type_is_inherited() -> None:
    topics = table()
    model = TopicConfig(topic_name="Model", perm=7, topic_filter_type="MULTI_TAG", write_queue_nums=2)
    topics.update(model, now_ms=NOW_MS)
    made = topics.for_send("t1", "Model", 4, now_ms=NOW_MS)
    assert (made.topic_filter_type, made.write_queue_nums, made.read_queue_nums) == ("MULTI_TAG", 2, 2)


def test_a_retry_topic_is_made_even_without_auto_creation() -> None:
    made = table(auto_create_topics=False).for_send("%RETRY%g", "TBW102", 4, now_ms=NOW_MS)
    assert made == TopicConfig(topic_name="%RETRY%g", read_queue_nums=1, write_queue_nums=1)


# --- Retry and dead letters ---


def test_a_heartbeat_makes_the_retry_topic() -> None:
    topics = table()
    made = topics.ensure_retry_topic(group(retry_queue_nums=3), ordered=True, unit_mode=True, now_ms=NOW_MS)
    assert made == TopicConfig(
        topic_name="%RETRY%g1", read_queue_nums=3, write_queue_nums=3, order=True, topic_sys_flag=2
    )
    assert topics.ensure_retry_topic(group(), ordered=True, now_ms=NOW_MS) is made
    assert topics.ensure_retry_topic(group(), now_ms=NOW_MS) is made
    version = topics.data_version.counter
    assert not topics.ensure_retry_topic(group(), ordered=False, now_ms=NOW_MS).order
    assert topics.data_version.counter == version + 1
    assert topics.ensure_retry_topic(group("g2", retry_queue_nums=-1), now_ms=NOW_MS).write_queue_nums == 0


def test_dead_letters_have_one_queue() -> None:
    topics = table()
    made = topics.ensure_topic(names.dead_letter_topic("g1"), now_ms=NOW_MS)
    assert made == TopicConfig(topic_name="%DLQ%g1", read_queue_nums=1, write_queue_nums=1, perm=6)
    assert topics.ensure_topic("%DLQ%g1", now_ms=NOW_MS) is made


@pytest.mark.parametrize("name", ["../../etc", "a b", "g" * 255, "", "x\x00"])
def test_groups_whose_names_make_no_topic_get_none(name: str) -> None:
    topics = table()
    count = len(topics)
    if name:
        with pytest.raises(BrokerError, match="The specified topic"):
            topics.ensure_retry_topic(group(name), now_ms=NOW_MS)
        with pytest.raises(BrokerError, match="The specified topic"):
            topics.ensure_topic(names.dead_letter_topic(name), now_ms=NOW_MS)
    assert len(topics) == count


def test_long_names_are_for_retry_topics_alone() -> None:
    topics = table()
    assert topics.ensure_topic("%RETRY%" + "g" * 120 + "+" + "t" * 127, now_ms=NOW_MS)
    with pytest.raises(BrokerError):
        topics.ensure_topic("t" * 128, now_ms=NOW_MS)


# --- Administrators ---


def test_changes_of_topics_are_answered_as_apache_answers_them() -> None:
    """Codes 17 and 215 of `probe-admin`, in order."""
    topics = table()
    replayed = 0
    for asked, answer in answers("probe-admin", 17, 215):
        fields = asked.header["extFields"]
        try:
            if asked.code == 215:
                assert topics.delete(fields["topic"], now_ms=NOW_MS) == (answer.code == 0)
            else:
                wanted = UpdateAndCreateTopic.from_fields(fields)
                config = TopicConfig(
                    topic_name=wanted.topic,
                    read_queue_nums=wanted.read_queue_nums,
                    write_queue_nums=wanted.write_queue_nums,
                    perm=wanted.perm,
                    topic_filter_type=wanted.topic_filter_type,
                    attributes=parse_changes(wanted.attributes),
                )
                topics.update(config, now_ms=NOW_MS)
            assert answer.code == 0
        except BrokerError as error:
            assert refusal(error) == (answer.code, answer.header["remark"])
        replayed += 1
    assert replayed == 9
    assert topics.get("TopicProbe") is None
    [(_, answer)] = [pair for pair in answers("probe-admin", 351) if pair[1].code == 0]
    assert topics.get("TopicProbe3") == decode_body(answer.body, TopicConfig)


def test_an_update_that_changes_nothing_is_no_change() -> None:
    topics = table()
    changes = []
    topics.on_change = lambda: changes.append(topics.data_version.counter)
    wanted = TopicConfig(topic_name="t1", attributes={"+message.type": "FIFO"})
    topics.update(wanted, now_ms=NOW_MS)
    topics.update(wanted, now_ms=NOW_MS)
    topics.update(TopicConfig(topic_name="t1"), now_ms=NOW_MS)
    assert changes == [1]
    topics.update(TopicConfig(topic_name="t1", perm=4), now_ms=NOW_MS)
    assert changes == [1, 2]
    assert topics.get("t1") == TopicConfig(topic_name="t1", perm=4, attributes={"message.type": "FIFO"})


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("+message.type=", "add/alter attribute format is wrong: +message.type"),
        ("message.type", "delete attribute format is wrong: message.type"),
        ("+message.type=FIFO,+message.type=DELAY", "key duplication: +message.type"),
        ("+message.type=FIFO,-message.type", "alter duplication key. key: message.type"),
        ("+=x", "kv string format wrong."),
        ("+a+b=x", "kv string format wrong."),
        ("-no.such", "attempt to delete a nonexistent key: no.such"),
        ("-cleanup.policy", "attempt to update an unchangeable attribute. key: cleanup.policy"),
        (
            "+message.type=LOUD",
            "value is not in set: [DELAY, FIFO, LITE, MIXED, NORMAL, PRIORITY, TRANSACTION, UNSPECIFIED]",
        ),
        ("+lake.table=a/b", "invalid value: a/b; it must match [A-Za-z0-9._-]{1,100}"),
        ("+reserve.time=5", "Update topic reserveTime not supported"),
        ("x+y=z", "kv string format wrong."),
    ],
)
def test_bad_changes_of_attributes(changes: str, remark: str) -> None:
    topics = table()
    topics.update(TopicConfig(topic_name="t1", attributes={"+cleanup.policy": "DELETE"}), now_ms=NOW_MS)
    before = topics.get("t1")
    with pytest.raises(BrokerError) as caught:
        topics.update(TopicConfig(topic_name="t1", attributes=parse_changes(changes)), now_ms=NOW_MS)
    assert refusal(caught.value) == (1, remark)
    assert topics.get("t1") == before


def test_attributes_are_set_changed_and_deleted() -> None:
    topics = table()
    for changes, attributes in [
        ("+message.type=FIFO", {"message.type": "FIFO"}),
        ("+message.type=DELAY", {"message.type": "DELAY"}),
        ("", {"message.type": "DELAY"}),
        ("-message.type,+lake.table=raw-1.orders_2", {"lake.table": "raw-1.orders_2"}),
        ("+lake.table=none", {"lake.table": "none"}),
        ("-lake.table", {}),
    ]:
        wanted = TopicConfig(topic_name="t1", attributes=parse_changes(changes))
        [updated] = topics.update(wanted, now_ms=NOW_MS)
        assert updated.attributes == attributes
    with pytest.raises(BrokerError, match="only add attribute is supported while creating topic"):
        topics.update(TopicConfig(topic_name="t2", attributes={"-message.type": ""}), now_ms=NOW_MS)
    with pytest.raises(BrokerError, match="wrong format key: essage"):
        topics.update(TopicConfig(topic_name="t1", attributes={"message.type": "FIFO"}), now_ms=NOW_MS)
    mixed = TopicConfig(topic_name="t3", attributes={"+message.type": "MIXED"})
    [updated] = table(mixed_message_type=True).update(mixed, now_ms=NOW_MS)
    assert updated.attributes == {"message.type": "MIXED"}


@pytest.mark.parametrize(
    "wanted",
    [
        TopicConfig(topic_name="t1", read_queue_nums=-1),
        TopicConfig(topic_name="t1", write_queue_nums=10**9),
        TopicConfig(topic_name="t1", perm=8),
        TopicConfig(topic_name="t1", perm=-1),
        TopicConfig(topic_name="t1", topic_filter_type="NONE"),
        TopicConfig(topic_name="rmq_sys_mine"),
        TopicConfig(topic_name="DefaultCluster"),
    ],
)
def test_impossible_topics_are_refused(wanted: TopicConfig) -> None:
    topics = table()
    before = topics.get(wanted.topic_name)
    with pytest.raises(BrokerError):
        topics.update(wanted, now_ms=NOW_MS)
    assert topics.get(wanted.topic_name) == before


def test_system_topics_can_be_changed_where_nobody_protects_them() -> None:
    topics = table(protect_system_topics=False)
    topics.update(TopicConfig(topic_name="TBW102", read_queue_nums=2, write_queue_nums=2), now_ms=NOW_MS)
    assert topics.delete("TBW102", now_ms=NOW_MS)
    assert not topics.delete("TBW102", now_ms=NOW_MS)
    with pytest.raises(BrokerError, match="The specified topic is blank"):
        topics.delete(" ", now_ms=NOW_MS)


# --- Limits ---


def test_there_is_a_limit_of_topics() -> None:
    topics = table(topics_max=len(table()) + 1)
    topics.for_send("t1", "TBW102", 4, now_ms=NOW_MS)
    with pytest.raises(BrokerError) as caught:
        topics.for_send("t2", "TBW102", 4, now_ms=NOW_MS)
    assert refusal(caught.value) == (1, "the broker takes no more than 14 topics")
    topics.update(TopicConfig(topic_name="t1", perm=4), now_ms=NOW_MS)
    assert topics.delete("t1", now_ms=NOW_MS)
    topics.for_send("t2", "TBW102", 4, now_ms=NOW_MS)


def test_there_is_a_limit_of_queues() -> None:
    built_in = sum(config.write_queue_nums for config in table().all())
    topics = table(queues_max=built_in + 10)
    wanted = TopicConfig(topic_name="t1", read_queue_nums=10, write_queue_nums=2)
    topics.update(wanted, now_ms=NOW_MS)
    with pytest.raises(BrokerError, match=f"no more than {built_in + 10} queues"):
        topics.for_send("t2", "TBW102", 1, now_ms=NOW_MS)
    topics.update(msgspec.structs.replace(wanted, read_queue_nums=9), now_ms=NOW_MS)
    topics.for_send("t2", "TBW102", 1, now_ms=NOW_MS)


def test_a_list_of_topics_is_taken_whole_or_not_at_all() -> None:
    topics = table(topics_max=len(table()) + 2)
    wanted = [TopicConfig(topic_name=f"t{number}") for number in range(3)]
    with pytest.raises(BrokerError, match="no more than"):
        topics.update(*wanted, now_ms=NOW_MS)
    with pytest.raises(BrokerError, match="illegal"):
        topics.update(wanted[0], TopicConfig(topic_name="a b"), now_ms=NOW_MS)
    assert topics.get("t0") is None
    assert topics.update(*wanted[:2], now_ms=NOW_MS) == wanted[:2]


# --- What the hot path knows ---


def test_a_topic_is_plain_while_nothing_special_applies_to_it() -> None:
    topics = table()
    topics.for_send("t1", "TBW102", 4, now_ms=NOW_MS)
    assert topics.plain["t1"] == 4
    assert not topics.plain.keys() & names.UNSENDABLE_TOPICS
    for special in (
        TopicConfig(topic_name="t1", order=True),
        TopicConfig(topic_name="t1", attributes={"+message.type": "NORMAL"}),
        TopicConfig(topic_name="t1", attributes={"-message.type": ""}, topic_filter_type="MULTI_TAG"),
    ):
        topics.update(special, now_ms=NOW_MS)
        assert "t1" not in topics.plain
    topics.update(TopicConfig(topic_name="t1", write_queue_nums=2), now_ms=NOW_MS)
    assert topics.plain["t1"] == 2
    again = table()
    again.load(topics.snapshot()())
    assert again.plain == topics.plain
    topics.delete("t1", now_ms=NOW_MS)
    assert "t1" not in topics.plain


# --- Name servers ---


def test_name_servers_hear_of_no_permission_that_the_broker_lacks() -> None:
    topics = table(permission=4)
    topics.for_send("t1", "TBW102", 4, now_ms=NOW_MS)
    registered = topics.registered_table().topic_config_table
    assert (registered["t1"].perm, registered["TBW102"].perm) == (4, 4)
    config = topics.get("t1")
    assert config is not None
    assert config.perm == 6
    assert topics.registered_table([config]).topic_config_table.keys() == {"t1"}
    assert table().registered_table().topic_config_table["TBW102"].perm == 7


def test_topics_that_name_servers_hold_to_be_ordered_become_so() -> None:
    topics = table()
    topics.for_send("t1", "TBW102", 4, now_ms=NOW_MS)
    version = topics.data_version.counter
    topics.mark_ordered(["t1", "unheard"], now_ms=NOW_MS)
    topics.mark_ordered(["t1"], now_ms=NOW_MS)
    assert topics.is_ordered("t1")
    assert not topics.is_ordered("unheard")
    assert topics.data_version.counter == version + 1


# --- The file ---


def test_apaches_file_is_read_and_written_to_the_same_meaning() -> None:
    topics = golden_table()
    golden = java.loads(golden_config("topics.json"))
    assert java.loads(topics.snapshot()()) == golden
    again = table(trace_topic=True)
    again.load(topics.snapshot()())
    assert again.table() == topics.table()
    assert again.data_version == topics.data_version


def test_a_snapshot_does_not_change() -> None:
    topics = table()
    snapshot = topics.snapshot()
    topics.for_send("t1", "TBW102", 4, now_ms=NOW_MS)
    assert b'"t1"' not in snapshot()
    assert b'"t1"' in topics.snapshot()()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"topicConfigTable":{"t":5}}', b"\xff"])
def test_a_damaged_file_is_a_value_error(data: bytes) -> None:
    topics = table()
    with pytest.raises(ValueError, match="body is not a TopicConfigTable"):
        topics.load(data)


def test_topics_that_only_the_store_knows_are_adopted() -> None:
    topics = table()
    adopted = topics.adopt(
        [("Orphan", 4), ("TBW102", 1), ("../x", 1), ("%RETRY%g", 1)], {"Orphan"}, now_ms=NOW_MS
    )
    assert adopted == ["Orphan", "%RETRY%g"]
    assert topics.get("Orphan") == TopicConfig(
        topic_name="Orphan",
        read_queue_nums=4,
        write_queue_nums=4,
        attributes={"queue.type": "BatchCQ"},
    )
