"""Tables sent by `send_arrow`: every row is stored once, where the result says, or named as failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import skylark
from skylark import aio
from skylark.client.producer.send_hooks import SendContext
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ClientSettings, ProducerSettings
from skylark.testing import EmbeddedServers

QUEUES = 4
COUNT = 5000


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers(store={"message_bytes_max": 1 << 20}) as running:
        yield running


@pytest.fixture
def topic(servers: EmbeddedServers, request: pytest.FixtureRequest) -> str:
    return servers.create_topic(request.node.name[:60], queues=QUEUES)


def table(count: int = COUNT) -> pa.Table:
    numbers = range(count)
    return pa.table(
        {
            "value": [f"body-{number}" for number in numbers],
            "id": list(numbers),
            "kind": ["even" if number % 2 == 0 else None for number in numbers],
            "customer": [f"c{number % 7}" for number in numbers],
        }
    )


def stored(servers: EmbeddedServers, topic: str) -> dict[tuple[int, int], skylark.ReceivedMessage]:
    """All messages of a topic by queue and offset."""
    found = {}
    with skylark.PullConsumer("Readers", namesrv=servers.namesrv) as consumer:
        for queue_id in range(QUEUES):
            queue, queue_offset = MessageQueue(topic, "broker-a", queue_id), 0
            while (result := consumer.pull(queue, "*", queue_offset, 1024)).messages:
                queue_offset = result.next_offset
                found.update({(queue_id, each.queue_offset): each for each in result.messages})
    return found


def check(
    sent: skylark.SentRows, data: pa.Table, found: dict[tuple[int, int], skylark.ReceivedMessage]
) -> None:
    """Every row is where the result says, and nothing else is stored."""
    bodies = data["value"].to_pylist()
    rows = [row for each in sent.ranges for row in each.rows]
    assert sorted(rows) == list(range(len(bodies)))
    assert len(found) == len(bodies) == len(sent)
    for each in sent.ranges:
        assert each.queue is not None
        for queue_offset, row in enumerate(each.rows, each.queue_offset):
            assert found[each.queue.queue_id, queue_offset].body.decode() == bodies[row]


def test_every_row_is_a_message_where_the_result_says(servers: EmbeddedServers, topic: str) -> None:
    data = table()
    with skylark.Producer("Tables", namesrv=servers.namesrv) as producer:
        sent = producer.send_arrow(data, topic, body="value", keys="id", tags="kind", properties=["customer"])
    found = stored(servers, topic)
    check(sent, data, found)
    assert sent.is_ok and not sent.failed
    assert {each.queue.queue_id for each in sent.ranges if each.queue} == set(range(QUEUES)), "queues in turn"
    third = next(message for message in found.values() if message.body == b"body-3")
    assert (third.keys, third.tags, third.properties["customer"]) == (["3"], None, "c3")
    assert len({message.unique_key for message in found.values()}) == COUNT


def test_rows_of_a_sharding_key_keep_their_order_in_the_queue_of_single_sends(
    servers: EmbeddedServers, topic: str
) -> None:
    data = table()
    with skylark.Producer("Tables", namesrv=servers.namesrv) as producer:
        sent = producer.send_arrow(data, topic, body="value", sharding_key="customer")
        check(sent, data, stored(servers, topic))
        single = producer.send(skylark.Message(topic, b"one more", sharding_key="c3"))
    rows = sorted(
        (each.queue_offset, row) for each in sent.ranges for row in each.rows if each.queue == single.queue
    )
    assert any(row % 7 == 3 for _, row in rows)
    ordered = [
        row
        for each in sorted(sent.ranges, key=lambda each: each.queue_offset)
        if each.queue == single.queue
        for row in each.rows
    ]
    assert ordered == sorted(ordered)


def test_a_frame_of_pandas_goes_in_order_to_one_queue_with_a_namespace(servers: EmbeddedServers) -> None:
    wire_topic = servers.create_topic("shop%frames", queues=QUEUES)
    queue = MessageQueue("frames", "broker-a", 2)
    frame = pd.DataFrame({"value": [f"row {number}" for number in range(3000)]})
    client = ClientSettings(namespace="shop")
    with skylark.Producer("Tables", namesrv=servers.namesrv, client=client) as producer:
        sent = producer.send_arrow(frame, "frames", body="value", queue=queue)
    assert {each.queue for each in sent.ranges} == {queue}
    found = stored(servers, wire_topic)
    check(sent, pa.Table.from_pandas(frame), found)
    assert [found[2, number].body for number in range(3000)] == [b"row %d" % number for number in range(3000)]


async def test_with_asyncio_and_hooks_that_see_the_messages(servers: EmbeddedServers, topic: str) -> None:
    seen: list[skylark.Message] = []

    class Hook(skylark.SendHook):
        def before(self, context: SendContext) -> None:
            seen.extend(context.messages)
            context.properties["origin"] = "hook"

    data = table(100)
    async with aio.Producer("Tables", namesrv=servers.namesrv) as producer:
        producer.add_hook(Hook())
        sent = await producer.send_arrow(data.to_batches()[0], topic, body="value", keys="id", tags="kind")
        empty = await producer.send_arrow(data.slice(0, 0), topic, body="value")
    assert (len(empty), empty.is_ok) == (0, True)
    found = stored(servers, topic)
    check(sent, data, found)
    assert {message.properties["origin"] for message in found.values()} == {"hook"}
    assert seen[2] == skylark.Message(topic, b"body-2", "even", ["2"])


def test_ranges_that_failed_are_named_and_the_others_are_stored(servers: EmbeddedServers, topic: str) -> None:
    """One row exceeds the broker's limit, which the client does not know."""
    bodies = [b"small"] * 1024 + [b"x" * (2 << 20)] + [b"small"] * 10
    with skylark.Producer("Tables", namesrv=servers.namesrv) as producer:
        with pytest.raises(
            skylark.RowsFailed, match=r"1 of 1035 rows were not acknowledged.*rows 1024-1024"
        ) as error:
            producer.send_arrow(pa.table({"body": bodies}), topic)
        sent = error.value.result
        assert [each.rows for each in sent.failed] == [range(1024, 1025)]
        assert isinstance(sent.failed[0].error, skylark.SendFailed) and not sent.is_ok
        assert len(stored(servers, topic)) == 1034
        unknown = MessageQueue(topic, "nobody", 0)
        with pytest.raises(skylark.RowsFailed, match="nobody") as error:
            producer.send_arrow(table(2000), topic, body="value", queue=unknown)
        failed = error.value.result.failed
        assert [each.rows for each in failed] == [range(1024), range(1024, 2000)]
        assert "not sent, to keep the order" in str(failed[1].error)
        with pytest.raises(skylark.BadMessage, match="row 7"):
            producer.send_arrow(pa.table({"body": [b"x"] * 7 + [None]}), topic)
    assert len(stored(servers, topic)) == 1034, "nothing of a table with a bad row is sent"


def test_a_topic_that_does_not_exist(servers: EmbeddedServers) -> None:
    settings: Any = ProducerSettings(send_timeout_ms=10_000)
    with skylark.Producer("Tables", namesrv=servers.namesrv, settings=settings) as producer:
        sent = producer.send_arrow(table(10), "made-by-the-first-row", body="value")
    assert sent.is_ok
