"""Users and ACLs: `admin.users` and `admin.acls`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from skylark.admin.results import AclRule, UserAccount
from skylark.admin.server_calls import ServerCalls
from skylark.errors import ClientError
from skylark.protocol.bodies import AclInfo, Policy, PolicyEntry, UserInfo
from skylark.protocol.codes import ResponseCode
from skylark.protocol.request import Request
from skylark.protocol.requests.admin import (
    AuthCreateAcl,
    AuthCreateUser,
    AuthDeleteAcl,
    AuthDeleteUser,
    AuthGetAcl,
    AuthGetUser,
    AuthListAcl,
    AuthListUser,
    AuthUpdateAcl,
    AuthUpdateUser,
)

NOT_SERVED = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED,)
"""A name server without users: those of RocketMQ have none."""


class UserServers:
    """Sends changes of users and ACLs to all servers that have them: brokers, slaves, name servers."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    async def change(
        self, request: Request[None], operation: str, *, cluster: str | None, broker: str | None
    ) -> None:
        """Ask the masters, then the slaves, then the name servers. Raises BrokerError, SomeServersFailed."""
        masters = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        (await self._servers.ask_each(masters, request)).complete(operation)
        if broker is not None:
            return
        nodes = await self._servers.nodes(cluster=cluster)
        slaves = [node.address for node in nodes if not node.is_master and node.address not in masters]
        (await self._servers.ask_each(slaves, request)).complete(operation)
        name_servers = self._servers.name_servers
        (await self._servers.ask_each(name_servers, request, absent_codes=NOT_SERVED)).complete(operation)

    async def read(self, request: Request[Any], *, cluster: str | None, broker: str | None) -> Any:
        """Ask one broker. Raises BrokerError, RemotingError, ClientError."""
        targets = await self._servers.targets(cluster=cluster, broker=broker)
        if not targets:
            raise ClientError("no broker is registered")
        return await self._servers.ask(targets[0], request)


class AsyncUsers:
    """Part of `AsyncAdmin`. Without `broker`, changes reach all servers, and one broker is read."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = UserServers(servers)

    async def create(
        self,
        name: str,
        secret: str,
        *,
        is_super: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Raises BrokerError 16 if the user exists, SomeServersFailed."""
        info = UserInfo(name, secret, _kind(is_super), None)
        request = AuthCreateUser(name, body=info)
        await self._servers.change(request, f"create user {name}", cluster=cluster, broker=broker)

    async def update(
        self,
        name: str,
        *,
        secret: str | None = None,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Change what is given. Raises BrokerError 16 if there is no such user, SomeServersFailed."""
        status = None if is_enabled is None else "enable" if is_enabled else "disable"
        info = UserInfo(name, secret, None if is_super is None else _kind(is_super), status)
        request = AuthUpdateUser(name, body=info)
        await self._servers.change(request, f"update user {name}", cluster=cluster, broker=broker)

    async def delete(self, name: str, *, cluster: str | None = None, broker: str | None = None) -> None:
        """Delete a user with its ACL; does nothing if there is no such user. Raises SomeServersFailed."""
        await self._servers.change(
            AuthDeleteUser(name), f"delete user {name}", cluster=cluster, broker=broker
        )

    async def get(
        self, name: str, *, cluster: str | None = None, broker: str | None = None
    ) -> UserAccount | None:
        """Return a user, with the secret if a super user asks."""
        found: UserInfo | None = await self._servers.read(AuthGetUser(name), cluster=cluster, broker=broker)
        return None if found is None else UserAccount.read(found)

    async def list(
        self, name_part: str = "", *, cluster: str | None = None, broker: str | None = None
    ) -> list[UserAccount]:
        """Return the users whose name contains a text, with secrets if a super user asks."""
        request = AuthListUser(name_part or None)
        found: list[UserInfo] | None = await self._servers.read(request, cluster=cluster, broker=broker)
        return [UserAccount.read(info) for info in found or []]


class AsyncAcls:
    """Part of `AsyncAdmin`. Without `broker`, changes reach all servers, and one broker is read."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = UserServers(servers)

    async def create(
        self,
        user: str,
        rules: Iterable[AclRule],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Add rules; those of the same resource are replaced. Raises BrokerError 16, SomeServersFailed."""
        request = AuthCreateAcl(_subject(user), body=_acl_info(user, rules))
        await self._servers.change(request, f"create ACL of {user}", cluster=cluster, broker=broker)

    async def update(
        self,
        user: str,
        rules: Iterable[AclRule],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Replace the rules of the same resources. Raises BrokerError 16, SomeServersFailed."""
        request = AuthUpdateAcl(_subject(user), body=_acl_info(user, rules))
        await self._servers.change(request, f"update ACL of {user}", cluster=cluster, broker=broker)

    async def delete(
        self, user: str, resource: str = "", *, cluster: str | None = None, broker: str | None = None
    ) -> None:
        """Delete the rule of a resource, or all. Raises BrokerError 16 without one, SomeServersFailed."""
        request = AuthDeleteAcl(_subject(user), resource=resource or None)
        await self._servers.change(request, f"delete ACL of {user}", cluster=cluster, broker=broker)

    async def get(self, user: str, *, cluster: str | None = None, broker: str | None = None) -> list[AclRule]:
        """Return the rules of a user."""
        request = AuthGetAcl(_subject(user))
        found: AclInfo | None = await self._servers.read(request, cluster=cluster, broker=broker)
        return [] if found is None else AclRule.read(found)

    async def list(
        self,
        user_part: str = "",
        resource_part: str = "",
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Mapping[str, list[AclRule]]:
        """Return rules by user; only of users and resources that contain a text."""
        request = AuthListAcl(user_part or None, resource_part or None)
        found: list[AclInfo] | None = await self._servers.read(request, cluster=cluster, broker=broker)
        return {(info.subject or "").partition(":")[2]: AclRule.read(info) for info in found or []}


def _acl_info(user: str, rules: Iterable[AclRule]) -> AclInfo:
    by_policy: dict[str, list[PolicyEntry]] = {}
    for rule in rules:
        by_policy.setdefault(rule.policy, []).append(rule.to_entry())
    return AclInfo(_subject(user), [Policy(policy, entries) for policy, entries in by_policy.items()])


def _kind(is_super: bool) -> str:
    return "Super" if is_super else "Normal"


def _subject(user: str) -> str:
    return f"User:{user}"
