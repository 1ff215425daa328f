"""Copies users and ACLs from the master to a slave, and makes changes that reach a slave on its master."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from skylark.auth.administration import UserAdministration
from skylark.auth.store import AuthStore, acl_of, user_of
from skylark.broker.error_replies import system_error
from skylark.broker.replication.role import SlaveStatus
from skylark.errors import NoPermission
from skylark.protocol.request import Request
from skylark.protocol.requests.admin import AuthCreateUser, AuthListAcl, AuthListUser
from skylark.remoting.address import join_address, split_address
from skylark.remoting.connection_pool import ConnectionPool
from skylark.settings.auth import AuthSettings
from skylark.settings.fields import FAST_PORT_DISTANCE

TIMEOUT_S = 10.0


class UserSync:
    """Users and ACLs of a slave. Loop thread."""

    def __init__(
        self,
        store: AuthStore,
        settings: AuthSettings,
        status: SlaveStatus,
        pool: ConnectionPool,
        save: Callable[[], Awaitable[None]],
    ) -> None:
        """The requests of `pool` must be signed by a super user: only these see secrets."""
        self._store = store
        self._settings = settings
        self._status = status
        self._pool = pool
        self._save = save

    async def run(self, address: str) -> None:
        """Take over what the master has. Raises RemotingError, BrokerError."""
        users = await self._pool.call(address, AuthListUser(), timeout_s=TIMEOUT_S) or []
        acls = await self._pool.call(address, AuthListAcl(), timeout_s=TIMEOUT_S) or []
        if any(not user.password for user in users):
            raise system_error(
                f"{address} shows no secrets: innerClientAuthenticationCredentials must be a super user there"
            )
        try:
            changed = self._store.replace(map(user_of, users), map(acl_of, acls))
        except ValueError as error:
            raise system_error(f"{address} has an ACL that is not understood: {error}") from None
        if changed:
            await self._save()

    async def forward(self, request: Request[Any], operator: str) -> None:
        """Make a change on the master, unless it is made already, as mqadmin asks every broker.

        Raises BrokerError, also if the operator may not make it, and RemotingError.
        """
        if not self._status.master_address:
            raise system_error("a slave takes users from its master, which it has not found yet")
        host, port = split_address(self._status.master_address)
        address = join_address(host, port - FAST_PORT_DISTANCE)
        await self.run(address)
        if self._is_made(request, operator):
            return
        await self._pool.call(address, request, timeout_s=TIMEOUT_S)
        await self.run(address)

    def _is_made(self, request: Request[Any], operator: str) -> bool:
        """Try a change on a copy; return whether it changes nothing. Raises BrokerError."""
        trial = AuthStore()
        trial.replace(self._store.users(), self._store.acls())
        administration = UserAdministration(trial, self._settings)
        try:
            administration.change(request, operator)
        except NoPermission:
            body = request.body if isinstance(request, AuthCreateUser) else None
            known = self._store.user((request.username or "") if isinstance(request, AuthCreateUser) else "")
            if body is None or known is None:
                raise
            wanted = user_of(body)
            if (wanted.secret, wanted.is_super, wanted.is_enabled) != (
                known.secret,
                known.is_super,
                known.is_enabled,
            ):
                raise
            return True
        return not self._store.differs(trial)
