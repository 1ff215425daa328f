"""Arrow batches of the pull consumer: the same messages, positions and commits as with `poll`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import skylark
from skylark.client.consumer.pull_consumer import AsyncPullConsumer
from skylark.errors import ClientClosed, SettingsError
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ClientSettings, ConsumeFrom, PullConsumerSettings
from skylark.testing import EmbeddedServers

QUEUES = 4
COUNT = 200
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers() as running:
        yield running


@pytest.fixture
def topic(servers: EmbeddedServers, request: pytest.FixtureRequest) -> str:
    """A topic with messages of tags A and B, keys, and JSON bodies."""
    name = servers.create_topic(request.node.name[:60].replace("[", "-").replace("]", ""), queues=QUEUES)
    with skylark.Producer("Arrow_Senders", namesrv=servers.namesrv) as producer:
        for number in range(COUNT):
            body = json.dumps({"number": number, "name": f"n{number}"}).encode()
            producer.send(
                skylark.Message(name, body, tags="A" if number % 2 else "B", keys=[f"k{number}"]),
                queue=MessageQueue(name, "broker-a", number % QUEUES),
            )
    return name


@contextlib.contextmanager
def consumer(
    servers: EmbeddedServers, topic: str, expression: str = "*", **changes: Any
) -> Iterator[skylark.PullConsumer]:
    settings = PullConsumerSettings(
        consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False, rebalance_gap_ms=10, **changes
    )
    with skylark.PullConsumer(
        f"G_{topic}", namesrv=servers.namesrv, settings=settings, client=ClientSettings(client_ip="127.0.0.1")
    ) as running:
        running.subscribe(topic, expression)
        yield running


def collect(source: skylark.PullConsumer, count: int, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        batch = source.poll_arrow(timeout_ms=WAIT_MS, **options)
        assert batch.num_rows, f"{len(rows)} of {count} rows came"
        rows += batch.to_pylist()
    return rows


def test_rows_equal_the_messages(servers: EmbeddedServers, topic: str) -> None:
    columns = [
        "topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "msgId", "uniqKey", "tags", "keys",
        "body", "properties", "reconsumeTimes", "sysFlag", "flag", "bornHost", "storeHost", "bodyText",
    ]  # fmt: skip
    with consumer(servers, topic) as source:
        rows = collect(source, COUNT, columns=columns)
        for queue in source.assignment():
            source.seek_to_begin(queue)
        messages: list[skylark.ReceivedMessage] = []
        while len(messages) < COUNT:  # the change of kind fetches again, from the positions
            messages += source.poll(WAIT_MS)
    by_place = {(row["queueId"], row["queueOffset"]): row for row in rows}
    assert len(by_place) == COUNT
    for message in messages:
        assert by_place[message.queue_id, message.queue_offset] == {
            "topic": message.topic, "brokerName": message.broker_name, "queueId": message.queue_id,
            "queueOffset": message.queue_offset, "physicalOffset": message.physical_offset,
            "msgId": message.offset_message_id, "uniqKey": message.unique_key, "tags": message.tags,
            "keys": " ".join(message.keys), "body": message.body,
            "properties": list(message.properties.items()), "reconsumeTimes": 0,
            "sysFlag": message.sys_flag, "flag": 0, "bornHost": message.born_host,
            "storeHost": message.store_host, "bodyText": message.body.decode(),
        }  # fmt: skip


def test_a_tag_filters_and_json_becomes_a_struct(servers: EmbeddedServers, topic: str) -> None:
    schema = pa.schema([("number", pa.int64()), ("name", pa.string())])
    with consumer(servers, topic, "A") as source:
        rows = collect(source, COUNT // 2, columns=["tags"], json=schema)
    assert {row["tags"] for row in rows} == {"A"}
    assert sorted(row["value"]["number"] for row in rows) == list(range(1, COUNT, 2))


def test_rows_in_parts_are_committed_up_to_what_was_handed_out(servers: EmbeddedServers, topic: str) -> None:
    """A batch of 50 in parts of 20: the commit is behind the rows that were returned."""
    queue = MessageQueue(topic, "broker-a", 0)
    with consumer(servers, topic) as source:
        source.unsubscribe(topic)
        source.assign([queue])
        parts = [source.poll_arrow(20, columns=["queueOffset"], timeout_ms=WAIT_MS) for _ in range(2)]
        assert [part["queueOffset"].to_pylist() for part in parts] == [
            list(range(20)),
            list(range(20, 40)),
        ]
        assert source.positions() == {queue: 40}
        source.commit()
        assert source.committed(queue) == 40
        source.seek(queue, 5)
        assert (
            source.poll_arrow(1, columns=["queueOffset"], timeout_ms=WAIT_MS)["queueOffset"][0].as_py() == 5
        )
        message = source.poll(WAIT_MS)[0]
        assert message.queue_offset == 6, "messages continue where rows ended"


def test_nothing_new_is_an_empty_batch_and_a_stop_ends_the_iteration(
    servers: EmbeddedServers, topic: str
) -> None:
    with consumer(servers, topic) as source:
        collect(source, COUNT)
        empty = source.poll_arrow(columns=["queueOffset", "body"], timeout_ms=10)
        assert (empty.num_rows, empty.schema.names) == (0, ["queueOffset", "body"])
        batches = source.arrow()
        for queue in source.assignment():
            source.seek_to_begin(queue)
        assert next(batches).num_rows
    assert list(batches) == []
    with pytest.raises(ClientClosed):
        source.poll_arrow()


async def test_batches_are_iterated_over_with_asyncio(servers: EmbeddedServers, topic: str) -> None:
    settings = PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, rebalance_gap_ms=10)
    numbers: list[str] = []
    async with (
        AsyncPullConsumer(f"G_{topic}", namesrv=servers.namesrv, settings=settings) as source,
        asyncio.timeout(60),
    ):
        source.subscribe(topic)
        async for batch in source.arrow(columns=["keys"]):
            numbers += batch["keys"].to_pylist()
            if len(numbers) == COUNT:
                break
    assert sorted(numbers) == sorted(f"k{number}" for number in range(COUNT))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": ["offset"]}, "unknown column 'offset'; choose from topic, brokerName"),
        ({"columns": ["body", "body"]}, "column 'body' is named twice"),
        ({"columns": ["value"]}, "unknown column 'value'"),
        ({"max_rows": 0}, "must be at least 1, not 0"),
    ],
)
def test_wrong_questions_are_refused(servers: EmbeddedServers, options: dict[str, Any], text: str) -> None:
    with consumer(servers, servers.create_topic("ArrowErrors")) as source:
        with pytest.raises(SettingsError, match=text):
            source.poll_arrow(**options)
