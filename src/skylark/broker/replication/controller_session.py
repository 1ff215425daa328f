"""The controllers of a cluster as a broker sees them: who leads, and how to ask it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeVar

from skylark.errors import BrokerError, ConnectFailed, RemotingError, RocketMQError
from skylark.protocol.codes import ResponseCode
from skylark.protocol.request import Request
from skylark.protocol.requests.controller import GetControllerMetadata
from skylark.protocol.signature import Signer
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.tls_client import ClientTls

log = logging.getLogger(__name__)

T = TypeVar("T")


class ControllerSession:
    """Connections to all controllers. Loop thread."""

    def __init__(
        self,
        addresses: Sequence[str],
        timeout_s: float,
        signer: Signer | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.addresses = list(addresses)
        self.leader = ""
        """The address of the leader, empty while it is unknown."""
        self._timeout_s = timeout_s
        self._pool = ConnectionPool(signer=signer, tls=tls, connect_timeout_s=timeout_s)

    async def close(self) -> None:
        await self._pool.close()

    async def ask(self, request: Request[T]) -> T:
        """Ask the leader. Raises BrokerError, RemotingError; ConnectFailed if nothing was asked."""
        if not self.leader:
            await self.find_leader()
        address = self.leader
        try:
            return await self._pool.call(address, request, timeout_s=self._timeout_s)
        except BrokerError as error:
            if error.code == ResponseCode.CONTROLLER_NOT_LEADER:
                self._forget(address)
                raise ConnectFailed(address, "it is not the leader of the controllers any more") from None
            raise
        except RemotingError:
            self._forget(address)
            raise

    async def tell(self, address: str, request: Request[T]) -> T:
        """Ask one controller. Raises as `ask`."""
        return await self._pool.call(address, request, timeout_s=self._timeout_s)

    async def find_leader(self) -> None:
        """Ask all controllers who leads. Raises ConnectFailed if none knows."""
        answers = await asyncio.gather(*map(self._leader_of, self.addresses))
        # A leader knows best; the others may still name an old one.
        known = sorted((answer for answer in answers if answer is not None), reverse=True)
        if not known:
            raise ConnectFailed(";".join(self.addresses), "no controller knows a leader")
        if known[0][1] != self.leader:
            log.info("leader of the controllers address=%s", known[0][1])
        self.leader = known[0][1]

    async def _leader_of(self, address: str) -> tuple[bool, str] | None:
        """Return whether a controller leads, and which leader it names; None if it knows none."""
        try:
            found = await self._pool.call(address, GetControllerMetadata(), timeout_s=self._timeout_s)
        except RocketMQError as error:
            log.debug("controller does not answer address=%s reason=%s", address, error)
            return None
        if found.is_leader:
            return True, address
        return (False, found.controller_leader_address) if found.controller_leader_address else None

    def _forget(self, address: str) -> None:
        if self.leader == address:
            self.leader = ""
