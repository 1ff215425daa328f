"""Where queries start and end, in all the ways in which that can be said; and which topics are meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from skylark.errors import SettingsError
from skylark.pipelines.offsets import assigned, choose_topics, from_nested, parse_position, resolve, to_nested
from skylark.pipelines.wire import Queue

NOW_MS = 1_000_000
A0, A1, B0 = Queue("t", "a", 0), Queue("t", "a", 1), Queue("t", "b", 0)


class Known:
    """An origin with three queues that hold offsets 10 to 100; a group has read one of them."""

    def topics(self) -> list[str]:
        return ["orders", "order_items", "pay_1", "%RETRY%g", "%DLQ%g", "TBW102", "rmq_sys_x"]

    def min_offsets(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        return dict.fromkeys(queues, 10)

    def max_offsets(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        return dict.fromkeys(queues, 100)

    def offsets_by_time(self, queues: Sequence[Queue], timestamp_ms: int) -> dict[Queue, int]:
        return dict.fromkeys(queues, timestamp_ms // 100_000)

    def group_offset(self, group: str, queue: Queue) -> int | None:
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
        ("500000", [5, 5, 5]),
        ("1970-01-01T00:15", [9, 9, 9]),
        ('{"t": {"a": {"0": 50, "1": -1}}}', [50, 100, 10]),
        ('{"t": {"a": {"0": -2}}}', [10, 10, 10]),
    ],
)
def test_positions(text: str, offsets: list[int]) -> None:
    found = resolve(parse_position(text, NOW_MS), ORIGIN, [A0, A1, B0], "g")
    assert [found[queue] for queue in (A0, A1, B0)] == offsets


@pytest.mark.parametrize("text", ["soon", "group:never", "grouped", '{"t": 3}', "{", "-3 lines", ""])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_position(text, NOW_MS)


def test_offsets_of_an_unknown_queue_are_refused() -> None:
    position = parse_position('{"t": {"a": {"7": 1}}}', NOW_MS)
    with pytest.raises(SettingsError, match="there is no queue t/a/7"):
        resolve(position, ORIGIN, [A0], None)


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
    with pytest.raises(SettingsError, match="there is no topic 'order'; did you mean orders"):
        choose_topics("order", ORIGIN)


def test_queues_are_assigned() -> None:
    assert assigned('{"t": {"a": [1]}}', [A0, A1, B0]) == [A1]
    assert assigned('{"t": {"a": [], "b": [0]}}', [A0, A1, B0]) == [A0, A1, B0]
    with pytest.raises(SettingsError, match="not JSON"):
        assigned("{", [A0])
