"""Brokers and name servers: state, settings, statistics and maintenance."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skylark.admin.results import BrokerNode, BrokerSummary, ClusterSummary, NameServerNames
from skylark.admin.server_calls import ServerCalls
from skylark.clock import now_ms
from skylark.errors import BrokerError, ClientError
from skylark.protocol.bodies import (
    BrokerConsumeStats,
    BrokerStatsData,
    DataVersion,
    EpochCache,
    HaStatus,
    TimerMetrics,
)
from skylark.protocol.codes import ResponseCode
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
    SwitchTimerEngine,
    UpdateBrokerConfig,
    UpdateColdDataFlowCtrConfig,
    ViewBrokerStatsData,
)
from skylark.protocol.requests.controller import ElectMaster, GroupMaster
from skylark.protocol.requests.name_server import (
    AddWritePermOfBroker,
    DeleteKvConfig,
    GetAllTopicListFromNameServer,
    GetBrokerClusterInfo,
    GetBrokerMemberGroup,
    GetKvConfig,
    GetKvListByNamespace,
    GetNamesrvConfig,
    PutKvConfig,
    UpdateNamesrvConfig,
    WipeWritePermOfBroker,
)
from skylark.protocol.requests.pop import PopRollback
from skylark.settings.properties import read_properties, write_properties

READ_AHEAD = {True: "0", False: "1"}


class AsyncBrokers:
    """Part of `AsyncAdmin`. A `broker` is a name or an address."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    # --- State ---

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
        """The state of all brokers; those that do not answer are in `failures`."""
        nodes = await self._servers.nodes(cluster=cluster)
        gathered = await self._servers.ask_each((node.address for node in nodes), GetBrokerRuntimeInfo())
        brokers = [
            BrokerSummary.read(node, gathered.answers[node.address].table)
            for node in nodes
            if node.address in gathered.answers
        ]
        return ClusterSummary(tuple(brokers), gathered.failures, now_ms())

    async def replicas(self, cluster: str, name: str) -> Mapping[int, str]:
        """The addresses of the brokers of one name, by broker id."""
        body = await self._servers.ask_name_server(GetBrokerMemberGroup(cluster, name))
        return body.broker_member_group.broker_addrs

    async def runtime(self, broker: str) -> Mapping[str, str]:
        """Run-time information of a broker, by RocketMQ's names."""
        return (await self._servers.ask(await self._servers.target(broker), GetBrokerRuntimeInfo())).table

    async def consume_stats(self, broker: str, *, only_ordered: bool = False) -> BrokerConsumeStats:
        """Progress of all groups of a broker."""
        address = await self._servers.target(broker)
        return await self._servers.ask(address, GetBrokerConsumeStats(only_ordered))

    async def stats(self, broker: str, name: str, key: str) -> BrokerStatsData:
        """Counters of the last minute, hour and day, such as `TOPIC_PUT_NUMS` of a topic.

        Raises BrokerError 1 for what it does not count.
        """
        address = await self._servers.target(broker)
        return await self._servers.ask(address, ViewBrokerStatsData(name, key))

    async def replication(self, broker: str) -> HaStatus:
        """Replication state: a master's slaves, or a slave's link to its master."""
        return await self._servers.ask(await self._servers.target(broker), GetBrokerHaStatus())

    async def replication_addresses(self, broker: str) -> HaInfo:
        """The addresses that slaves connect to."""
        return await self._servers.ask(await self._servers.target(broker), ExchangeBrokerHaInfo())

    async def epochs(self, broker: str) -> EpochCache:
        """Which master wrote which part of the log. Raises BrokerError 1 without a controller."""
        return await self._servers.ask(await self._servers.target(broker), GetBrokerEpochCache())

    async def hand_over(self, name: str, to: int | None = None) -> GroupMaster:
        """Make another replica of a broker name the master, without failed sends; any, or the one with an id.

        Only Skylark's brokers in controller mode serve it. Raises BrokerError 1 if that replica cannot take
        over, ClientError if there is none.
        """
        nodes = [node for node in await self._servers.nodes() if node.name == name]
        master = next((node for node in nodes if node.is_master), None)
        ids = sorted(node.broker_id for node in nodes if not node.is_master)
        if master is None or not ids or (to is not None and to not in ids):
            found = f"its other replicas are {ids}" if ids else "it has no other replica"
            raise ClientError(f"broker {name} cannot be handed over{f' to {to}' if to else ''}: {found}")
        request = ElectMaster(master.cluster, name, ids[0] if to is None else to, designate_elect=True)
        return await self._servers.ask(master.address, request)

    async def timers(self, broker: str) -> TimerMetrics:
        """Number of scheduled messages. Raises BrokerError 1 where there are no timers."""
        return await self._servers.ask(await self._servers.target(broker), GetTimerMetrics())

    async def switch_timer_engine(self, broker: str, engine: str) -> None:
        """Let an Apache broker since 5.4 keep timers in `F`, files, or `R`, RocksDB. Raises BrokerError.

        A Skylark broker has the timer wheel in files only.
        """
        await self._servers.ask(await self._servers.target(broker), SwitchTimerEngine(engine))

    # --- Settings ---

    async def config(self, broker: str) -> dict[str, str]:
        """All settings, by RocketMQ's keys."""
        answer = await self._servers.ask(await self._servers.target(broker), GetBrokerConfig())
        return {key: value for key, value, _ in read_properties(answer.text)}

    async def config_version(self, broker: str) -> DataVersion:
        """The version of a broker's settings."""
        answer = await self._servers.ask(await self._servers.target(broker), GetBrokerConfig())
        return msgspec.json.decode(answer.version, type=DataVersion, strict=False)

    async def update_config(
        self, changes: Mapping[str, str], *, cluster: str | None = None, broker: str | None = None
    ) -> None:
        """Change settings, by RocketMQ's keys; brokers ignore unknown ones.

        Raises BrokerError 16 for what may not be changed, SomeServersFailed.
        """
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        request = UpdateBrokerConfig(write_properties(changes).encode())
        (await self._servers.ask_each(targets, request)).complete("update broker settings")

    async def wipe_write_permission(self, name: str) -> Mapping[str, int]:
        """Stop producers from sending to a broker; return the number of topics by name server.

        Raises SomeServersFailed.
        """
        gathered = await self._servers.ask_each(self._servers.name_servers, WipeWritePermOfBroker(name))
        return gathered.complete(f"wipe the write permission of {name}")

    async def add_write_permission(self, name: str) -> Mapping[str, int]:
        """Undo `wipe_write_permission`; return topics by name server. Raises SomeServersFailed."""
        gathered = await self._servers.ask_each(self._servers.name_servers, AddWritePermOfBroker(name))
        return gathered.complete(f"add the write permission of {name}")

    # --- Maintenance ---

    async def clean_queues(self, *, cluster: str | None = None, broker: str | None = None) -> None:
        """Delete queue entries of deleted messages. Raises SomeServersFailed."""
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        (await self._servers.ask_each(targets, CleanExpiredConsumeQueue())).complete("clean queues")

    async def clean_topics(self, *, cluster: str | None = None, broker: str | None = None) -> None:
        """Delete consume queues of deleted topics. Raises SomeServersFailed."""
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        (await self._servers.ask_each(targets, CleanUnusedTopic())).complete("clean unused topics")

    async def delete_expired_log(self, *, cluster: str | None = None, broker: str | None = None) -> None:
        """Delete expired log files now, at any hour. Raises SomeServersFailed."""
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        (await self._servers.ask_each(targets, DeleteExpiredCommitLog())).complete("delete expired log")

    async def reset_master_flush_offset(self, broker: str, physical_offset: int) -> None:
        """Set a slave's value of its master's flush offset."""
        await self._servers.ask(await self._servers.target(broker), ResetMasterFlushOffset(physical_offset))

    async def cold_reads(self, broker: str) -> str:
        """A broker's report on cold reads, as JSON."""
        answer = await self._servers.ask(await self._servers.target(broker), GetColdDataFlowCtrInfo())
        return str(answer, "utf-8", "replace")

    async def limit_cold_reads(self, broker: str, bytes_max: Mapping[str, int]) -> None:
        """Limit the bytes that groups may read in five seconds of messages that are not in memory.

        Without effect until the broker's `coldDataFlowControlEnable` is true. Lost when it restarts.
        """
        text = write_properties({group: str(limit) for group, limit in bytes_max.items()})
        request = UpdateColdDataFlowCtrConfig(text.encode())
        await self._servers.ask(await self._servers.target(broker), request)

    async def unlimit_cold_reads(self, broker: str, group: str) -> None:
        """Remove a group's limit of cold reads."""
        request = RemoveColdDataFlowCtrConfig(group.encode())
        await self._servers.ask(await self._servers.target(broker), request)

    async def set_read_ahead(self, broker: str, ahead: bool) -> None:
        """Set read-ahead of the log. Raises BrokerError where the kernel decides."""
        await self._servers.ask(await self._servers.target(broker), SetCommitLogReadMode(READ_AHEAD[ahead]))

    async def check_rocksdb_queues(self, broker: str, topic: str, since_ms: int | None = None) -> str:
        """Comparison of file and RocksDB consume queues, as JSON."""
        request = CheckRocksdbCqWriteProgress(topic, since_ms)
        answer = await self._servers.ask(await self._servers.target(broker), request)
        return str(answer, "utf-8", "replace")

    async def export_rocksdb_config(self, broker: str, kinds: tuple[str, ...]) -> None:
        """Have a broker export topics, groups or offsets from RocksDB to JSON files."""
        request = ExportRocksdbConfigToJson(";".join(kinds))
        await self._servers.ask(await self._servers.target(broker), request)

    async def export_pops(self, broker: str) -> None:
        """Have a broker export its pop records as messages, for older versions."""
        await self._servers.ask(await self._servers.target(broker), PopRollback())


class AsyncNameServers:
    """Part of `AsyncAdmin`."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._servers.name_servers

    async def known(self, address: str) -> NameServerNames:
        """What one of them knows. Raises RemotingError, BrokerError."""
        info = await self._servers.ask(address, GetBrokerClusterInfo())
        topics = (await self._servers.ask(address, GetAllTopicListFromNameServer())).topic_list
        return NameServerNames(
            sum(len(part.broker_addrs) for part in info.broker_addr_table.values()), len(topics)
        )

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
