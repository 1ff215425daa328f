"""Admin: everything that servers can be asked and told, by what it is about. Asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from skylark.admin.brokers import AsyncBrokers
from skylark.admin.clients import AsyncClients
from skylark.admin.dead_letters import AsyncDeadLetters
from skylark.admin.groups import AsyncGroups
from skylark.admin.messages import AsyncMessages
from skylark.admin.name_servers import AsyncNameServers
from skylark.admin.offsets import AsyncOffsets
from skylark.admin.server_calls import ServerCalls
from skylark.admin.topics import AsyncTopics
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import ADMIN, BrokerHandler, join
from skylark.errors import AlreadyStarted
from skylark.settings.client import ClientSettings, name_server_list

ADMIN_GROUP = "admin_ext_group"
TIMEOUT_MS = 5000


class _AdminMembership:
    """The admin as a session knows it: it wants nothing, and brokers are told nothing of it."""

    kind = ADMIN
    group = ADMIN_GROUP

    def heartbeat_data(self) -> None:
        return None

    def topics(self) -> Iterable[str]:
        return ()

    def on_route_change(self, route: TopicRoute) -> None: ...

    def on_connected(self, address: str) -> None: ...

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {}


class AsyncAdmin:
    """Administers the servers that name servers know. For one event loop; `skylark.Admin` is for threads.

    >>> async with Admin(namesrv="127.0.0.1:9876") as admin:
    ...     await admin.topics.create("orders", queues=4)
    ...     progress = await admin.groups.progress("billing")
    """

    def __init__(
        self, *, namesrv: str = "", client: ClientSettings | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """`namesrv` is `a:9876;b:9876`; empty, it is the settings' or the variable NAMESRV_ADDR.

        `timeout_ms` is for each answer. Raises SettingsError.
        """
        self._settings = client or ClientSettings()
        self._servers = ServerCalls(name_server_list(namesrv, self._settings), timeout_ms)
        self._membership = _AdminMembership()
        self._state = "CREATE_JUST"
        self.brokers = AsyncBrokers(self._servers)
        self.topics = AsyncTopics(self._servers)
        self.groups = AsyncGroups(self._servers)
        self.clients = AsyncClients(self._servers)
        self.offsets = AsyncOffsets(self._servers)
        self.messages = AsyncMessages(self._servers, self.groups, self.clients)
        self.dead_letters = AsyncDeadLetters(self._servers, self.messages, self.offsets)
        self.name_servers = AsyncNameServers(self._servers)

    async def start(self) -> Self:
        """Nothing is connected before the first question. Raises AlreadyStarted, GroupInUse."""
        if self._state != "CREATE_JUST":
            raise AlreadyStarted("admin", self._state)
        self._servers.session = await join(self._membership, self._settings, self._servers.name_servers)
        self._state = "RUNNING"
        return self

    async def stop(self) -> None:
        """Close what was opened. Twice is once."""
        session, self._servers.session = self._servers.session, None
        if session is not None:
            self._state = "SHUTDOWN_ALREADY"
            await session.leave(self._membership)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
