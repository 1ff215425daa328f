"""Subscriptions: what heartbeats say of them, and which messages match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.client.consumer.subscription import by_class, by_sql, by_tags
from skylark.client.received_message import decode_pull
from skylark.errors import SettingsError
from skylark.model.java import java_hash
from tests.unit.client.messages import QUEUE, record
from tests.unit.protocol.golden_frames import captured


def test_what_a_heartbeat_says_is_java_s() -> None:
    [golden, *_] = [frame for frame in captured("push-concurrent") if frame.code == 34]
    from skylark.protocol.bodies import HeartbeatData, decode_body

    data = decode_body(golden.body, HeartbeatData).consumer_data_set[0].subscription_data_set
    theirs = next(item for item in data if item.topic == "TopicTest")
    ours = by_tags("TopicTest", "TagA || TagB", now_ms=theirs.sub_version).data()
    assert ours == theirs
    everything = next(item for item in data if item.topic.startswith("%RETRY%"))
    assert by_tags(everything.topic, "*", now_ms=everything.sub_version).data() == everything


@pytest.mark.parametrize("expression", ["*", "", None])
def test_everything(expression: str | None) -> None:
    subscription = by_tags("T", expression, now_ms=1)
    assert (subscription.expression, subscription.tags, subscription.is_tag_type) == ("*", frozenset(), True)


def test_sql() -> None:
    subscription = by_sql("T", "a > 5", now_ms=1)
    data = subscription.data()
    assert (data.expression_type, data.sub_string, data.tags_set, data.code_set) == ("SQL92", "a > 5", [], [])
    messages = decode_pull(record(0, properties={"TAGS": "x"}), QUEUE)
    assert subscription.filtered(messages) is messages


@pytest.mark.parametrize("expression", ["||", "|| ||", "  "])
def test_expressions_without_a_tag_are_refused(expression: str) -> None:
    with pytest.raises(SettingsError, match="subscription of T"):
        by_tags("T", expression, now_ms=1)


@pytest.mark.parametrize("expression", ["created, paid", "created;paid", "created | paid", "a || b,c"])
def test_other_separators_than_two_bars_are_refused(expression: str) -> None:
    with pytest.raises(SettingsError, match=r"separate tags by \|\|, as in '(created \|\| paid|b \|\| c)'"):
        by_tags("T", expression, now_ms=1)


def test_a_blank_inside_a_tag_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    assert by_tags("T", "New York", now_ms=1).tags == {b"New York"}
    assert "separate several tags by || topic=T tag='New York'" in caplog.text


def test_a_filter_class() -> None:
    data = by_class("T", "com.example.Filter", now_ms=1).data()
    assert (data.class_filter_mode, data.sub_string, data.tags_set) == (True, "com.example.Filter", [])
    with pytest.raises(SettingsError, match="the filter class name is empty"):
        by_class("T", " ", now_ms=1)


def test_other_mistakes() -> None:
    with pytest.raises(SettingsError, match="the SQL92 expression is empty"):
        by_sql("T", " ", now_ms=1)
    for topic in ("", "a b", "x" * 128):
        with pytest.raises(SettingsError):
            by_tags(topic, "*", now_ms=1)


def test_renewing_never_goes_back() -> None:
    subscription = by_tags("T", "a", now_ms=100)
    assert subscription.renewed(200).version == 200
    assert subscription.renewed(50).version == 100


TAGS = st.text(
    st.characters(blacklist_characters=",;|\x01\x02", min_codepoint=33, max_codepoint=0xD7FF), min_size=1
)


@given(tags=st.lists(TAGS, min_size=1, max_size=5), sent=st.lists(TAGS | st.none(), max_size=8))
def test_exactly_the_messages_with_these_tags_match(tags: list[str], sent: list[str | None]) -> None:
    subscription = by_tags("T", " || ".join(tags), now_ms=1)
    data = b"".join(record(n, properties={} if tag is None else {"TAGS": tag}) for n, tag in enumerate(sent))
    matching = [message.queue_offset for message in subscription.filtered(decode_pull(data, QUEUE))]
    wanted = {tag.strip("".join(map(chr, range(33)))) for tag in tags}
    assert matching == [n for n, tag in enumerate(sent) if tag in wanted]
    assert set(subscription.data().code_set) == {java_hash(tag) for tag in wanted}
