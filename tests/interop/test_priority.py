"""Priority messages, which Apache RocketMQ has since 5.4: the same requests to either broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.requests.group import UpdateAndCreateSubscriptionGroup
from skylark.protocol.requests.topic import GetTopicConfig, UpdateAndCreateTopic
from tests.interop.servers import Servers, make_servers
from tests.support.broker import BrokerClient
from tests.support.names import fresh_name
from tests.support.popping import Popper

pytestmark = [
    pytest.mark.interop("java", "mvn"),
    pytest.mark.timeout(300),
    pytest.mark.nightly,  # tests/integration/test_broker_pop.py tries the same on ours
]

QUEUES = 4


@pytest.fixture(scope="module", params=["skylark", "apache-5.5.0"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    servers: Servers
    with make_servers(request.param, tmp_path_factory.mktemp("servers"), {"reviveQueueNum": 2}) as servers:
        yield servers.broker


async def prepare(client: BrokerClient, factor: str | None = None) -> Popper:
    """A topic with priorities and a group for it."""
    topic = fresh_name("priority")
    await client.ask(
        UpdateAndCreateTopic(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=QUEUES,
            write_queue_nums=QUEUES,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
            attributes="+message.type=PRIORITY",
        )
    )
    attributes = {} if factor is None else {"+priority.factor": factor}
    group = SubscriptionGroupConfig(group_name=f"G-{topic}", attributes=attributes)
    await client.ask(UpdateAndCreateSubscriptionGroup(group))
    return Popper(client, topic, group.group_name)


async def popped(popper: Popper, count: int) -> list[tuple[bytes, int]]:
    """Bodies and queues of so many messages, popped one by one."""
    found: list[tuple[bytes, int]] = []
    while len(found) < count:
        batch = await popper.pop(1, poll_ms=5000)
        found += [(each.body, each.message.queue_id) for each in batch.messages]
    return found


async def test_a_priority_is_the_number_of_a_queue_and_the_highest_comes_first(broker: str) -> None:
    async with BrokerClient(broker) as client:
        popper = await prepare(client, factor="100")
        config = await client.ask(GetTopicConfig(popper.topic))
        assert config.attributes == {"message.type": "PRIORITY"}
        for priority in (1, 3, 0, 2, 9):
            reply = await client.send(
                popper.topic, b"%d" % priority, properties={"_SYS_MSG_PRIORITY_": str(priority)}
            )
            assert reply.queue_id == min(priority, QUEUES - 1)
        assert await popped(popper, 5) == [(b"3", 3), (b"9", 3), (b"2", 2), (b"1", 1), (b"0", 0)]


async def test_a_message_in_order_has_no_priority(broker: str) -> None:
    async with BrokerClient(broker) as client:
        popper = await prepare(client)
        properties = {"_SYS_MSG_PRIORITY_": "3", "__SHARDINGKEY": "key"}
        assert (await client.send(popper.topic, b"a", 1, properties=properties)).queue_id == 1
        assert await popped(popper, 1) == [(b"a", 1)]
