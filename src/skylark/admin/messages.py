"""Stored messages: find by id, key, offset or time; their state for each group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from skylark.admin.clients import AsyncClients
from skylark.admin.groups import AsyncGroups
from skylark.admin.results import ConnectedConsumers, Failures, Route
from skylark.admin.server_calls import ServerCalls, at_once, whole
from skylark.client.received_message import ReceivedMessage, decode_pull
from skylark.errors import BrokerError, ClientError, RemotingError, RocketMQError
from skylark.model.message import format_host
from skylark.model.message_id import parse_offset_message_id
from skylark.model.record import split
from skylark.model.sql92.nodes import BadSelector
from skylark.model.sql92.selector import compile_selector
from skylark.model.tag_expression import MATCH_ALL, split_tags
from skylark.protocol.bodies import ConsumeQueueUnits, MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import Buffer
from skylark.protocol.requests.offset import GetMaxOffset, GetMinOffset, SearchOffsetByTimestamp
from skylark.protocol.requests.pull import (
    PLAIN_MESSAGES,
    PullMessage,
    PullResult,
    QueryConsumeQueue,
    QueryMessage,
    ViewMessageById,
)
from skylark.protocol.requests.topic import QueryTopicConsumeByWho
from skylark.protocol.requests.transaction import ResumeCheckHalfMessage

QUERY_TIMEOUT_MS = 18_000
MESSAGES_MAX = 1000
"""Default maximum of a reply."""
KEY_MATCHES_MAX = 64
SCANNED_MAX = 10_000
"""Messages that one call looks at for a filter."""
FOREVER_MS = (1 << 63) - 1
NOT_FOUND = frozenset({ResponseCode.QUERY_NOT_FOUND})


class TrackState(Enum):
    """The state of a message for a group."""

    CONSUMED = "consumed"
    FILTERED = "consumed, but the group's expression does not match it"
    NOT_YET = "not consumed yet"
    PASSED = "consumed or filtered: the group's offset is past it, and the group is not online"
    NOT_ONLINE = "not consumed yet; the group is not online"
    PULLS = "the group's members pull: what they did is theirs to know"
    BROADCAST = "every member consumes it, and keeps its own progress"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Track:
    group: str
    state: TrackState
    error: RocketMQError | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Messages, and errors of brokers by name."""

    messages: tuple[ReceivedMessage, ...]
    failures: Failures


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages newest first, how many were looked at, and the `before` of the next page; None at the end."""

    messages: tuple[ReceivedMessage, ...]
    scanned: int
    next_before: Mapping[MessageQueue, int] | None
    failures: Failures


class AsyncMessages:
    """Part of `AsyncAdmin`. Times are milliseconds since 1970."""

    def __init__(self, servers: ServerCalls, groups: AsyncGroups, clients: AsyncClients) -> None:
        self._servers = servers
        self._groups = groups
        self._clients = clients

    # --- One message ---

    async def get(self, topic: str, message_id: str) -> ReceivedMessage:
        """A message by its offset id or its unique id.

        Raises ClientError if there is none, NoRoute, RemotingError.
        """
        failure: RocketMQError | None = None
        try:
            message = await self.by_offset_id(message_id)
        except (ClientError, BrokerError, RemotingError) as error:
            failure = error
        else:
            if message.topic == topic:
                return message
        found = await self.by_unique_key(topic, message_id)
        if found.messages:
            return found.messages[0]
        reason = f" ({failure})" if isinstance(failure, RemotingError) else ""
        raise ClientError(f"topic {topic} has no message {message_id}{reason}")

    async def by_offset_id(self, message_id: str) -> ReceivedMessage:
        """A message by its offset id, which holds the broker's address and the physical offset.

        Raises ClientError for an invalid id, BrokerError 1 if there is no message, RemotingError.
        """
        try:
            host, physical_offset = parse_offset_message_id(message_id)
        except ValueError as error:
            raise ClientError(f"invalid offset id {message_id!r}: {error}") from None
        address = format_host(host)
        record = await self._servers.ask(address, ViewMessageById(physical_offset))
        [message] = _decode(record, await self._broker_name(address))
        return message

    async def _broker_name(self, address: str) -> str:
        """The name of the broker at an address; the address if it is not registered."""
        names = (node.name for node in await self._servers.nodes() if node.address == address)
        return next(names, address)

    async def at(self, queue: MessageQueue, queue_offset: int) -> ReceivedMessage | None:
        """The message at an offset of a queue, None if there is none."""
        result = await self._pull(await self._servers.address_of(queue), queue, queue_offset, 1, MATCH_ALL)
        messages = _messages(queue, result)
        return messages[0] if messages and messages[0].queue_offset == queue_offset else None

    # --- Several ---

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        messages_max: int = KEY_MATCHES_MAX,
    ) -> Found:
        """The messages with a key on all brokers, newest first. Raises NoRoute."""
        request = QueryMessage(topic, key, messages_max, begin_ms, end_ms, unique_key=False)
        return await self._query(topic, request, lambda message: key in message.keys)

    async def by_unique_key(self, topic: str, unique_key: str) -> Found:
        """The messages with a unique id: several if it was sent again."""
        request = QueryMessage(topic, unique_key, KEY_MATCHES_MAX, 0, FOREVER_MS, unique_key=True)
        return await self._query(topic, request, lambda message: message.unique_key == unique_key)

    async def _query(
        self, topic: str, request: QueryMessage, is_meant: Callable[[ReceivedMessage], bool]
    ) -> Found:
        route = await self._servers.route(topic)

        async def ask(broker_name: str) -> list[ReceivedMessage]:
            address = route.address(broker_name) or ""
            records = await self._servers.ask(address, request, timeout_ms=QUERY_TIMEOUT_MS)
            return _decode(records, broker_name)

        names = [broker.broker_name for broker in route.brokers]
        gathered = await self._servers.gather(names, ask, absent_codes=NOT_FOUND)
        parts = gathered.some(f"find {request.key} in topic {topic}").values()
        found = [
            message for part in parts for message in part if message.topic == topic and is_meant(message)
        ]
        found.sort(key=lambda message: message.store_timestamp, reverse=True)
        return Found(tuple(found[: request.max_num]), gathered.failures)

    async def between(
        self,
        topic: str,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        *,
        expression: str = MATCH_ALL,
        messages_max: int = MESSAGES_MAX,
        from_offsets: Mapping[MessageQueue, int] | None = None,
    ) -> Found:
        """The messages stored in a time, end excluded, oldest first; by tags, if an expression is given.

        Of queues in `from_offsets` only those from this offset on. The first `messages_max` of each queue are
        looked at. Raises NoRoute.
        """
        froms = from_offsets or {}
        route = await self._servers.route(topic)

        async def ask(queue: MessageQueue) -> list[ReceivedMessage]:
            search = SearchOffsetByTimestamp(topic, queue.queue_id, begin_ms)
            found = await self._servers.ask(route.address(queue.broker_name) or "", search)
            first = max(found, froms.get(queue, 0))
            return await self._read(route, queue, first, messages_max, end_ms=end_ms, expression=expression)

        return await self._collect(route.queues(), ask, messages_max)

    async def since(
        self, topic: str, offsets: Mapping[MessageQueue, int], *, messages_max: int = MESSAGES_MAX
    ) -> Found:
        """The messages of some queues of a topic from offsets on, oldest first. Raises NoRoute.

        The first `messages_max` of each queue are looked at.
        """
        route = await self._servers.route(topic)

        async def ask(queue: MessageQueue) -> list[ReceivedMessage]:
            return await self._read(route, queue, offsets[queue], messages_max)

        return await self._collect(offsets, ask, messages_max)

    async def newest(
        self,
        topic: str,
        *,
        before: Mapping[MessageQueue, int] | None = None,
        is_wanted: Callable[[ReceivedMessage], bool] = lambda message: True,
        since_ms: int = 0,
        messages_max: int = PLAIN_MESSAGES,
        scanned_max: int = SCANNED_MAX,
    ) -> MessagePage:
        """The messages before some offsets, or the last ones, of all queues together, newest first.

        Ends at the first message stored before `since_ms`. Raises NoRoute.
        """
        route = await self._servers.route(topic)
        queues = [queue for queue in route.queues() if before is None or queue in before]
        ends = before or {}

        async def open_queue(queue: MessageQueue) -> _BackwardReader:
            address = route.address(queue.broker_name) or ""
            begin = await self._servers.ask(address, GetMinOffset(topic, queue.queue_id))
            end = ends.get(queue)
            if end is None:
                end = await self._servers.ask(address, GetMaxOffset(topic, queue.queue_id))
            reader = _BackwardReader(self, address, queue, begin, end)
            await reader.fill()
            return reader

        readers: list[_BackwardReader] = []
        failures: dict[str, RocketMQError] = {}
        for queue, opened in zip(queues, await at_once(open_queue, queues), strict=True):
            if isinstance(opened, RocketMQError):
                failures[queue.broker_name] = opened
            else:
                readers.append(opened)
        if failures and not readers:
            raise next(iter(failures.values()))
        found: list[ReceivedMessage] = []
        scanned = 0
        while len(found) < messages_max and scanned < scanned_max:
            newest = max((reader for reader in readers if reader.held), key=_BackwardReader.key, default=None)
            if newest is None or newest.held[-1].store_timestamp < since_ms:
                return MessagePage(tuple(found), scanned, None, failures)
            message = await newest.take()
            scanned += 1
            if is_wanted(message):
                found.append(message)
        is_end = not any(reader.held for reader in readers)
        next_before = None if is_end else {reader.queue: reader.position for reader in readers}
        return MessagePage(tuple(found), scanned, next_before, failures)

    async def _collect(
        self,
        queues: Iterable[MessageQueue],
        ask: Callable[[MessageQueue], Awaitable[list[ReceivedMessage]]],
        messages_max: int,
    ) -> Found:
        queues = list(queues)
        failures: dict[str, RocketMQError] = {}
        found: list[ReceivedMessage] = []
        for queue, part in zip(queues, await at_once(ask, queues), strict=True):
            if isinstance(part, RocketMQError):
                failures[queue.broker_name] = part
            else:
                found += part
        if failures and not found:
            raise next(iter(failures.values()))
        found.sort(key=lambda message: (message.store_timestamp, message.queue, message.queue_offset))
        return Found(tuple(found[:messages_max]), failures)

    async def _read(
        self,
        route: Route,
        queue: MessageQueue,
        queue_offset: int,
        messages_max: int,
        *,
        end_ms: int = FOREVER_MS,
        expression: str = MATCH_ALL,
    ) -> list[ReceivedMessage]:
        address = route.address(queue.broker_name) or ""
        end = await self._servers.ask(address, GetMaxOffset(queue.topic, queue.queue_id))
        found: list[ReceivedMessage] = []
        while queue_offset < end and len(found) < messages_max:
            result = await self._pull(address, queue, queue_offset, PLAIN_MESSAGES, expression)
            messages = _tagged(_messages(queue, result), expression)
            inside = [message for message in messages if message.store_timestamp < end_ms]
            found += inside
            if len(inside) < len(messages) or result.reply.next_begin_offset <= queue_offset:
                break
            queue_offset = result.reply.next_begin_offset
        return found[:messages_max]

    async def _pull(
        self, address: str, queue: MessageQueue, queue_offset: int, messages_max: int, expression: str
    ) -> PullResult:
        request = PullMessage.plain(queue, queue_offset, messages_max=messages_max, expression=expression)
        return await self._servers.ask(address, request)

    async def units(
        self, queue: MessageQueue, queue_offset: int, count: int = PLAIN_MESSAGES, *, group: str | None = None
    ) -> ConsumeQueueUnits:
        """Entries of a consume queue: physical offsets, sizes, tag hashes. Raises BrokerError."""
        request = QueryConsumeQueue(queue.topic, queue.queue_id, queue_offset, count, group)
        return await self._servers.ask(await self._servers.address_of(queue), request)

    # --- State for groups ---

    async def track(self, message: ReceivedMessage) -> list[Track]:
        """The state of a message for each group that consumes its topic. Raises NoRoute."""
        request = QueryTopicConsumeByWho(message.topic)
        address = await self._servers.address_of(message.queue)
        groups = (await self._servers.ask(address, request)).group_list

        async def ask(group: str) -> Track:
            try:
                return Track(group, await self._state(message, group))
            except RocketMQError as error:
                return Track(group, TrackState.UNKNOWN, error)

        names = sorted(groups)
        return list(whole(dict(zip(names, await at_once(ask, names), strict=True))).values())

    async def _state(self, message: ReceivedMessage, group: str) -> TrackState:
        try:
            consumers = await self._clients.consumers(group)
        except BrokerError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                is_past = await self._is_past(message, group)
                return TrackState.PASSED if is_past else TrackState.NOT_ONLINE
            raise
        if consumers.message_model == "BROADCASTING":
            return TrackState.BROADCAST
        if consumers.consume_type == "CONSUME_ACTIVELY":
            return TrackState.PULLS
        if not await self._is_past(message, group):
            return TrackState.NOT_YET
        return TrackState.CONSUMED if is_wanted(consumers, message) else TrackState.FILTERED

    async def _is_past(self, message: ReceivedMessage, group: str) -> bool:
        """Whether the committed offset of a group is past a message."""
        progress = await self._groups.progress(group, message.topic)
        return any(
            part.queue == message.queue and part.committed > message.queue_offset for part in progress.queues
        )

    async def resume_check(self, message: ReceivedMessage) -> None:
        """Resume checks of a half message whose checks were exhausted. Raises BrokerError."""
        request = ResumeCheckHalfMessage(msg_id=message.offset_message_id, topic=message.topic)
        await self._servers.ask(await self._servers.address_of(message.queue), request)


class _BackwardReader:
    """The messages of one queue from its end to its begin. `held` is in ascending order."""

    def __init__(
        self, messages: AsyncMessages, address: str, queue: MessageQueue, begin: int, end: int
    ) -> None:
        self._messages = messages
        self._address = address
        self.queue = queue
        self._begin = begin
        self._unread = end
        self.position = end
        self.held: list[ReceivedMessage] = []

    def key(self) -> tuple[int, int, MessageQueue]:
        """Messages of the same millisecond have the order of their broker's log."""
        last = self.held[-1]
        return last.store_timestamp, last.physical_offset, last.queue

    async def take(self) -> ReceivedMessage:
        message = self.held.pop()
        self.position = message.queue_offset
        if not self.held:
            await self.fill()
        return message

    async def fill(self) -> None:
        """Read the messages before those that were read; a range may hold none."""
        while not self.held and self._unread > self._begin:
            start, stop = max(self._begin, self._unread - PLAIN_MESSAGES), self._unread
            at = start
            while at < stop:
                result = await self._messages._pull(self._address, self.queue, at, stop - at, MATCH_ALL)
                read = _messages(self.queue, result)
                self.held += [message for message in read if message.queue_offset < stop]
                after = read[-1].queue_offset + 1 if read else result.reply.next_begin_offset
                if after <= at:
                    break
                at = after
            self._unread = start


def _decode(records: Buffer, broker_name: str) -> list[ReceivedMessage]:
    """Messages of any queues of one broker."""
    data = bytes(records)
    messages: list[ReceivedMessage] = []
    position = 0
    while position < len(data):
        parts = split(data, position)
        queue = MessageQueue(parts.topic.decode(errors="replace"), broker_name, parts.head[3])
        messages += decode_pull(data[position : position + parts.head[0]], queue)
        position += parts.head[0]
    return messages


def _messages(queue: MessageQueue, result: PullResult) -> list[ReceivedMessage]:
    if result.code != ResponseCode.SUCCESS:
        return []
    reply = result.reply
    messages = decode_pull(
        result.records,
        queue,
        min_offset=reply.min_offset,
        max_offset=reply.max_offset,
        offset_delta=reply.offset_delta or 0,
    )
    return list(messages)


def _tagged(messages: Iterable[ReceivedMessage], expression: str) -> list[ReceivedMessage]:
    """Brokers know only hashes of tags."""
    tags = split_tags(expression)
    return [message for message in messages if tags is None or message.tags in tags]


def is_wanted(consumers: ConnectedConsumers, message: ReceivedMessage) -> bool:
    """Whether a message matches the subscription of a group; true if that cannot be told."""
    subscription = consumers.subscriptions.get(message.topic)
    if subscription is None:
        return True
    if subscription.expression_type in (None, "TAG"):
        tags = subscription.tags_set
        return not tags or MATCH_ALL in tags or message.tags in tags
    try:
        return compile_selector(subscription.sub_string or "").matches(message.properties)
    except BadSelector:
        return True
