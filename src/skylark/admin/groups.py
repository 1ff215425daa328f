"""Consumer groups: create, change, delete, list; their progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skylark.admin.results import Gathered, Group, GroupProgress
from skylark.admin.server_calls import ServerCalls
from skylark.errors import BadName, ClientError
from skylark.model.names import dead_letter_topic, group_name_error, retry_topic
from skylark.protocol.bodies import (
    ConsumeTimeSpan,
    RequestMode,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.client import GetAllMessageRequestMode, SetMessageRequestMode
from skylark.protocol.requests.group import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    GetConsumeStats,
    GetSubscriptionGroupConfig,
    QueryConsumeTimeSpan,
    QuerySubscriptionByConsumer,
    QueryTopicsByConsumer,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
    UpdateAndGetGroupForbidden,
)
from skylark.protocol.requests.name_server import DeleteTopicInNamesrv
from skylark.protocol.requests.topic import DeleteTopicInBroker

UNKNOWN_GROUP = frozenset({ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.CONSUMER_NOT_ONLINE})


class AsyncGroups:
    """Part of `AsyncAdmin`. `cluster` and `broker` (a name or an address) limit an operation."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    # --- Changes ---

    async def create(
        self, group: Group | str, *, cluster: str | None = None, broker: str | None = None
    ) -> None:
        """Create a group, or replace its settings. Raises BadName, SomeServersFailed."""
        wanted = Group(group) if isinstance(group, str) else group
        _check(wanted.name)
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        request = UpdateAndCreateSubscriptionGroup(_request_of(wanted))
        (await self._servers.ask_each(targets, request)).complete(f"create group {wanted.name}")

    async def create_all(
        self, groups: list[Group], *, cluster: str | None = None, broker: str | None = None
    ) -> None:
        """Create several groups with one request to each broker. Raises BadName, SomeServersFailed."""
        for group in groups:
            _check(group.name)
        body = SubscriptionGroupList(group_config_list=[_request_of(group) for group in groups])
        targets = await self._servers.targets_to_change(cluster=cluster, broker=broker)
        gathered = await self._servers.ask_each(targets, UpdateAndCreateSubscriptionGroupList(body))
        gathered.complete(f"create {len(groups)} groups")

    async def update(
        self, group: str, /, *, cluster: str | None = None, broker: str | None = None, **changes: Any
    ) -> None:
        """Change the given fields of `Group` on each broker that has the group.

        Raises ClientError if no broker has it, SomeServersFailed, TypeError for an unknown field.
        """
        replace(Group(group), **changes)  # raises TypeError before any request
        targets = await self._servers.targets(cluster=cluster, broker=broker)

        async def change(address: str) -> bool:
            table = await self._servers.ask(address, GetAllSubscriptionGroupConfig())
            known = table.subscription_group_table.get(group)
            if known is None:
                return False
            wanted = replace(Group.read(known), **changes)
            await self._servers.ask(address, UpdateAndCreateSubscriptionGroup(_request_of(wanted)))
            return True

        found = (await self._servers.gather(targets, change)).complete(f"update group {group}")
        if not any(found.values()):
            raise ClientError(f"no group {group} on {', '.join(found) or 'any broker'}; create it first")

    async def delete(self, group: str, *, cluster: str | None = None, keep_offsets: bool = False) -> None:
        """Delete a group with its offsets, its retry topic and its dead letters. Raises SomeServersFailed."""
        targets = await self._servers.targets(cluster=cluster)
        operation = f"delete group {group}"
        request = DeleteSubscriptionGroup(group, clean_offset=not keep_offsets)
        (await self._servers.ask_each(targets, request)).complete(operation)
        for topic in (retry_topic(group), dead_letter_topic(group)):
            (await self._servers.ask_each(targets, DeleteTopicInBroker(topic))).complete(operation)
            at_name_servers = await self._servers.ask_each(
                self._servers.name_servers, DeleteTopicInNamesrv(topic, cluster)
            )
            at_name_servers.complete(operation)

    async def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Forbid a group to read a topic, or allow it again. Raises NoRoute, SomeServersFailed."""
        targets = await self._servers.brokers_of(topic)
        request = UpdateAndGetGroupForbidden(group, topic, readable)
        (await self._servers.ask_each(targets, request)).complete(f"set the read permission of group {group}")

    async def is_readable(self, group: str, topic: str) -> bool:
        """Whether a group may read a topic on all brokers. Raises NoRoute, SomeServersFailed."""
        gathered = await self._servers.ask_each(
            await self._servers.brokers_of(topic), UpdateAndGetGroupForbidden(group, topic)
        )
        answers = gathered.complete(f"read the read permission of group {group}").values()
        return all(answer.readable is not False for answer in answers)

    async def set_request_mode(
        self, group: str, topic: str, mode: str = "PULL", *, pop_queues: int = 0
    ) -> None:
        """Set whether members PULL or POP a topic. Raises NoRoute, SomeServersFailed."""
        request = SetMessageRequestMode(
            RequestMode(topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=pop_queues)
        )
        targets = await self._servers.brokers_of(topic)
        (await self._servers.ask_each(targets, request)).complete(f"set the request mode of group {group}")

    async def request_modes(self, broker: str) -> Mapping[str, Mapping[str, RequestMode]]:
        """The request modes set on a broker, by topic and group."""
        table = await self._servers.ask(await self._servers.target(broker), GetAllMessageRequestMode())
        return table.message_request_mode_map

    # --- Queries ---

    async def names(self, *, cluster: str | None = None) -> list[str]:
        """The names of all groups, built-in ones included, sorted. Raises SomeServersFailed."""
        targets = await self._servers.targets(cluster=cluster)
        gathered = await self._servers.ask_each(targets, GetAllSubscriptionGroupConfig())
        tables = gathered.complete("list groups").values()
        return sorted({name for table in tables for name in table.subscription_group_table})

    async def config(self, group: str) -> Gathered[Group]:
        """A group's settings by the address of each broker that has it. Does not create the group."""
        targets = await self._servers.targets()
        gathered = await self._servers.ask_each(targets, GetAllSubscriptionGroupConfig())
        tables = gathered.some(f"read group {group}")
        answers = {
            address: Group.read(table.subscription_group_table[group])
            for address, table in tables.items()
            if group in table.subscription_group_table
        }
        return Gathered(answers, gathered.failures)

    async def ensure(self, group: str, broker: str) -> Group:
        """A group's settings on one broker, which creates it if automatic creation is on."""
        address = await self._servers.target(broker)
        return Group.read(await self._servers.ask(address, GetSubscriptionGroupConfig(group)))

    async def on_broker(self, broker: str) -> list[Group]:
        """All groups of one broker, sorted by name."""
        address = await self._servers.target(broker)
        table = await self._servers.ask(address, GetAllSubscriptionGroupConfig())
        return [Group.read(config) for _, config in sorted(table.subscription_group_table.items())]

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Progress of a group in each queue, of one topic or of all topics with offsets."""
        targets = await (self._servers.targets() if topic is None else self._servers.brokers_of(topic))
        request = GetConsumeStats(group, topic)
        gathered = await self._servers.ask_each(targets, request, absent_codes=UNKNOWN_GROUP)
        stats = gathered.some(f"read the progress of group {group}").values()
        return GroupProgress.read(group, stats, gathered.failures)

    async def topics(self, group: str) -> list[str]:
        """The topics in which a group has offsets."""
        targets = await self._servers.targets()
        gathered = await self._servers.ask_each(targets, QueryTopicsByConsumer(group))
        found = gathered.complete(f"list topics of group {group}").values()
        return sorted({topic for topics in found for topic in topics.topic_list})

    async def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The subscription of a group that is online, or was recently. Raises NoRoute."""
        request = QuerySubscriptionByConsumer(group, topic)
        gathered = await self._servers.ask_each(await self._servers.brokers_of(topic), request)
        found = gathered.some(f"ask for the subscription of group {group}").values()
        return next((item.subscription_data for item in found if item.subscription_data is not None), None)

    async def time_spans(self, group: str, topic: str) -> list[ConsumeTimeSpan]:
        """By queue: the store times of its messages and the age of the group's next one."""
        request = QueryConsumeTimeSpan(topic, group)
        gathered = await self._servers.ask_each(await self._servers.brokers_of(topic), request)
        found = gathered.complete(f"read the time spans of group {group}").values()
        spans = (span for spans in found for span in spans.consume_time_span_set)
        return sorted(spans, key=lambda span: span.message_queue)


def _request_of(group: Group) -> SubscriptionGroupConfig:
    """Return a group as brokers are asked to make it: each attribute is a change."""
    config = group.to_config()
    config.attributes = {f"+{name.removeprefix('+')}": value for name, value in group.attributes.items()}
    return config


def _check(group: str) -> None:
    if fault := group_name_error(group):
        raise BadName("group", group, fault)
