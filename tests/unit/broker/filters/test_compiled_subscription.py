"""Tag expressions, and the functions made of them."""

import pytest

from skylark.broker.filters.compiled_subscription import (
    compile_subscription,
    parse_subscription,
    refuse_unknown_type,
)
from skylark.errors import BrokerError
from skylark.model.java import java_hash
from skylark.model.message import PutMessage
from skylark.model.record import encode
from skylark.model.tag_expression import is_tag_type, split_tags
from skylark.protocol.bodies import HeartbeatData, SubscriptionData, decode_body
from tests.unit.broker.tables import NOW_MS, answers, refusal
from tests.unit.protocol.golden_frames import captured


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        (None, None),
        ("", None),
        ("*", None),
        ("TagA", ("TagA",)),
        ("TagA || TagB", ("TagA", "TagB")),
        ("TagA||TagB||TagA", ("TagA", "TagB")),
        ("|| TagA ||", ("TagA",)),
        ("\tTagA\x00", ("TagA",)),
        ("TagA\u00a0", ("TagA\u00a0",)),
        ("|||", ("|",)),
        ("a|b", ("a|b",)),
        (" ", ()),
        ("|| ||", ()),
        ("* || TagA", ("*", "TagA")),
    ],
)
def test_expressions(expression: str | None, tags: tuple[str, ...] | None) -> None:
    assert split_tags(expression) == tags


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_separators_alone_are_an_error(expression: str) -> None:
    with pytest.raises(ValueError, match="invalid tag expression"):
        split_tags(expression)


def test_expressions_without_a_type_are_of_tags() -> None:
    assert [is_tag_type(kind) for kind in (None, "", "TAG", "SQL92", "tag")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_a_pull_is_filtered_by_what_it_brings() -> None:
    subscription = parse_subscription("t1", "TagA || 标签", "TAG", now_ms=NOW_MS)
    assert subscription.data == SubscriptionData(
        topic="t1",
        sub_string="TagA || 标签",
        expression_type="TAG",
        tags_set=["TagA", "标签"],
        code_set=[2598919, java_hash("标签")],
        sub_version=NOW_MS,
    )
    matches = subscription.tags_filter
    assert matches is not None
    assert [matches(code) for code in (2598919, 2598920, java_hash("标签"), 0)] == [True, False, True, False]


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything_matches_without_a_function(expression: str | None) -> None:
    subscription = parse_subscription("t1", expression, None, now_ms=NOW_MS)
    assert subscription.tags_filter is None
    assert (subscription.data.sub_string, subscription.data.expression_type) == ("*", "TAG")


def test_blanks_match_nothing() -> None:
    matches = parse_subscription("t1", " ", "TAG", now_ms=NOW_MS).tags_filter
    assert matches is not None
    assert not matches(0)


def test_a_tag_with_a_negative_hash_matches() -> None:
    tag = next(f"Tag{number}" for number in range(1000) if java_hash(f"Tag{number}xxxx") < 0) + "xxxx"
    matches = parse_subscription("t1", tag, "TAG", now_ms=NOW_MS).tags_filter
    assert matches is not None
    assert matches(java_hash(tag))
    assert java_hash(tag) < 0


def test_long_expressions_are_read_too() -> None:
    tags = [f"Tag{number}" for number in range(5000)]
    subscription = parse_subscription("t1", " || ".join(tags), "TAG", now_ms=NOW_MS)
    assert subscription.data.tags_set == tags
    assert subscription.tags_filter is not None
    assert subscription.tags_filter(java_hash("Tag4999"))


def test_what_cannot_be_read_is_refused_as_by_apache() -> None:
    [(asked, answer)] = [pair for pair in answers("probe-pull", 11) if pair[1].code == 23]
    fields = asked.header["extFields"]
    with pytest.raises(BrokerError) as caught:
        parse_subscription(fields["topic"], fields["subscription"], fields["expressionType"], now_ms=NOW_MS)
    assert refusal(caught.value) == (23, answer.header["remark"])
    with pytest.raises(BrokerError) as caught:
        parse_subscription("t1", "", "SQL92", now_ms=NOW_MS)
    assert caught.value.code == 23


def test_types_that_nobody_knows_are_refused_in_rocketmqs_words() -> None:
    expected = (1, "The broker does not support consumer to filter message by XPATH")
    with pytest.raises(BrokerError) as caught:
        parse_subscription("t1", "a > 5", "XPATH", now_ms=NOW_MS)
    assert refusal(caught.value) == expected
    with pytest.raises(BrokerError) as caught:
        refuse_unknown_type("XPATH")
    assert refusal(caught.value) == expected
    for served in (None, "", "TAG", "SQL92"):
        refuse_unknown_type(served)


@pytest.mark.parametrize("store_host", [b"\x7f\0\0\x01\0\0*\x9f", bytes(16) + b"\0\0*\x9f"])
@pytest.mark.parametrize("born_host", [b"\x7f\0\0\x01\0\0*\x9f", bytes(16) + b"\0\0*\x9f"])
@pytest.mark.parametrize("topic", ["T", "%RETRY%" + "t" * 200])
def test_sf_122_sql_looks_at_the_properties_of_records(
    topic: str, born_host: bytes, store_host: bytes
) -> None:
    record_filter = parse_subscription(topic, "a > 5 AND b = 'x'", "SQL92", now_ms=NOW_MS).record_filter
    assert record_filter is not None

    def record(properties: bytes, body: bytes = b"\x02a\x019\x02b\x01x\x02") -> bytes:
        put = PutMessage(topic, 0, body, properties, born_host=born_host)
        return encode(put, queue_offset=0, physical_offset=0, store_timestamp=NOW_MS, store_host=store_host)

    def matches(record: bytes) -> bool:
        file = memoryview(b"before" + record + b"a\x016\x02b\x01x\x02")
        return record_filter(file, 6, 6 + len(record))

    assert matches(record(b"a\x016\x02b\x01x\x02"))
    assert matches(record(b"TAGS\x01t\x02a\x016\x02b\x01x", b""))
    assert not matches(record(b"a\x015\x02b\x01x\x02"))
    assert not matches(record(b"a\x01six\x02b\x01x\x02"))
    assert not matches(record(b""))
    assert not matches(record(b"a\x016\x02b\x01x\x02")[:80])


def test_sf_022_122_tags_whose_hashes_collide_pass_the_broker() -> None:
    matches = parse_subscription("t1", "Aa", "TAG", now_ms=NOW_MS).tags_filter
    assert matches is not None
    assert matches(java_hash("BB"))


def test_subscriptions_of_captured_heartbeats_match_by_their_codes() -> None:
    filtered = 0
    for frame in captured("push-concurrent"):
        if frame.kind != "request" or frame.code != 34:
            continue
        for consumer in decode_body(frame.body, HeartbeatData).consumer_data_set:
            for data in consumer.subscription_data_set:
                matches = compile_subscription(data).tags_filter
                if data.sub_string == "*":
                    assert matches is None
                else:
                    assert matches is not None
                    assert [matches(java_hash(tag)) for tag in ("TagA", "TagB", "TagC")] == [
                        True,
                        True,
                        False,
                    ]
                    filtered += 1
    assert filtered


def test_clients_that_leave_out_the_codes_are_understood() -> None:
    matches = compile_subscription(SubscriptionData(topic="t1", sub_string="TagA||TagB")).tags_filter
    assert matches is not None
    assert matches(java_hash("TagB"))
    assert not matches(java_hash("TagC"))
    for text in ("||", " "):
        nothing = compile_subscription(SubscriptionData(topic="t1", sub_string=text)).tags_filter
        assert nothing is not None
        assert not nothing(0)
    assert compile_subscription(SubscriptionData(topic="t1", sub_string=None)).tags_filter is None
    assert (
        compile_subscription(SubscriptionData(topic="t1", sub_string="x", class_filter_mode=True)).tags_filter
        is None
    )


def test_a_subscription_knows_its_words() -> None:
    subscription = parse_subscription("t1", "", None, now_ms=NOW_MS)
    assert subscription.says("*", "TAG")
    assert subscription.says(None, "")
    assert not subscription.says("TagA", "TAG")
    assert not subscription.says("*", "SQL92")
