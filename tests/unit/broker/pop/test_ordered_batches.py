"""Ordered batches: blocking, acknowledgement, repeated delivery, and RocketMQ's file."""

from skylark.broker.pop.ordered_batches import OrderedAck, OrderedBatches

KEY = ("T", "G", 2)


def popped(
    ordered: OrderedBatches, offsets: list[int], *, attempt: str | None = None, now: int = 1000
) -> None:
    ordered.update(KEY, offsets, attempt_id=attempt, pop_time=now, invisible_time=60_000, now_ms=now)


def test_a_queue_is_blocked_until_its_batch_is_acknowledged_or_visible() -> None:
    ordered = OrderedBatches()
    assert ordered.free_at(KEY, None, 0) == 0
    popped(ordered, [10, 11, 13], attempt="a")
    assert ordered.free_at(KEY, "b", 0) == ordered.free_at(KEY, None, 0) == 61_000
    assert ordered.free_at(KEY, "a", 0) == 0
    assert ordered.acknowledge(KEY, 11, 1000) == 10
    assert ordered.acknowledge(KEY, 10, 1000) == 13
    ordered.change(KEY, 13, 1000, 5000)
    assert ordered.free_at(KEY, None, 0) == 5000
    assert ordered.acknowledge(KEY, 13, 1000) == 14
    assert ordered.free_at(KEY, None, 0) == 0


def test_acknowledgements_that_do_not_count() -> None:
    ordered = OrderedBatches()
    assert ordered.acknowledge(KEY, 5, 1) == 6
    popped(ordered, [10, 11])
    assert ordered.acknowledge(KEY, 12, 1000) is OrderedAck.ILLEGAL
    assert ordered.acknowledge(KEY, 10, 999) is OrderedAck.OTHER_BATCH


def test_deliveries_are_counted_by_message() -> None:
    ordered = OrderedBatches()
    popped(ordered, [11, 13])
    popped(ordered, [11, 13, 14], attempt="a", now=2000)
    batch = ordered.update(KEY, [13, 14, 15], attempt_id="b", pop_time=3000, invisible_time=1, now_ms=3000)
    assert batch.delivered == {13: 2, 14: 1}
    again = ordered.update(KEY, [13, 14], attempt_id="b", pop_time=4000, invisible_time=1, now_ms=4000)
    assert again.delivered == {13: 2, 14: 1}


def test_the_file_is_rocketmqs() -> None:
    text = (
        b'{"table":{"T@G":{2:{"a":"att1","cm":1,"i":60000,"l":1794845981871,"o":[10,1,3],'
        b'"ot":{11:1700000099000},"popTime":1700000000000}}}}'
    )
    ordered = OrderedBatches()
    ordered.load(text)
    assert ordered.snapshot()() == text
    assert ordered.free_at(KEY, None, 0) == 1700000099000
    assert ordered.acknowledge(KEY, 13, 1700000000000) == 11
    ordered.load(text.replace(b"{2:", b'{"2":').replace(b"{11:", b'{"11":'))
    assert len(ordered) == 1


def test_old_batches_and_those_of_unknown_queues_are_dropped() -> None:
    ordered = OrderedBatches()
    popped(ordered, [1])
    ordered.retire(lambda _: True, 1000 + 24 * 3600 * 1000)
    assert len(ordered) == 1
    ordered.retire(lambda _: True, 1001 + 24 * 3600 * 1000)
    assert len(ordered) == 0
    popped(ordered, [1])
    ordered.retire(lambda _: False, 1000)
    assert len(ordered) == 0
