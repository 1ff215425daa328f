"""Our servers for tests of clients: real ones, seen through proxies that keep what passes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skylark.broker.broker import Broker
from skylark.model.message import StoredMessage
from skylark.namesrv.server import NameServer
from skylark.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_body,
)
from skylark.protocol.requests.name_server import RegisterBroker
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.settings.client import ClientSettings
from tests.support.broker import BrokerClient, running_broker, running_name_server
from tests.support.recording_proxy import RecordingProxy, recording_proxy

QUEUES = 4
# A hundredth of the real ones.
QUICK = ClientSettings(route_refresh_interval_ms=300, heartbeat_interval_ms=300)


@dataclass
class Cluster:
    """A name server behind `names`, and brokers behind proxies, which is all that clients know of."""

    name_server: NameServer
    names: RecordingProxy
    brokers: dict[str, Broker] = field(default_factory=dict)
    proxies: dict[str, RecordingProxy] = field(default_factory=dict)
    # The name server forgets a broker whose connection is lost, so each has one for the test's time.
    registrars: dict[str, BrokerClient] = field(default_factory=dict)
    version: int = 0

    @property
    def namesrv(self) -> str:
        return self.names.address

    async def create_topic(self, topic: str, queues: int = QUEUES, *brokers: str, perm: int = 6) -> None:
        """Create (or change) a topic on these brokers, or all, and let the name server know."""
        for name in brokers or self.brokers:
            async with BrokerClient(self.brokers[name].address) as client:
                await client.ask(
                    UpdateAndCreateTopic(
                        topic=topic,
                        default_topic="TBW102",
                        read_queue_nums=queues,
                        write_queue_nums=queues,
                        perm=perm,
                        topic_filter_type="SINGLE_TAG",
                        order=False,
                    )
                )
            await self.register(name)

    async def register(self, name: str) -> None:
        """Tell the name server which topics a broker has, under the proxy's address."""
        self.version += 1
        topics = {
            each.topic_name: TopicConfig(
                each.topic_name, each.read_queue_nums, each.write_queue_nums, each.perm
            )
            for each in self.brokers[name].topics.all()
        }
        table = TopicConfigTable(topics, DataVersion(counter=self.version))
        request = RegisterBroker(
            broker_name=name,
            broker_addr=self.proxies[name].address,
            cluster_name="DefaultCluster",
            ha_server_addr="127.0.0.1:1",
            broker_id=0,
            body=encode_body(RegisterBrokerBody(table)),
        )
        await self.registrars[name].ask(request)

    async def stored(self, topic: str, broker: str = "broker-a", queues: int = QUEUES) -> list[StoredMessage]:
        """All messages of a topic on a broker, queue by queue."""
        async with BrokerClient(self.brokers[broker].address) as client:
            found = []
            for queue_id in range(queues):
                found += await client.pull_all(topic, queue_id)
            return found


@contextlib.asynccontextmanager
async def cluster(directory: Path, *names: str, **changes: Any) -> AsyncIterator[Cluster]:
    """Run brokers of these names (one without any); they do not know the name server, we register them."""
    async with contextlib.AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(running_name_server(directory))
        rig = Cluster(name_server, await stack.enter_async_context(recording_proxy(name_server.address)))
        for name in names or ("broker-a",):
            broker = await stack.enter_async_context(running_broker(directory / name, name=name, **changes))
            rig.brokers[name] = broker
            rig.proxies[name] = await stack.enter_async_context(recording_proxy(broker.address))
            client = BrokerClient(name_server.address)
            rig.registrars[name] = await stack.enter_async_context(client)
            await rig.register(name)
        yield rig
