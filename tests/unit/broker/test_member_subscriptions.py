"""Whether the members of a group subscribe the same."""

import pytest

from skylark.broker.member_subscriptions import TEXT_CHARS_MAX, MemberSubscriptions
from skylark.protocol.bodies import SubscriptionData, SubscriptionKind


def wanted(topic: str, expression: str | None = "*", expression_type: str | None = "TAG") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type=expression_type)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([wanted("T", "a || b")], [wanted("T", "b||a || b")]),
        ([wanted("T", "*")], [wanted("T", None, None)]),
        ([wanted("T"), wanted("%RETRY%G")], [wanted("T")]),
        ([wanted("T"), wanted("U")], [wanted("U"), wanted("T")]),
        ([wanted("T", "||")], [wanted("T", "||")]),
        ([wanted("T")], []),
        ([wanted("T")], [wanted("%RETRY%G")]),
    ],
    ids=["order of tags", "all", "retry topic", "order of topics", "invalid", "none", "retries alone"],
)
def test_the_same_in_other_words_is_no_difference(
    one: list[SubscriptionData], other: list[SubscriptionData]
) -> None:
    members = MemberSubscriptions()
    members.set("A", "a", one)
    members.set("B", "b", other)
    assert members.count == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([wanted("T", "a")], [wanted("T", "b")]),
        ([wanted("T", "a")], [wanted("T")]),
        ([wanted("T")], [wanted("T"), wanted("U")]),
        ([wanted("T", "a > 1", "SQL92")], [wanted("T", "a > 2", "SQL92")]),
        ([wanted("T", "a", "SQL92")], [wanted("T", "a")]),
    ],
    ids=["tags", "tag or all", "topics", "sql", "kind of expression"],
)
def test_different_subscriptions_are_named_with_their_members(
    one: list[SubscriptionData], other: list[SubscriptionData]
) -> None:
    members = MemberSubscriptions()
    members.set("A", "a", other)
    members.set("B", "b", one)
    members.set("C", "c", one)
    assert [kind.members for kind in members.kinds()] == [["b", "c"], ["a"]]
    members.set("A", "a", one)
    assert members.count == 1, "it has changed its mind"
    members.set("A", "a", other)
    members.remove("A")
    assert [kind.members for kind in members.kinds()] == [["b", "c"]]
    for channel in ("B", "C", "nobody"):
        members.remove(channel)
    assert members.count == 0


def test_a_description_has_a_limit() -> None:
    members = MemberSubscriptions()
    for number in range(5):
        members.set(number, f"c{number}", [wanted("T", "a"), wanted("U")])
    members.set("other", "d", [wanted("T", "a > 1", "SQL92")])
    assert members.describe() == "T: a, U: * (c0, c1, c2 and 2 more); T: SQL92 a > 1 (d)"
    assert members.kinds()[0] == SubscriptionKind({"T": "a", "U": "*"}, [f"c{number}" for number in range(5)])
    members.set("long", "e", [wanted("T", "x" * 5000)])
    assert len(members.describe()) == TEXT_CHARS_MAX
    assert members.describe().endswith("...")
