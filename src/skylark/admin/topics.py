"""Topics: create, change, delete, list; their routes, queues and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from skylark.admin.results import Gathered, Route, Topic, TopicStats
from skylark.admin.server_calls import ServerCalls
from skylark.errors import BadName, BrokerError
from skylark.model.names import topic_name_error
from skylark.protocol.bodies import PERM_READ_WRITE, MessageQueue, TopicConfig, TopicConfigList
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.lite import (
    BrokerLiteInfo,
    GetBrokerLiteInfo,
    GetLiteClientInfo,
    GetLiteGroupInfo,
    GetLiteTopicInfo,
    GetParentTopicInfo,
    LiteClientInfo,
    LiteGroupInfo,
    LiteTopicInfo,
    ParentTopicInfo,
    TriggerLiteDispatch,
)
from skylark.protocol.requests.name_server import (
    DeleteKvConfig,
    DeleteTopicInNamesrv,
    GetAllTopicListFromNameServer,
    GetHasUnitSubTopicList,
    GetHasUnitSubUnUnitTopicList,
    GetKvConfig,
    GetSystemTopicListFromNs,
    GetTopicsByCluster,
    GetUnitTopicList,
    PutKvConfig,
)
from skylark.protocol.requests.topic import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    QueryTopicConsumeByWho,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
QUEUES = 8

LITE_TOPICS_SHOWN = 20
"""Lite topics with the largest lag that are shown."""


class AsyncTopics:
    """Part of `AsyncAdmin`. `cluster` and `broker` (a name or an address) limit an operation."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    # --- Changes ---

    async def create(
        self,
        topic: str,
        *,
        queues: int = QUEUES,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int = PERM_READ_WRITE,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        system_flag: int = 0,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Create a topic, or replace its settings. `permission` is 6 (read and write), 4 (read) or 2 (write).

        When it returns, name servers know the topic. Raises BadName, SomeServersFailed.
        """
        _check(topic)
        wanted = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues if read_queues is None else read_queues,
            write_queue_nums=queues if write_queues is None else write_queues,
            perm=permission,
            order=ordered,
            topic_sys_flag=system_flag,
            attributes={f"+{name}": value for name, value in (attributes or {}).items()},
        )
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        gathered = await self._servers.ask_each(targets, UpdateAndCreateTopic.of(wanted))
        gathered.complete(f"create topic {topic}")

    async def create_all(
        self, topics: list[Topic], *, cluster: str | None = None, broker: str | None = None
    ) -> None:
        """Create several topics with one request to each broker. Raises BadName, SomeServersFailed."""
        for topic in topics:
            _check(topic.name)
        configs = TopicConfigList(
            topic_config_list=[
                replace(
                    topic, attributes={f"+{name}": value for name, value in topic.attributes.items()}
                ).to_config()
                for topic in topics
            ]
        )
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        gathered = await self._servers.ask_each(targets, UpdateAndCreateTopicList(configs))
        gathered.complete(f"create {len(topics)} topics")

    async def update(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Change the given settings wherever the topic is; an attribute of None is removed.

        Raises NoRoute, SomeServersFailed.
        """
        if cluster is None and broker is None:
            targets = await self._servers.brokers_of(topic)
        else:
            targets = await self._servers.targets(cluster=cluster, broker=broker)

        async def change(address: str) -> None:
            config = await self._servers.ask(address, GetTopicConfig(topic))
            if read_queues is not None:
                config.read_queue_nums = read_queues
            if write_queues is not None:
                config.write_queue_nums = write_queues
            if permission is not None:
                config.perm = permission
            if ordered is not None:
                config.order = ordered
            config.attributes = {
                f"-{name}" if value is None else f"+{name}": value or ""
                for name, value in (attributes or {}).items()
            }
            await self._servers.ask(address, UpdateAndCreateTopic.of(config))

        (await self._servers.gather(targets, change)).complete(f"update topic {topic}")

    async def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic on all brokers, then at all name servers. Raises SomeServersFailed."""
        targets = await self._servers.targets(cluster=cluster)
        operation = f"delete topic {topic}"
        (await self._servers.ask_each(targets, DeleteTopicInBroker(topic))).complete(operation)
        request = DeleteTopicInNamesrv(topic, cluster)
        (await self._servers.ask_each(self._servers.name_servers, request)).complete(operation)

    # --- Queries ---

    async def names(self, *, cluster: str | None = None) -> list[str]:
        """The names of all topics, built-in ones included, sorted."""
        if cluster is None:
            found = await self._servers.ask_name_server(GetAllTopicListFromNameServer())
        else:
            found = await self._servers.ask_name_server(GetTopicsByCluster(cluster))
        return sorted(found.topic_list)

    async def system(self) -> list[str]:
        """The names of built-in topics of name servers and brokers."""
        found = await self._servers.ask_name_server(GetSystemTopicListFromNs())
        gathered = await self._servers.ask_each(await self._servers.targets(), GetSystemTopicListFromBroker())
        of_brokers = gathered.some("list built-in topics").values()
        return sorted({*found.topic_list, *(name for topics in of_brokers for name in topics.topic_list)})

    async def units(self) -> list[str]:
        """Topics of units (RocketMQ's `UNIT` flag)."""
        return sorted((await self._servers.ask_name_server(GetUnitTopicList())).topic_list)

    async def unit_subscriptions(self, *, outside_units: bool = False) -> list[str]:
        """Topics with subscriptions of units; with `outside_units` only those that are not units' own."""
        request = GetHasUnitSubUnUnitTopicList() if outside_units else GetHasUnitSubTopicList()
        return sorted((await self._servers.ask_name_server(request)).topic_list)

    async def config(self, topic: str) -> Gathered[Topic]:
        """A topic's settings by the address of each broker that has it. Raises NoRoute."""
        gathered = await self._servers.ask_each(await self._servers.brokers_of(topic), GetTopicConfig(topic))
        found = gathered.some(f"read topic {topic}")
        answers = {address: Topic.read(config) for address, config in found.items()}
        return Gathered(answers, gathered.failures)

    async def on_broker(self, broker: str) -> list[Topic]:
        """All topics of one broker, sorted by name."""
        table = await self._servers.ask(await self._servers.target(broker), GetAllTopicConfig())
        return [Topic.read(config) for _, config in sorted(table.topic_config_table.items())]

    async def on_brokers(self, *, cluster: str | None = None) -> Gathered[list[Topic]]:
        """All topics of each broker, by the broker's address, with one request to each broker."""
        gathered = await self._servers.ask_each(
            await self._servers.targets(cluster=cluster), GetAllTopicConfig()
        )
        found = gathered.some("list topics")
        answers = {
            address: [Topic.read(config) for _, config in sorted(table.topic_config_table.items())]
            for address, table in found.items()
        }
        return Gathered(answers, gathered.failures)

    async def route(self, topic: str) -> Route:
        """The brokers of a topic's queues. Raises NoRoute."""
        return await self._servers.route(topic)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that can be read. Raises NoRoute."""
        return (await self._servers.route(topic)).queues()

    async def stats(self, topic: str, *, brokers: Iterable[str] | None = None) -> TopicStats:
        """The offsets of each queue and the time of its last message. Raises NoRoute.

        `brokers` are the addresses of those that have the topic; without them a name server is asked.
        """
        found = await self._servers.brokers_of(topic) if brokers is None else brokers
        gathered = await self._servers.ask_each(found, GetTopicStatsInfo(topic))
        tables = gathered.some(f"read topic {topic}").values()
        return TopicStats.read(topic, tables, gathered.failures)

    async def groups(self, topic: str) -> list[str]:
        """The groups that consume a topic or have consumed it. Raises NoRoute."""
        request = QueryTopicConsumeByWho(topic)
        gathered = await self._servers.ask_each(await self._servers.brokers_of(topic), request)
        found = gathered.complete(f"list groups of topic {topic}").values()
        return sorted({group for groups in found for group in groups.group_list})

    # --- Fixed order of queues, kept by name servers ---

    async def order(self, topic: str) -> str | None:
        """`broker-a:4;broker-b:4`, or None."""
        try:
            return (await self._servers.ask_name_server(GetKvConfig(ORDER_NAMESPACE, topic))).value
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def set_order(self, topic: str, order: str | None) -> None:
        """Set the order at all name servers; None removes it. Raises SomeServersFailed."""
        if order is None:
            gathered = await self._servers.ask_each(
                self._servers.name_servers, DeleteKvConfig(ORDER_NAMESPACE, topic)
            )
        else:
            gathered = await self._servers.ask_each(
                self._servers.name_servers, PutKvConfig(ORDER_NAMESPACE, topic, order)
            )
        gathered.complete(f"set order of topic {topic}")


def _check(topic: str) -> None:
    if fault := topic_name_error(topic):
        raise BadName("topic", topic, fault)


class AsyncLiteTopics:
    """Part of `AsyncAdmin`. `topic` is the parent; answers are by the address of each of its brokers."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    async def on_broker(self, broker: str) -> BrokerLiteInfo:
        """Numbers of one broker: lite topics, subscriptions, parents and their groups."""
        return await self._servers.ask(await self._servers.target(broker), GetBrokerLiteInfo())

    async def parent(self, topic: str) -> Mapping[str, ParentTopicInfo]:
        """How many lite topics a parent has, when they expire, and its groups. Raises SomeServersFailed."""
        gathered = await self._servers.ask_each(
            await self._servers.brokers_of(topic), GetParentTopicInfo(topic)
        )
        return gathered.complete(f"read the lite topics of {topic}")

    async def find(self, topic: str, lite_topic: str) -> Mapping[str, LiteTopicInfo]:
        """Offsets and subscribers of a lite topic. Raises NoRoute, SomeServersFailed."""
        gathered = await self._servers.ask_each(
            await self._servers.brokers_of(topic), GetLiteTopicInfo(topic, lite_topic)
        )
        return gathered.complete(f"read lite topic {lite_topic}")

    async def subscriptions(self, topic: str, group: str, client_id: str) -> Mapping[str, LiteClientInfo]:
        """The lite topics that a client subscribes. Raises NoRoute, SomeServersFailed."""
        gathered = await self._servers.ask_each(
            await self._servers.brokers_of(topic), GetLiteClientInfo(topic, group, client_id)
        )
        return gathered.complete(f"read the subscriptions of client {client_id}")

    async def lag(
        self, topic: str, group: str, lite_topic: str | None = None, *, top: int = LITE_TOPICS_SHOWN
    ) -> Mapping[str, LiteGroupInfo]:
        """The lag of a group in a lite topic, or in all: those with the largest, by number and by age.

        Raises NoRoute, SomeServersFailed.
        """
        gathered = await self._servers.ask_each(
            await self._servers.brokers_of(topic), GetLiteGroupInfo(group, lite_topic, top)
        )
        return gathered.complete(f"read the lag of group {group}")

    async def look_again(self, topic: str, group: str, client_id: str | None = None) -> None:
        """Let brokers look for messages of a group, or of one client. Raises NoRoute, SomeServersFailed."""
        gathered = await self._servers.ask_each(
            await self._servers.brokers_of(topic), TriggerLiteDispatch(group, client_id)
        )
        gathered.complete(f"look for messages of group {group}")
