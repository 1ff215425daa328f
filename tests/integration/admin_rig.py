"""A cluster of two brokers for tests of administration, with messages in it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skylark.admin.admin import AsyncAdmin
from skylark.broker.broker import Broker
from skylark.namesrv.server import NameServer
from skylark.protocol.requests.send import SendReply
from skylark.remoting.address import hold_ports, split_address
from tests.support.broker import BrokerClient, running_broker, running_name_server, until

TOPIC = "Orders"
GROUP = "Billing"
QUEUES = 2


def unique_key(number: int) -> str:
    return f"7F00000100002A9F000018B4AAC2{number:04X}"


@dataclass
class Rig:
    """The servers, an admin, and a plain client of each broker."""

    admin: AsyncAdmin
    name_server: NameServer
    brokers: list[Broker]
    clients: list[BrokerClient]
    ports: contextlib.ExitStack
    """Those that are kept from other tests' servers."""

    async def take_away(self, broker: int) -> None:
        """End a broker's connections and take no more; the name server does not know of it yet."""
        self.name_server._state.broker_peers.clear()
        address = self.brokers[broker].address
        await self.brokers[broker]._server.close()
        self.ports.enter_context(hold_ports(*split_address(address)))

    async def send(self, number: int, broker: int = 0, queue_id: int = 0, **properties: str) -> SendReply:
        """Send a message that is known by its number."""
        return await self.clients[broker].send(
            TOPIC,
            f"body {number}".encode(),
            queue_id,
            properties={"UNIQ_KEY": unique_key(number), "KEYS": f"key-{number} all", **properties},
        )


@contextlib.asynccontextmanager
async def running_rig(directory: Path, **changes: Any) -> AsyncIterator[Rig]:
    """Two brokers, `broker-a` and `broker-b`, both with the topic and the group."""
    async with contextlib.AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(running_name_server(directory))
        brokers = [
            await stack.enter_async_context(
                running_broker(directory / name, name=name, name_servers=name_server.address, **changes)
            )
            for name in ("broker-a", "broker-b")
        ]
        clients = [await stack.enter_async_context(BrokerClient(broker.address)) for broker in brokers]
        admin = await stack.enter_async_context(AsyncAdmin(namesrv=name_server.address))
        await until(lambda: all(broker.registration.registered for broker in brokers))
        await admin.topics.create(TOPIC, queues=QUEUES)
        await admin.groups.create(GROUP)
        yield Rig(admin, name_server, brokers, clients, stack.enter_context(contextlib.ExitStack()))
