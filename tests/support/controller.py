"""What tests of controllers share: brokers as a controller sees them, and replies as they came."""

from __future__ import annotations

import asyncio
from typing import Any

from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests.controller import (
    ApplyBrokerId,
    ElectMaster,
    GroupMaster,
    NotifyBrokerRoleChanged,
    RegisterBrokerToController,
)
from skylark.protocol.requests.name_server import BrokerHeartbeat
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.server import RemotingServer

C, N = "C1", "broker-a"


class FakeBroker:
    """A broker as a controller sees it: a connection of its own, and a port for notices."""

    def __init__(self, broker_id: int, controller: str) -> None:
        self.id = broker_id
        self.address = ""
        self.notices: list[GroupMaster] = []
        self.pool = ConnectionPool()
        self.controller = controller
        self._server = RemotingServer()

    async def __aenter__(self) -> FakeBroker:
        def noticed(_: Any, command: RemotingCommand) -> None:
            assert command.is_oneway
            self.notices.append(NotifyBrokerRoleChanged.from_command(command).master)

        port = await self._server.listen("127.0.0.1", 0, {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: noticed})
        self.address = f"127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()
        await self._server.close()

    async def die(self) -> None:
        await self.pool.close()

    async def ask(self, request: Request[Any]) -> Any:
        return await self.pool.call(self.controller, request, timeout_s=10)

    async def join(self) -> GroupMaster:
        await self.ask(ApplyBrokerId(C, N, self.id, f"{self.address};1"))
        result: GroupMaster = await self.ask(RegisterBrokerToController(C, N, self.id, self.address))
        await self.beat()
        return result

    async def beat(self, **fields: int) -> None:
        known = {"epoch": 0, "max_offset": 0, "heartbeat_timeout_ms": 10_000, **fields}
        await self.ask(BrokerHeartbeat(C, self.address, N, self.id, **known))

    async def elect(self, **fields: bool) -> GroupMaster:
        result: GroupMaster = await self.ask(ElectMaster(C, N, self.id, **fields))
        return result


async def raw_reply(pool: ConnectionPool, address: str, request: Request[Any]) -> RemotingCommand:
    """Return the reply itself, whatever its code."""
    connection = await pool.connection(address)
    waiter: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
    connection.write(*request.frame(connection.reserve(waiter)))
    async with asyncio.timeout(60):
        return await waiter
