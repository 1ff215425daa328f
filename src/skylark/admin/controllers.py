"""Controllers: who leads them, which brokers they elected, and administration of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skylark.admin.server_calls import ServerCalls
from skylark.errors import BrokerError, ClientError
from skylark.protocol.bodies import ReplicasInfo
from skylark.protocol.requests.controller import (
    CleanBrokerData,
    ControllerMetadata,
    ElectMaster,
    GetControllerConfig,
    GetControllerMetadata,
    GetSyncStateData,
    GroupMaster,
    UpdateControllerConfig,
)
from skylark.settings.properties import read_properties, write_properties


class AsyncControllers:
    """Part of `AsyncAdmin`. `controllers` are addresses of those that belong together, separated by `;`."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    async def metadata(self, controllers: str) -> Mapping[str, ControllerMetadata]:
        """What each controller says about the others, by address; those that do not answer are left out.

        Raises the error of the first if none answers.
        """
        gathered = await self._servers.ask_each(_addresses(controllers), GetControllerMetadata())
        if not gathered.answers:
            raise next(iter(gathered.failures.values()))
        return gathered.answers

    async def leader(self, controllers: str) -> str:
        """The address of the controller that leads. Raises ClientError if none does."""
        found = (await self.metadata(controllers)).values()
        for metadata in sorted(found, key=lambda each: not each.is_leader):
            if metadata.controller_leader_address:
                return metadata.controller_leader_address
        raise ClientError(f"none of the controllers {controllers} leads; is their register reachable?")

    async def replicas(self, controllers: str, names: Iterable[str] = ()) -> Mapping[str, ReplicasInfo]:
        """The replicas of these broker names, or of all.

        Apache's controllers cannot list the names: the name servers tell those that are registered.
        """
        leader = await self.leader(controllers)
        wanted = list(names)
        try:
            request = GetSyncStateData(wanted or None, all_brokers=not wanted)
            return (await self._servers.ask(leader, request)).replicas_info_table
        except BrokerError:
            if wanted:
                raise
        wanted = sorted({node.name for node in await self._servers.nodes()})
        if not wanted:
            return {}
        return (await self._servers.ask(leader, GetSyncStateData(wanted))).replicas_info_table

    async def elect(self, controllers: str, name: str, broker_id: int, *, cluster: str) -> GroupMaster:
        """Make a member of the set the master, also if another is alive. Raises BrokerError 2012, 2010."""
        request = ElectMaster(cluster, name, broker_id, designate_elect=True)
        return await self._servers.ask(await self.leader(controllers), request)

    async def clean(
        self,
        controllers: str,
        name: str,
        ids: Iterable[int] = (),
        *,
        cluster: str | None = None,
        living: bool = False,
    ) -> None:
        """Forget replicas of a broker name, all without ids. Raises BrokerError 2009 for living ones."""
        request = CleanBrokerData(
            cluster, name, ";".join(map(str, ids)) or None, is_clean_living_broker=living
        )
        await self._servers.ask(await self.leader(controllers), request)

    async def config(self, controllers: str) -> dict[str, dict[str, str]]:
        """All settings by address, by RocketMQ's keys. Raises SomeServersFailed."""
        gathered = await self._servers.ask_each(_addresses(controllers), GetControllerConfig())
        answers = gathered.complete("read controller settings")
        return {
            address: {key: value for key, value, _ in read_properties(text)}
            for address, text in answers.items()
        }

    async def update_config(self, controllers: str, changes: Mapping[str, str]) -> None:
        """Change settings, by RocketMQ's keys. Raises BrokerError 16 or SomeServersFailed."""
        request = UpdateControllerConfig(write_properties(changes).encode())
        gathered = await self._servers.ask_each(_addresses(controllers), request)
        gathered.complete("update controller settings")


def _addresses(controllers: str) -> list[str]:
    found = [word.strip() for word in controllers.replace(",", ";").split(";") if word.strip()]
    if not found:
        raise ClientError("no controller is given; use HOST:PORT, several separated by ;")
    return found
