"""Resources, entries, and which entry decides."""

import ipaddress
from itertools import permutations

import pytest

from skylark.auth.model import (
    Acl,
    AclEntry,
    Action,
    NeededAccess,
    Pattern,
    Resource,
    ResourceKind,
    group,
    merged,
    parse_actions,
    topic,
)

HERE = ipaddress.ip_address("10.1.2.3")
PUB = frozenset({Action.PUB})


def entry(resource: str, *, allow: bool, sources: tuple[str, ...] = (), actions: str = "Pub") -> AclEntry:
    parsed = Resource.parse(resource)
    assert parsed is not None
    return AclEntry(parsed, parse_actions(actions.split(",")), allow, sources)


@pytest.mark.parametrize(
    ("text", "kind", "name", "pattern"),
    [
        ("*", ResourceKind.ANY, "", Pattern.ANY),
        ("Topic:*", ResourceKind.TOPIC, "", Pattern.ANY),
        ("topic:order*", ResourceKind.TOPIC, "order", Pattern.PREFIX),
        ("Topic:a*b*", ResourceKind.TOPIC, "a", Pattern.PREFIX),
        ("GROUP:%RETRY%g", ResourceKind.GROUP, "g", Pattern.LITERAL),
        ("Topic:%DLQ%g", ResourceKind.TOPIC, "%DLQ%g", Pattern.LITERAL),
        ("Cluster:C", ResourceKind.CLUSTER, "C", Pattern.LITERAL),
    ],
)
def test_a_resource_is_parsed(text: str, kind: ResourceKind, name: str, pattern: Pattern) -> None:
    assert Resource.parse(text) == Resource(kind, name, pattern)


@pytest.mark.parametrize("text", ["", "orders", "Topic:", "Queue:q", "*:x"])
def test_other_texts_are_no_resources(text: str) -> None:
    assert Resource.parse(text) is None


@pytest.mark.parametrize("text", ["*", "Topic:*", "Topic:order*", "Group:g", "Cluster:C"])
def test_a_resource_is_written_as_it_was_read(text: str) -> None:
    assert str(Resource.parse(text)) == text


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        # Rows in which RocketMQ 5.3.3 lets the wrong entry win, and their opposites.
        (["-Topic:orders", "+Topic:ord*"], False),
        (["+Topic:orders", "-Topic:ord*"], True),
        (["-Topic:orders", "+Topic:*"], False),
        (["-Topic:ord*", "+Topic:*"], False),
        (["+Topic:orders", "-Topic:*"], True),
        (["+Topic:ord*", "-Topic:*"], True),
        (["-Topic:order*", "+Topic:o*"], False),
        (["+Topic:order*", "-Topic:o*"], True),
        (["-Topic:*", "+*"], False),
        (["+Topic:*", "-*"], True),
        (["+Topic:orders", "-Topic:ord*", "+Topic:*", "-*"], True),
    ],
)
def test_the_most_specific_entry_decides_in_any_stored_order(entries: list[str], allowed: bool) -> None:
    given = [entry(text[1:], allow=text[0] == "+") for text in entries]
    for order in permutations(given):
        deciding = Acl("u", tuple(order)).deciding(NeededAccess(topic("orders"), PUB), HERE)
        assert deciding is not None
        assert deciding.is_allowed == allowed


def test_deny_wins_at_equal_rank() -> None:
    both = (entry("Topic:orders", allow=True), entry("Topic:orders", allow=False))
    for order in (both, both[::-1]):
        deciding = Acl("u", order).deciding(NeededAccess(topic("orders"), PUB), HERE)
        assert deciding is not None
        assert not deciding.is_allowed


def test_default_entries_count_where_no_custom_one_applies() -> None:
    acl = Acl("u", (entry("Topic:a", allow=False),), (entry("Topic:*", allow=True),))
    first, other = (acl.deciding(NeededAccess(topic(name), PUB), HERE) for name in ("a", "b"))
    assert first is not None
    assert other is not None
    assert (first.is_allowed, other.is_allowed) == (False, True)


def test_what_no_entry_covers_is_undecided() -> None:
    acl = Acl("u", (entry("Topic:a", allow=True), entry("Group:g", allow=True, actions="Sub")))
    assert acl.deciding(NeededAccess(topic("b"), PUB), HERE) is None
    assert acl.deciding(NeededAccess(group("a"), PUB), HERE) is None
    assert acl.deciding(NeededAccess(topic("a"), frozenset({Action.SUB})), HERE) is None
    assert (
        acl.deciding(NeededAccess(group("%RETRY%g"), frozenset({Action.SUB, Action.GET})), HERE) is not None
    )


def test_all_covers_every_action() -> None:
    acl = Acl("u", (entry("*", allow=True, actions="All"),))
    assert all(acl.deciding(NeededAccess(topic("t"), frozenset({action})), HERE) for action in Action)


@pytest.mark.parametrize(
    ("sources", "applies"),
    [
        ((), True),
        (("10.1.2.3",), True),
        (("192.168.0.0/16", "10.0.0.0/8"), True),
        (("10.1.2.0/30",), True),
        (("10.1.2.4",), False),
        (("::1", "fe80::/10"), False),
    ],
)
def test_sources_are_compared_as_addresses(sources: tuple[str, ...], applies: bool) -> None:
    acl = Acl("u", (entry("Topic:t", allow=True, sources=sources),))
    assert (acl.deciding(NeededAccess(topic("t"), PUB), HERE) is not None) == applies


def test_a_source_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0"):
        entry("Topic:t", allow=True, sources=("10.0.0",))


def test_changed_entries_replace_those_of_the_same_resource() -> None:
    before = (entry("Topic:a", allow=True), entry("Topic:b", allow=True))
    after = merged(before, [entry("Topic:a", allow=False), entry("Topic:c*", allow=True)])
    assert [(str(each.resource), each.is_allowed) for each in after] == [
        ("Topic:a", False),
        ("Topic:b", True),
        ("Topic:c*", True),
    ]
