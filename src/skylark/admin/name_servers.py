"""Name servers: their settings and key-value table. Changes go to all of them."""

from __future__ import annotations

from collections.abc import Mapping

from skylark.admin.server_calls import ServerCalls
from skylark.errors import BrokerError
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.name_server import (
    DeleteKvConfig,
    GetKvConfig,
    GetKvListByNamespace,
    GetNamesrvConfig,
    PutKvConfig,
    UpdateNamesrvConfig,
)
from skylark.settings.properties import read_properties, write_properties


class AsyncNameServers:
    """Part of `AsyncAdmin`."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._servers.name_servers

    async def config(self) -> dict[str, dict[str, str]]:
        """All settings by address, by RocketMQ's keys. Raises SomeServersFailed."""
        gathered = await self._servers.ask_each(self._servers.name_servers, GetNamesrvConfig())
        answers = gathered.complete("read name server settings")
        return {
            address: {key: value for key, value, _ in read_properties(text)}
            for address, text in answers.items()
        }

    async def update_config(self, changes: Mapping[str, str]) -> None:
        """Change settings, by RocketMQ's keys. Raises BrokerError 16 or SomeServersFailed."""
        request = UpdateNamesrvConfig(write_properties(changes).encode())
        gathered = await self._servers.ask_each(self._servers.name_servers, request)
        gathered.complete("update name server settings")

    async def get(self, namespace: str, key: str) -> str | None:
        """A value of the table, None if there is none."""
        try:
            return (await self._servers.ask_name_server(GetKvConfig(namespace, key))).value
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def table(self, namespace: str) -> Mapping[str, str]:
        """All values of a namespace; empty for an unknown one."""
        try:
            return (await self._servers.ask_name_server(GetKvListByNamespace(namespace))).table
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Raises SomeServersFailed."""
        request = PutKvConfig(namespace, key, value)
        gathered = await self._servers.ask_each(self._servers.name_servers, request)
        gathered.complete(f"set {namespace} {key}")

    async def delete(self, namespace: str, key: str) -> None:
        """Raises SomeServersFailed."""
        gathered = await self._servers.ask_each(self._servers.name_servers, DeleteKvConfig(namespace, key))
        gathered.complete(f"delete {namespace} {key}")
