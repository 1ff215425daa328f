"""Brokers: how they are, their settings, their upkeep, what they count."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skylark.admin.results import BrokerNode, BrokerSummary, ClusterSummary
from skylark.admin.server_calls import ServerCalls
from skylark.protocol.bodies import (
    BrokerConsumeStats,
    BrokerStatsData,
    DataVersion,
    EpochCache,
    HaStatus,
    TimerMetrics,
)
from skylark.protocol.requests.admin import (
    CheckRocksdbCqWriteProgress,
    CleanExpiredConsumeQueue,
    CleanUnusedTopic,
    DeleteExpiredCommitLog,
    ExchangeBrokerHaInfo,
    ExportRocksdbConfigToJson,
    GetBrokerConfig,
    GetBrokerConsumeStats,
    GetBrokerEpochCache,
    GetBrokerHaStatus,
    GetBrokerRuntimeInfo,
    GetColdDataFlowCtrInfo,
    GetTimerMetrics,
    HaInfo,
    RemoveColdDataFlowCtrConfig,
    ResetMasterFlushOffset,
    SetCommitLogReadMode,
    UpdateBrokerConfig,
    UpdateColdDataFlowCtrConfig,
    ViewBrokerStatsData,
)
from skylark.protocol.requests.name_server import (
    AddWritePermOfBroker,
    GetBrokerMemberGroup,
    WipeWritePermOfBroker,
)
from skylark.protocol.requests.pull import PopRollback
from skylark.settings.properties import read_properties, write_properties

READ_AHEAD = {True: "0", False: "1"}


class AsyncBrokers:
    """Part of `Admin`. A `broker` is a name or an address."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    # --- Which there are, and how ---

    async def nodes(self, *, cluster: str | None = None) -> list[BrokerNode]:
        """All brokers, masters and slaves, sorted."""
        return await self._servers.nodes(cluster=cluster)

    async def clusters(self) -> dict[str, list[BrokerNode]]:
        """All brokers by cluster."""
        clusters: dict[str, list[BrokerNode]] = {}
        for node in await self._servers.nodes():
            clusters.setdefault(node.cluster, []).append(node)
        return clusters

    async def summary(self, *, cluster: str | None = None) -> ClusterSummary:
        """How all brokers are, asked at the same time; those that do not answer are in `failures`."""
        nodes = await self._servers.nodes(cluster=cluster)
        gathered = await self._servers.ask_each((node.address for node in nodes), GetBrokerRuntimeInfo())
        brokers = [
            BrokerSummary.read(node, gathered.answers[node.address].table)
            for node in nodes
            if node.address in gathered.answers
        ]
        return ClusterSummary(tuple(brokers), gathered.failures)

    async def replicas(self, cluster: str, name: str) -> Mapping[int, str]:
        """The addresses of the brokers of one name, by broker id."""
        body = await self._servers.ask_name_server(GetBrokerMemberGroup(cluster, name))
        return body.broker_member_group.broker_addrs

    async def runtime(self, broker: str) -> Mapping[str, str]:
        """Everything that a broker says of its run time, under RocketMQ's names."""
        return (await self._servers.ask(await self._servers.target(broker), GetBrokerRuntimeInfo())).table

    async def consume_stats(self, broker: str, *, only_ordered: bool = False) -> BrokerConsumeStats:
        """How far all groups of a broker are."""
        address = await self._servers.target(broker)
        return await self._servers.ask(address, GetBrokerConsumeStats(only_ordered))

    async def stats(self, broker: str, name: str, key: str) -> BrokerStatsData:
        """What a broker has counted in the last minute, hour and day: `TOPIC_PUT_NUMS` of a topic, …

        Raises BrokerError 1 for what it does not count.
        """
        address = await self._servers.target(broker)
        return await self._servers.ask(address, ViewBrokerStatsData(name, key))

    async def replication(self, broker: str) -> HaStatus:
        """How far a master's slaves are, or a slave with its master."""
        return await self._servers.ask(await self._servers.target(broker), GetBrokerHaStatus())

    async def replication_addresses(self, broker: str) -> HaInfo:
        """Where a master's slaves connect."""
        return await self._servers.ask(await self._servers.target(broker), ExchangeBrokerHaInfo())

    async def epochs(self, broker: str) -> EpochCache:
        """Which master wrote which part of the log. Raises BrokerError 1 without a controller."""
        return await self._servers.ask(await self._servers.target(broker), GetBrokerEpochCache())

    async def timers(self, broker: str) -> TimerMetrics:
        """How many messages wait for their time. Raises BrokerError 1 where there are no timers."""
        return await self._servers.ask(await self._servers.target(broker), GetTimerMetrics())

    # --- Settings ---

    async def config(self, broker: str) -> dict[str, str]:
        """All settings, under RocketMQ's keys."""
        answer = await self._servers.ask(await self._servers.target(broker), GetBrokerConfig())
        return {key: value for key, value, _ in read_properties(answer.text)}

    async def config_version(self, broker: str) -> DataVersion:
        """How often a broker's settings have changed."""
        answer = await self._servers.ask(await self._servers.target(broker), GetBrokerConfig())
        return msgspec.json.decode(answer.version, type=DataVersion, strict=False)

    async def update_config(
        self, changes: Mapping[str, str], *, cluster: str | None = None, broker: str | None = None
    ) -> None:
        """Change settings under RocketMQ's keys; brokers without the setting pass over it.

        Raises BrokerError 16 for what may not be changed, SomeServersFailed.
        """
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        request = UpdateBrokerConfig(write_properties(changes).encode())
        (await self._servers.ask_each(targets, request)).complete("update broker settings")

    async def wipe_write_permission(self, name: str) -> Mapping[str, int]:
        """Take a broker name's topics off producers: the number of topics by name server.

        Raises SomeServersFailed.
        """
        gathered = await self._servers.ask_each(self._servers.name_servers, WipeWritePermOfBroker(name))
        return gathered.complete(f"wipe the write permission of {name}")

    async def add_write_permission(self, name: str) -> Mapping[str, int]:
        """Undo `wipe_write_permission`: the number of topics by name server. Raises SomeServersFailed."""
        gathered = await self._servers.ask_each(self._servers.name_servers, AddWritePermOfBroker(name))
        return gathered.complete(f"add the write permission of {name}")

    # --- Upkeep ---

    async def clean_queues(self, *, cluster: str | None = None, broker: str | None = None) -> None:
        """Delete entries of queues whose messages are gone. Raises SomeServersFailed."""
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        (await self._servers.ask_each(targets, CleanExpiredConsumeQueue())).complete("clean queues")

    async def clean_topics(self, *, cluster: str | None = None, broker: str | None = None) -> None:
        """Delete the queues of topics that there are no more. Raises SomeServersFailed."""
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        (await self._servers.ask_each(targets, CleanUnusedTopic())).complete("clean unused topics")

    async def delete_expired_log(self, *, cluster: str | None = None, broker: str | None = None) -> None:
        """Delete files of the log that are old enough, at any hour. Raises SomeServersFailed."""
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        (await self._servers.ask_each(targets, DeleteExpiredCommitLog())).complete("delete expired log")

    async def reset_master_flush_offset(self, broker: str, physical_offset: int) -> None:
        """Tell a slave up to where its master has flushed."""
        await self._servers.ask(await self._servers.target(broker), ResetMasterFlushOffset(physical_offset))

    async def cold_reads(self, broker: str) -> str:
        """What a broker says of reads of old messages, as JSON."""
        answer = await self._servers.ask(await self._servers.target(broker), GetColdDataFlowCtrInfo())
        return str(answer, "utf-8", "replace")

    async def limit_cold_reads(self, broker: str, bytes_max: Mapping[str, int]) -> None:
        """Set how many bytes groups may read, in five seconds, of messages that are not in memory, by group.

        Without effect until the broker's `coldDataFlowControlEnable` is true. Lost when it restarts.
        """
        text = write_properties({group: str(limit) for group, limit in bytes_max.items()})
        request = UpdateColdDataFlowCtrConfig(text.encode())
        await self._servers.ask(await self._servers.target(broker), request)

    async def unlimit_cold_reads(self, broker: str, group: str) -> None:
        """Take a group's limit away."""
        request = RemoveColdDataFlowCtrConfig(group.encode())
        await self._servers.ask(await self._servers.target(broker), request)

    async def set_read_ahead(self, broker: str, ahead: bool) -> None:
        """Say whether the log is read ahead. Raises BrokerError where the kernel decides."""
        await self._servers.ask(await self._servers.target(broker), SetCommitLogReadMode(READ_AHEAD[ahead]))

    async def check_rocksdb_queues(self, broker: str, topic: str, since_ms: int | None = None) -> str:
        """What a broker with both kinds of queues says of their being equal, as JSON."""
        request = CheckRocksdbCqWriteProgress(topic, since_ms)
        answer = await self._servers.ask(await self._servers.target(broker), request)
        return str(answer, "utf-8", "replace")

    async def export_rocksdb_config(self, broker: str, kinds: tuple[str, ...]) -> None:
        """Have a broker write its settings of topics, groups or offsets as JSON files."""
        request = ExportRocksdbConfigToJson(";".join(kinds))
        await self._servers.ask(await self._servers.target(broker), request)

    async def export_pops(self, broker: str) -> None:
        """Have a broker write what it knows of pops as messages, for an older version to read."""
        await self._servers.ask(await self._servers.target(broker), PopRollback())
