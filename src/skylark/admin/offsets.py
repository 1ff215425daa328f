"""Offsets of queues and groups: read, commit, reset by time, clone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skylark.admin.groups import UNKNOWN_GROUP
from skylark.admin.results import Failures, Route
from skylark.admin.server_calls import ServerCalls, at_once, whole
from skylark.errors import BrokerError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.group import GetConsumeStats, QueryTopicsByConsumer
from skylark.protocol.requests.offset import (
    CloneGroupOffset,
    GetEarliestMsgStoreTime,
    GetMaxOffset,
    GetMinOffset,
    InvokeBrokerToResetOffset,
    QueryConsumerOffset,
    QueryCorrectionOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)

END = -1
"""A time after all messages."""
BEGIN = 0
"""A time before all messages."""
NO_MESSAGE = NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class Reset:
    """The new offsets of a group, by queue."""

    group: str
    topic: str
    offsets: Mapping[MessageQueue, int]
    failures: Failures


@dataclass(frozen=True, slots=True)
class OffsetPreview:
    """The committed offsets of a group, None where it has none, and those that a reset would set."""

    group: str
    topic: str
    old: Mapping[MessageQueue, int | None]
    new: Mapping[MessageQueue, int]


class AsyncOffsets:
    """Part of `AsyncAdmin`. Times are milliseconds since 1970; `BEGIN` and `END` are before and after all."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    # --- Queues ---

    async def begin(self, queue: MessageQueue) -> int:
        """The offset of the first message."""
        return await self._ask(queue, GetMinOffset(queue.topic, queue.queue_id))

    async def end(self, queue: MessageQueue) -> int:
        """The offset after the last message."""
        return await self._ask(queue, GetMaxOffset(queue.topic, queue.queue_id))

    async def at_time(self, queue: MessageQueue, time_ms: int, *, upper: bool = False) -> int:
        """The first message stored at a time or later; with `upper`, the last one stored then or before."""
        request = SearchOffsetByTimestamp(
            queue.topic, queue.queue_id, time_ms, boundary_type="UPPER" if upper else None
        )
        return await self._ask(queue, request)

    async def earliest_time_ms(self, queue: MessageQueue) -> int | None:
        """Store time of the first message; None for an empty queue."""
        address = await self._servers.address_of(queue)
        time_ms = await self._servers.ask(address, GetEarliestMsgStoreTime(queue.topic, queue.queue_id))
        return None if time_ms == NO_MESSAGE else time_ms

    async def _ask(
        self, queue: MessageQueue, request: GetMinOffset | GetMaxOffset | SearchOffsetByTimestamp
    ) -> int:
        return await self._servers.ask(await self._servers.address_of(queue), request)

    # --- Groups ---

    async def committed(
        self, group: str, topic: str, *, route: Route | None = None
    ) -> dict[MessageQueue, int | None]:
        """The committed offset of a group in each queue, None where there is none. Raises NoRoute.

        Without the topic's route a name server is asked.
        """
        route = route or await self._servers.route(topic)

        async def ask(queue: MessageQueue) -> int | None:
            request = QueryConsumerOffset(group, topic, queue.queue_id, set_zero_if_not_found=False)
            try:
                return await self._servers.ask(route.address(queue.broker_name) or "", request)
            except BrokerError as error:
                if error.code == ResponseCode.QUERY_NOT_FOUND:
                    return None
                raise

        queues = route.queues()
        return whole(dict(zip(queues, await at_once(ask, queues), strict=True)))

    async def preview(self, group: str, topic: str, time_ms: int) -> OffsetPreview:
        """What a reset to a time would do; nothing is changed. Raises NoRoute."""
        old = await self.committed(group, topic)

        async def find(queue: MessageQueue) -> int:
            return await (self.end(queue) if time_ms == END else self.at_time(queue, time_ms))

        new = whole(dict(zip(old, await at_once(find, old), strict=True)))
        return OffsetPreview(group, topic, old, new)

    async def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets for a group, forwards or backwards. Members that are online will overwrite them.

        Raises BrokerError 26 for an unknown group, NoRoute.
        """

        async def ask(queue: MessageQueue) -> None:
            request = UpdateConsumerOffset(group, queue.topic, queue.queue_id, offsets[queue])
            await self._servers.ask(await self._servers.address_of(queue), request)

        whole(dict(zip(offsets, await at_once(ask, offsets), strict=True)))

    async def reset(self, group: str, topic: str, time_ms: int, *, force: bool = True) -> Reset:
        """Reset a group, online or not, to a time: `BEGIN`, `END`, or milliseconds since 1970.

        Without `force`, brokers that reset online members only go back. Raises NoRoute, BrokerError 26 for an
        unknown group, SomeServersFailed if nothing was reset.
        """

        async def ask(address: str) -> dict[MessageQueue, int]:
            request = InvokeBrokerToResetOffset(topic, group, time_ms, force, queue_offset=NO_OFFSET)
            try:
                return (await self._servers.ask(address, request)).offset_table
            except BrokerError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                return await self._reset_offline(address, group, topic, time_ms)

        gathered = await self._servers.gather(await self._servers.brokers_of(topic), ask)
        found = gathered.some(f"reset group {group} in topic {topic}").values()
        moved = {queue: queue_offset for table in found for queue, queue_offset in table.items()}
        return Reset(group, topic, dict(sorted(moved.items())), gathered.failures)

    async def _reset_offline(
        self, address: str, group: str, topic: str, time_ms: int
    ) -> dict[MessageQueue, int]:
        """Commit the offsets of an offline group, for brokers that can only reset online members."""
        stats = await self._servers.ask(address, GetConsumeStats(group, topic))
        targets: dict[MessageQueue, int] = {}
        for queue in stats.offset_table:
            if time_ms < 0:
                targets[queue] = await self._servers.ask(address, GetMaxOffset(topic, queue.queue_id))
            else:
                request = SearchOffsetByTimestamp(topic, queue.queue_id, time_ms)
                targets[queue] = await self._servers.ask(address, request)
            commit = UpdateConsumerOffset(group, topic, queue.queue_id, targets[queue])
            await self._servers.ask(address, commit)
        return targets

    async def reset_queue(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """Reset a group, online or not, to an offset in one queue. Raises BrokerError if it is outside."""
        request = InvokeBrokerToResetOffset(
            queue.topic, group, END, True, queue.queue_id, queue_offset=queue_offset
        )
        await self._servers.ask(await self._servers.address_of(queue), request)

    async def skip(self, group: str, topic: str) -> Reset:
        """Skip all messages that a group has not consumed yet. Raises as `reset`."""
        return await self.reset(group, topic, END)

    async def clone(
        self, source: str, target: str, topic: str | None = None, *, only_subscribed: bool = False
    ) -> list[str]:
        """Copy offsets of a group to another one, in one topic or in all; return the topics.

        With `only_subscribed`, topics that an online source does not subscribe to are skipped. Raises
        SomeServersFailed.
        """
        targets = await self._servers.targets()
        operation = f"clone offsets of group {source}"
        gathered = await self._servers.ask_each(targets, QueryTopicsByConsumer(source))
        known = {name for found in gathered.complete(operation).values() for name in found.topic_list}
        topics = sorted(known if topic is None else known & {topic})
        for name in topics:
            request = CloneGroupOffset(source, target, name, offline=not only_subscribed)
            brokers = await self._servers.brokers_of(name)
            (await self._servers.ask_each(brokers, request)).complete(operation)
        return topics

    async def slowest(
        self, topic: str, group: str, *, ignored_groups: tuple[str, ...] = ()
    ) -> dict[MessageQueue, int]:
        """By queue, the offset of the slowest group that is not behind `group`. Raises NoRoute."""
        route = await self._servers.route(topic)
        request = QueryCorrectionOffset(group, topic, ",".join(ignored_groups) or None)
        addresses = [broker.address for broker in route.brokers if broker.address is not None]
        gathered = await self._servers.ask_each(addresses, request, absent_codes=UNKNOWN_GROUP)
        answers = gathered.complete(f"compare groups of topic {topic}")
        return {
            MessageQueue(topic, broker.broker_name, queue_id): queue_offset
            for broker in route.brokers
            if (answer := answers.get(broker.address or "")) is not None
            for queue_id, queue_offset in answer.correction_offsets.items()
        }
