"""The sender against Apache's own broker: batches, order, delays, and a topic that is not there yet."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.model.message import StoredMessage, encode_properties
from skylark.pipelines.row_sender import OutMessage, RowSender
from tests.pipelines.messages import stored
from tests.pipelines.streams import until
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

pytestmark = pytest.mark.interop("java", "mvn")


def send(cluster: PipelineCluster, topic: str, count: int, **changes: Any) -> None:
    sender = RowSender(cluster.wire, group="sink")
    for number in range(count):
        properties = {"TAGS": "t", "KEYS": f"k{number}", "UNIQ_KEY": f"{number:032X}"}
        values: dict[str, Any] = {"topic": topic, "body": b"%d" % number, "row": number, **changes}
        if sharding := changes.get("sharding_key"):
            values["sharding_key"] = f"{sharding}{number % 5}"
        sender.send(
            OutMessage(properties=encode_properties({**properties, **values.pop("more", {})}), **values)
        )
    sender.finish()


def all_of(cluster: PipelineCluster, topic: str, count: int) -> list[StoredMessage]:
    """The messages of a topic, when all can be seen: Apache's broker acknowledges before."""
    until(lambda: len(stored(cluster, topic)) >= count, f"{count} messages")
    return stored(cluster, topic)


def test_batches_arrive_whole(apache_cluster: PipelineCluster) -> None:
    topic = fresh_name("sink")
    apache_cluster.create_topic(topic, 4)
    send(apache_cluster, topic, 2000)
    messages = all_of(apache_cluster, topic, 2000)
    assert sorted(int(message.body) for message in messages) == list(range(2000))
    for message in messages:
        assert message.unique_key == f"{int(message.body):032X}"
        assert message.keys == [f"k{int(message.body)}"]


@pytest.mark.nightly
def test_order_is_kept(apache_cluster: PipelineCluster) -> None:
    topic = fresh_name("ordered")
    apache_cluster.create_topic(topic, 4)
    send(apache_cluster, topic, 3000, sharding_key="customer-")
    by_key: dict[int, list[int]] = {}
    for message in all_of(apache_cluster, topic, 3000):
        by_key.setdefault(int(message.body) % 5, []).append(int(message.body))
    assert sum(map(len, by_key.values())) == 3000
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


@pytest.mark.nightly
def test_a_delayed_message_and_a_topic_that_the_broker_makes(apache_cluster: PipelineCluster) -> None:
    topic = fresh_name("made_by_itself")
    send(apache_cluster, topic, 1, more={"DELAY": "1"}, is_single=True)
    until(lambda: [message.body for message in stored(apache_cluster, topic)] == [b"0"], "the message")
