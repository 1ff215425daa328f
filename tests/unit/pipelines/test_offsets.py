"""Where queries start and end, in all the ways in which that can be said; and which topics are meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from skylark.errors import NoPermission, SettingsError
from skylark.pipelines.offsets import (
    assigned,
    check_queues,
    choose_topics,
    from_nested,
    parse_position,
    resolve,
    to_nested,
)
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode

NOW_MS = 1_000_000
A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)


class Known:
    """An origin with three queues that hold offsets 10 to 100; a group has read one of them."""

    def topics(self) -> list[str]:
        return ["orders", "order_items", "pay_1", "%RETRY%g", "%DLQ%g", "TBW102", "rmq_sys_x"]

    def min_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, 10)

    def max_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, 100)

    def offsets_by_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, timestamp_ms // 100_000)

    def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        return {A0: 42, A1: 3}.get(queue)


ORIGIN: Any = Known()


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("earliest", [10, 10, 10]),
        ("latest", [100, 100, 100]),
        ("group:earliest", [42, 10, 10]),
        ("group", [42, 10, 100]),
        ("group:latest", [42, 10, 100]),
        ("-1000 rows", [10, 10, 10]),
        ("-7 rows", [93, 93, 93]),
        ("-5m", [7, 7, 7]),
        ("500000000", [5000, 5000, 5000]),
        ("1970-01-01T00:15Z", [9, 9, 9]),
        ('{"t": {"a": {"0": 50, "1": -1}}}', [50, 100, 10]),
        ('{"t": {"a": {"0": -2}}}', [10, 10, 10]),
    ],
)
def test_positions(text: str, offsets: list[int]) -> None:
    found = resolve(parse_position(text, NOW_MS), ORIGIN, [A0, A1, B0], "g")
    assert [found[queue] for queue in (A0, A1, B0)] == offsets


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("latest", [100, 100, 100]),
        ("-7 rows", [93, 93, 93]),
        ('{"t": {"a": {"0": 50}}}', [50, 100, 100]),  # of the others everything is read
        ('{"t": {"a": {"0": -1}}}', [100, 100, 100]),
    ],
)
def test_ends(text: str, offsets: list[int]) -> None:
    found = resolve(parse_position(text, NOW_MS, is_end=True), ORIGIN, [A0, A1, B0], "g")
    assert [found[queue] for queue in (A0, A1, B0)] == offsets


@pytest.mark.parametrize("text", ["earliest", "group", "group:latest", '{"t": {"a": {"0": -2}}}'])
def test_what_can_only_be_a_beginning_is_no_end(text: str) -> None:
    parse_position(text, NOW_MS)
    with pytest.raises(ValueError, match="invalid end"):
        parse_position(text, NOW_MS, is_end=True)


@pytest.mark.parametrize(
    "text", ["soon", "group:never", "grouped", '{"t": 3}', "{", "-3 lines", "", '{"t": {"a": {"0": -7}}}']
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_position(text, NOW_MS)


def test_offsets_of_an_unknown_queue_are_refused() -> None:
    position = parse_position('{"t": {"a": {"7": 1}}}', NOW_MS)
    with pytest.raises(ValueError, match="no such queue: t/a/7"):
        check_queues(position, [A0])


def test_offsets_survive_a_checkpoint_and_are_sorted() -> None:
    nested = to_nested({B0: 3, A1: 2, A0: 1})
    assert str(nested) == "{'t': {'a': {'0': 1, '1': 2}, 'b': {'0': 3}}}"
    assert from_nested(nested) == {A0: 1, A1: 2, B0: 3}


@pytest.mark.parametrize(
    ("wanted", "topics"),
    [
        ("orders", ["orders"]),
        ("orders, pay_1", ["orders", "pay_1"]),
        ("order.*,pay_.*", ["order_items", "orders", "pay_1"]),
        (".*", ["order_items", "orders", "pay_1"]),
        ("%DLQ%.*", ["%DLQ%g"]),
        ("none.*", []),
    ],
)
def test_topics(wanted: str, topics: list[str]) -> None:
    assert choose_topics(wanted, ORIGIN) == topics


def test_an_unknown_topic_is_named_with_what_there_is() -> None:
    with pytest.raises(SettingsError, match="unknown topic 'order'; did you mean orders"):
        choose_topics("order", ORIGIN)


def test_names_of_the_brokers_own_are_not_proposed() -> None:
    with pytest.raises(SettingsError, match=r"existing topics: order_items, orders, pay_1$"):
        choose_topics("nothing_like_it", ORIGIN)


def test_names_need_no_right_to_list_topics() -> None:
    class Guarded(Known):
        def topics(self) -> list[str]:
            raise NoPermission(ResponseCode.NO_PERMISSION, "no matched policies")

    guarded: Any = Guarded()
    assert choose_topics("pay_1, orders", guarded) == ["orders", "pay_1"]
    with pytest.raises(NoPermission):
        choose_topics("orders,pay_.*", guarded)


def is_read(topic: str) -> bool:
    return topic == "t"


def test_queues_are_assigned() -> None:
    queues = [A0, A1, B0]
    assert assigned('{"t": {"a": [1]}}', queues, is_read) == [A1]
    assert assigned('{"t": {"a": [], "b": [0]}}', queues, is_read) == queues
    assert assigned('{"t": {"a": [0]}, "left_out": {"a": [0]}}', queues, is_read) == [A0]
    with pytest.raises(SettingsError, match="invalid JSON"):
        assigned("{", [A0], is_read)


@pytest.mark.parametrize(
    ("assign", "name"),
    [('{"t": {"a": [0, 7]}}', "t/a/7"), ('{"t": {"z": []}}', "t/z"), ('{"t": {"z": [3]}}', "t/z/3")],
)
def test_a_queue_that_is_not_there_cannot_be_assigned(assign: str, name: str) -> None:
    with pytest.raises(SettingsError, match=f"no such queue {name}; existing queues: t/a/0, t/a/1, t/b/0"):
        assigned(assign, [A0, A1, B0], is_read)


def test_dead_letters_that_are_not_there_are_named_with_those_that_are() -> None:
    with pytest.raises(SettingsError, match=r"unknown topic '%DLQ%other'.* existing topics: %DLQ%g$"):
        choose_topics("%DLQ%other", ORIGIN)
