"""The lite commands of Apache's admin tool 5.5.0, with our broker and with Apache's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.requests.group import UpdateAndCreateSubscriptionGroup
from tests.interop.grpc_servers import LIGHT_QUEUES
from tests.interop.mqadmin import MqAdmin, admin_classpath
from tests.interop.servers import Servers, create_topic, make_servers
from tests.support.broker import BrokerClient
from tests.support.lite_consumer import GROUP, PARENT, LiteConsumer

pytestmark = [
    pytest.mark.interop("java", "javac", "mvn"),
    pytest.mark.timeout(600),
    pytest.mark.nightly,  # tests/integration/test_broker_lite.py tries the same requests on ours
]

COMMANDS = (
    f"getParentTopicInfo -p {PARENT}",
    f"getLiteTopicInfo -p {PARENT} -l one -s",
    f"getLiteClientInfo -p {PARENT} -g {GROUP} -c c1 -s",
    f"getLiteGroupInfo -p {PARENT} -g {GROUP}",
    f"getLiteGroupInfo -p {PARENT} -g {GROUP} -l one",
    f"triggerLiteDispatch -p {PARENT} -g {GROUP}",
)
EXPECTED = {
    "getBrokerLiteInfo": ('Topic Meta: {"parent":60}', f'Group Meta: {{"parent":["{GROUP}"]}}'),
    "getParentTopicInfo": (rf"60 +1 +1 +\[{GROUP}\]",),
    "getLiteTopicInfo": (r" 0 +3 +", "c1"),
    "getLiteClientInfo": (r" 2 +", r"%LMQ%\$parent\$one", r"%LMQ%\$parent\$two"),
    "getLiteGroupInfo": ("Total Lag Count: 2", r"one +2 "),
    "triggerLiteDispatch": ("dispatched",),
}
OF_ONE_TOPIC = r" 3 +1 +2 "


@pytest.fixture(params=["skylark", "apache-5.5.0"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    settings = {} if request.param == "skylark" else LIGHT_QUEUES
    with make_servers(request.param, tmp_path / "servers", settings) as running:
        yield running


async def test_lite_commands_show_topics_clients_and_lag(servers: Servers, tmp_path: Path) -> None:
    create_topic(servers.broker, PARENT, 2, attributes="+message.type=LITE,+lite.topic.expiration=60")
    async with BrokerClient(servers.broker) as client:
        config = SubscriptionGroupConfig(group_name=GROUP, attributes={"+lite.bind.topic": PARENT})
        await client.ask(UpdateAndCreateSubscriptionGroup(config))
        consumer = LiteConsumer(client)
        await consumer.subscribe("one", "two")
        for body in (b"a", b"b", b"c"):
            await client.send(PARENT, body, properties={"__LITE_TOPIC": "one"})
        first: list[str] = []
        while not first:
            for popped in await consumer.pop(count=1, poll_ms=1000):
                first.append(popped.text)
                await popped.acknowledge()
        assert first == ["a"]
        admin = MqAdmin(admin_classpath("5.5.0"), servers.name_server, tmp_path)
        lines = [f"getBrokerLiteInfo -b {servers.broker} -d", *COMMANDS]
        shown = admin.run(*(line.split() for line in lines))
    for line, text in zip(lines, shown, strict=True):
        patterns = (OF_ONE_TOPIC,) if line.endswith("-l one") else EXPECTED[line.split()[0]]
        for pattern in patterns:
            found = pattern in text or re.search(pattern, text) is not None
            assert found, f"{line}: no {pattern!r} in\n{text}"
