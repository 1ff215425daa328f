"""RoleNotices: tells brokers who their master is (1008), as soon as that is decided."""

import asyncio
import logging
from collections.abc import Iterable

from skylark.errors import RocketMQError
from skylark.protocol.requests.controller import GroupMaster, NotifyBrokerRoleChanged
from skylark.remoting.connection_pool import CONNECT_TIMEOUT_S, ConnectionPool
from skylark.tasks import Tasks

log = logging.getLogger(__name__)


class RoleNotices:
    """Sends notices, one at a time to each address; a newer one replaces one that is still being sent.

    A lost notice is no loss: brokers also ask.
    """

    def __init__(self, pool: ConnectionPool, tasks: Tasks) -> None:
        self._pool = pool
        self._tasks = tasks
        self._sending: dict[str, asyncio.Task[None]] = {}

    def send(self, addresses: Iterable[str], master: GroupMaster) -> None:
        """Start to send. Loop thread."""
        for address in addresses:
            before = self._sending.pop(address, None)
            if before is not None:
                before.cancel()
            task = self._tasks.spawn(self._send(address, master), f"notify {address}")
            self._sending[address] = task
            task.add_done_callback(lambda done, address=address: self._done(address, done))  # type: ignore[misc]

    async def _send(self, address: str, master: GroupMaster) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._pool.notify(address, NotifyBrokerRoleChanged.of(master))
        except (RocketMQError, OSError) as error:
            log.warning("broker not notified address=%s reason=%s", address, error)

    def _done(self, address: str, task: asyncio.Task[None]) -> None:
        if self._sending.get(address) is task:
            del self._sending[address]
