"""Laws of the broker's tables: against plain dictionaries, through their files, and for any input."""

import json
import string
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skylark.broker.clients import ConnectedClient, ConsumerGroups, QueueLockTable
from skylark.broker.filters.compiled_subscription import parse_subscription
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.topics import TopicTable
from skylark.errors import BrokerError
from skylark.model import names
from skylark.model.java import java_hash, loads
from skylark.model.tag_expression import split_tags
from skylark.protocol.bodies import ConsumerData, LockRequest, MessageQueue, SubscriptionData, TopicConfig
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from tests.unit.broker.tables import NOW_MS, FakeChannel

LIVE = LiveSettings(BrokerSettings())
ALPHABET = string.ascii_letters + string.digits + "%|_-"
good_names = st.text(ALPHABET, min_size=1, max_size=127)
any_names = st.one_of(st.text(max_size=140), good_names, good_names.map(lambda name: f"%RETRY%{name}"))
few = st.sampled_from


# --- Names ---


@given(any_names)
def test_a_name_is_good_exactly_if_it_is_short_and_of_the_alphabet(name: str) -> None:
    good = 0 < len(name) <= 127 and set(name) <= set(ALPHABET)
    assert (names.topic_name_error(name) is None) == good
    assert (names.group_name_error(name) is None) == (good and len(name) <= 120)


@given(any_names, any_names, st.integers(-(2**31), 2**31 - 1), st.booleans())
def test_whatever_clients_send_to_no_topic_has_a_name_that_is_not_good(
    topic: str, default_topic: str, queues: int, unit_mode: bool
) -> None:
    topics = TopicTable(LIVE, now_ms=NOW_MS)
    count = len(topics)
    try:
        made = topics.for_send(topic, default_topic, queues, unit_mode=unit_mode, now_ms=NOW_MS)
    except BrokerError as error:
        assert error.code in (16, 17, 29)
        assert len(topics) == count
    else:
        assert names.topic_name_error(topic) is None
        assert made is topics.get(topic)
        assert made.read_queue_nums >= 0
        assert not made.perm & 1 or topics.is_system(topic)


# --- Files ---

topic_configs = st.builds(
    TopicConfig,
    topic_name=good_names.filter(lambda name: not name.startswith("rmq_sys_")),
    read_queue_nums=st.integers(0, 100),
    write_queue_nums=st.integers(0, 100),
    perm=st.integers(0, 7),
    topic_filter_type=few(["SINGLE_TAG", "MULTI_TAG"]),
    topic_sys_flag=st.integers(0, 3),
    order=st.booleans(),
    attributes=few([{}, {"+message.type": "FIFO"}, {"+queue.type": "SimpleCQ", "+cleanup.policy": "DELETE"}]),
)


@given(st.lists(topic_configs, max_size=10))
def test_topics_are_read_as_they_were_written(configs: list[TopicConfig]) -> None:
    topics = TopicTable(LIVE, now_ms=NOW_MS)
    for config in configs:
        try:
            topics.update(config, now_ms=NOW_MS)
        except BrokerError as error:
            assert error.code in (1, 29)  # the same name again with attributes that cannot change
    again = TopicTable(LIVE, now_ms=0)
    again.load(topics.snapshot()())
    assert again.table() == topics.table()


@given(st.dictionaries(st.text(max_size=20), st.dictionaries(st.integers(0, 9), st.integers(0, 2**62))))
def test_offsets_are_read_as_they_were_written(committed: dict[str, dict[int, int]]) -> None:
    """Also for groups with any name that administrators give: quotes, controls, other alphabets."""
    offsets = ConsumerOffsets(LIVE, now_ms=NOW_MS)
    for group, queues in committed.items():
        for queue_id, offset in queues.items():
            offsets.commit("12", group, queue_id, offset, now_ms=NOW_MS)
    text = offsets.snapshot()()
    again = ConsumerOffsets(LIVE, now_ms=0)
    again.load(text)
    for group, queues in committed.items():
        assert again.committed("12", group) == queues
    assert loads(text)["offsetTable"] == {
        f"12@{group}": queues for group, queues in committed.items() if queues
    }


members = few(
    ["dataVersion", "topicConfigTable", "subscriptionGroupTable", "offsetTable", "t@g", "topicName"]
)
documents = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(members, inner, max_size=3),
)


@given(st.binary(max_size=60) | documents.map(lambda document: json.dumps(document).encode()))
def test_any_file_is_read_or_refused_with_a_value_error(data: bytes) -> None:
    tables: list[Any] = [
        TopicTable(LIVE, now_ms=0),
        SubscriptionGroups(LIVE, now_ms=0),
        ConsumerOffsets(LIVE, now_ms=0),
    ]
    for table in tables:
        try:
            table.load(data)
        except ValueError:
            continue
        table.snapshot()()


# --- Tag expressions ---


@given(
    st.lists(
        st.text(min_size=1, max_size=8).filter(lambda tag: "|" not in tag and tag.strip() == tag), min_size=1
    )
)
def test_an_expression_matches_the_hashes_of_its_tags(tags: list[str]) -> None:
    tags = [tag for tag in tags if split_tags(tag) == (tag,)]
    if not tags:
        return
    matches = parse_subscription("t", " || ".join(tags), "TAG", now_ms=0).tags_filter
    if tags == ["*"]:
        assert matches is None
        return
    assert matches is not None
    assert all(matches(java_hash(tag)) for tag in tags)
    others = {java_hash(f"{tag}'") for tag in tags} - {java_hash(tag) for tag in tags}
    assert not any(map(matches, others))


@given(st.text(max_size=40), st.none() | few(["", "TAG", "SQL92", "x"]))
def test_any_expression_is_read_or_refused(expression: str, expression_type: str | None) -> None:
    try:
        subscription = parse_subscription("t", expression, expression_type, now_ms=0)
    except BrokerError as error:
        assert error.code in (1, 23)
    else:
        assert subscription.tags_filter is None or not subscription.tags_filter(2**40)


# --- Locks ---


class LocksMachine(RuleBasedStateMachine):
    """Against a dictionary of owners and times."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = QueueLockTable(LIVE)
        self.model: dict[tuple[str, int], tuple[str, float]] = {}
        self.now = 0.0

    def is_free(self, key: tuple[str, int], who: str) -> bool:
        owner, at = self.model.get(key, (who, self.now))
        return owner == who or self.now - at > 60

    @rule(who=few("ab"), group=few(["g", "h"]), ids=st.lists(st.integers(0, 3)))
    def lock(self, who: str, group: str, ids: list[int]) -> None:
        queues = [MessageQueue("t", "b", queue_id) for queue_id in ids]
        expected = [queue for queue in dict.fromkeys(queues) if self.is_free((group, queue.queue_id), who)]
        assert (
            self.locks.lock(LockRequest(client_id=who, consumer_group=group, mq_set=queues), now=self.now)
            == expected
        )
        for queue in expected:
            self.model[group, queue.queue_id] = (who, self.now)

    @rule(who=few("ab"), group=few(["g", "h"]), queue_id=st.integers(0, 3))
    def unlock(self, who: str, group: str, queue_id: int) -> None:
        queue = MessageQueue("t", "b", queue_id)
        self.locks.unlock(LockRequest(client_id=who, consumer_group=group, mq_set=[queue]))
        if self.model.get((group, queue_id), ("", 0))[0] == who:
            del self.model[group, queue_id]

    @rule(seconds=st.integers(1, 61), expire=st.booleans())
    def wait(self, seconds: int, expire: bool) -> None:
        self.now += seconds
        if expire:
            self.locks.expire(self.now)
            self.model = {key: lock for key, lock in self.model.items() if self.now - lock[1] <= 60}

    @invariant()
    def groups_hold_what_the_model_says(self) -> None:
        for group in ("g", "h"):
            held = any(self.now - at <= 60 for (owner, _), (_, at) in self.model.items() if owner == group)
            assert self.locks.has_any(group, now=self.now) == held


TestLocks = LocksMachine.TestCase


# --- Consumers ---


class ConsumersMachine(RuleBasedStateMachine):
    """Against plain sets: members by group, topics by group; and who hears of what."""

    def __init__(self) -> None:
        super().__init__()
        self.consumers = ConsumerGroups(LIVE)
        self.channels = [FakeChannel(f"{number}:1") for number in range(4)]
        self.members: dict[str, dict[FakeChannel, float]] = {}
        self.topics: dict[str, set[str]] = {}
        self.now = 0.0

    def drop(self, is_gone: Callable[[FakeChannel, float], bool]) -> dict[str, set[FakeChannel]]:
        """Take members out; return who is left in the groups that lost any."""
        left = {}
        for group, members in list(self.members.items()):
            kept = {channel: at for channel, at in members.items() if not is_gone(channel, at)}
            if len(kept) < len(members) and kept:
                left[group] = set(kept)
            self.members[group] = kept
            if not kept:
                del self.members[group], self.topics[group]
        return left

    @rule(number=st.integers(0, 3), group=few("gh"), topics=st.sets(few(["t1", "t2", "t3"])))
    def heartbeat(self, number: int, group: str, topics: set[str]) -> None:
        channel = self.channels[number]
        data = ConsumerData(
            group_name=group,
            subscription_data_set=[SubscriptionData(topic=topic) for topic in sorted(topics)],
        )
        client = ConnectedClient(channel, f"client-{number}", "JAVA", 479)
        notice = self.consumers.register(client, data, notify=True, now=self.now).notice
        members = self.members.setdefault(group, {})
        changed = channel not in members or self.topics.get(group, set()) != topics
        members[channel] = self.now
        self.topics[group] = topics
        assert (notice is not None) == changed
        assert notice is None or set(notice.channels) == set(members)

    @rule(number=st.integers(0, 3))
    def close(self, number: int) -> None:
        channel = self.channels[number]
        notices = self.consumers.channel_closed(channel)
        left = self.drop(lambda other, _: other is channel)
        assert {notice.group: set(notice.channels) for notice in notices} == left

    @rule(seconds=st.integers(1, 130))
    def expire(self, seconds: int) -> None:
        self.now += seconds
        silent = {
            channel
            for members in self.members.values()
            for channel, at in members.items()
            if self.now - at > 120
        }
        channels, notices = self.consumers.expire(self.now)
        left = self.drop(lambda _, at: self.now - at > 120)
        assert set(channels) == silent
        assert {notice.group: set(notice.channels) for notice in notices} == left

    @invariant()
    def questions_are_answered_by_the_model(self) -> None:
        for group in "gh":
            online = self.consumers.group(group)
            assert (online is not None) == (group in self.members)
            assert {client.channel for client in self.consumers.clients(group)} == set(
                self.members.get(group, ())
            )
            if online is not None:
                assert online.subscriptions.keys() == self.topics[group]
        for topic in ("t1", "t2", "t3"):
            groups = sorted(group for group, topics in self.topics.items() if topic in topics)
            assert self.consumers.groups_of(topic) == groups


TestConsumers = ConsumersMachine.TestCase
