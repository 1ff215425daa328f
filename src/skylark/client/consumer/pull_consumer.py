"""PullConsumer: messages are asked for instead of being delivered. Asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from skylark.client.consumer import start_offsets
from skylark.client.consumer.allocation_strategies import Strategy, strategy_named
from skylark.client.consumer.broker_requests import PullBrokerRequests
from skylark.client.consumer.fetcher import Pulled, Puller, PullFetcher
from skylark.client.consumer.offset_commits import OffsetCommits
from skylark.client.consumer.offset_store import (
    BrokerOffsetStore,
    LocalOffsetStore,
    OffsetStore,
    local_offsets_path,
)
from skylark.client.consumer.process_queue import PulledBatch, PulledQueue
from skylark.client.consumer.rebalancer import PullRebalancer, QueueWatch, check_expression
from skylark.client.consumer.start_offsets import StartOffsets
from skylark.client.consumer.subscription import TopicSubscription, by_sql, by_tags
from skylark.client.namespace import with_namespace, without_namespace
from skylark.client.producer.message_encoder import check_group
from skylark.client.received_message import ReceivedMessage
from skylark.client.session.session import Session, join
from skylark.clock import Clock, SystemClock
from skylark.errors import AlreadyStarted, ClientClosed, ClientError
from skylark.model.tag_expression import MATCH_ALL
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import (
    OFFSET_DIRECTORY,
    ClientSettings,
    MessageModel,
    PullConsumerSettings,
    consume_timestamp_ms,
    name_server_list,
)
from skylark.tasks import Tasks

HALF_AN_HOUR_MS = 1_800_000
EXCLUSIVE = "Subscribe and assign are mutually exclusive."
NOT_ASSIGNED = "The message queue is not in assigned list, may be rebalancing, message queue"
FindOffset = Callable[[Session, MessageQueue], Awaitable[int]]
QueuesChanged = Callable[[str, list[MessageQueue]], None]


class AsyncPullConsumer:
    """Fetches messages ahead and hands them out when asked. For one event loop.

    >>> async with PullConsumer("billing", namesrv="127.0.0.1:9876") as consumer:
    ...     consumer.subscribe("orders", "created || paid")
    ...     async for message in consumer:
    ...         print(message.body)

    Either `subscribe` topics, whose queues the members of the group share, or `assign` queues. A message
    counts as done when the next is asked for, and what is done is committed every few seconds, unless
    `auto_commit` is off; `commit` commits at once all that was handed out. Without a position of its own a
    group begins as `consume_from` says.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = "",
        settings: PullConsumerSettings | None = None,
        client: ClientSettings | None = None,
        strategy: str | Strategy = "AVG",
        clock: Clock | None = None,
    ) -> None:
        """Raises BadName, SettingsError. Nothing is connected yet."""
        check_group(group)
        self.settings = settings or PullConsumerSettings()
        self._client = client or ClientSettings()
        self._name_servers = name_server_list(namesrv, self._client)
        self._group = with_namespace(self._client.namespace, group)
        self._strategy = strategy_named(strategy) if isinstance(strategy, str) else strategy
        self._clock = clock or SystemClock()
        self._made_ms = self._clock.now_ms()
        self._state = "CREATE_JUST"
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._assigned: set[MessageQueue] | None = None
        self._assigned_expression: dict[str, TopicSubscription] = {}
        self._watch = QueueWatch()
        self._current: tuple[PulledBatch, int] | None = (
            None  # a batch that is iterated over, and what comes next
        )
        self._membership = PullBrokerRequests(self)
        self._tasks = Tasks()
        self._session: Session | None = None
        self._offsets: OffsetStore | None = None
        self._commits: OffsetCommits | None = None
        self._puller: Puller | None = None
        self._fetcher: PullFetcher | None = None
        self._sharing: PullRebalancer | None = None

    # --- Life ---

    async def start(self) -> Self:
        """Raises AlreadyStarted, GroupInUse, BrokerError 23 for an SQL92 expression that a broker refuses,
        BadStoreFile for a broadcasting member's offset file.
        """
        if self._state != "CREATE_JUST":
            raise AlreadyStarted("AsyncPullConsumer", self._state)
        self._state = "START_FAILED"
        settings, broadcasting = self.settings, self.settings.model is MessageModel.BROADCASTING
        session = self._session = await join(
            self._membership, self._client, self._name_servers, keep_default_name=broadcasting, is_stream=True
        )
        try:
            self._offsets = self._offset_store(session)
            await self._offsets.load()
            for wanted in self._subscriptions.values():
                await check_expression(session, self._group, wanted)
        except BaseException:
            await session.leave(self._membership)
            raise
        timestamp_ms = self._made_ms - HALF_AN_HOUR_MS
        if settings.consume_timestamp:
            timestamp_ms = consume_timestamp_ms(settings.consume_timestamp)
        self._commits = OffsetCommits(session, self._group, self._offsets, settings.commit_timeout_ms)
        starts = StartOffsets(session, self._offsets, settings.consume_from, timestamp_ms)
        self._puller = Puller(session, self._group)
        self._fetcher = PullFetcher(
            self._puller, settings, subscription_of=self._subscription_of, start_of=starts.find
        )
        self._sharing = PullRebalancer(session, self._group, settings, self._strategy, self)
        self._state = "RUNNING"
        self._tasks.spawn(self._sharing.run(), "share queues")
        if settings.auto_commit:
            self._tasks.every(settings.auto_commit_interval_ms, self._commit_done, "commit")
        self._tasks.every(
            settings.queues_check_interval_ms, lambda: self._watch.look(session), "look for other queues"
        )
        self._look_again()
        return self

    def _offset_store(self, session: Session) -> OffsetStore:
        settings = self.settings
        if settings.model is MessageModel.CLUSTERING:
            return BrokerOffsetStore(session, self._group, settings.offset_timeout_ms)
        directory = settings.offset_directory or Path.home() / OFFSET_DIRECTORY
        return LocalOffsetStore(local_offsets_path(directory, session.client_id, self._group))

    async def stop(self) -> None:
        """Let commits that are under way end, commit what is done (with `auto_commit`), leave, close.

        Twice is once.
        """
        if self._state != "RUNNING":
            return
        self._state = "SHUTDOWN_ALREADY"
        session, fetcher = self._running_session(), self._fetcher
        assert fetcher is not None
        async with contextlib.AsyncExitStack() as then:  # the last first, also after a cancellation
            then.push_async_callback(session.leave, self._membership)
            if self.settings.auto_commit:
                then.push_async_callback(self._commit_done)
            then.push_async_callback(fetcher.close)
            then.push_async_callback(self._tasks.close)
            await self._running_commits().settle()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _running_session(self) -> Session:
        if self._session is None:
            raise ClientClosed(f"pull consumer {self._group}")
        return self._session

    def _running(self) -> PullFetcher:
        """Raises ClientClosed."""
        if self._state != "RUNNING" or self._fetcher is None:
            raise ClientClosed(f"pull consumer {self._group}")
        return self._fetcher

    # --- Which queues ---

    def subscribe(self, topic: str, expression: str = MATCH_ALL, *, sql: str | None = None) -> None:
        """Consume a topic with the other members of the group: by tags, or by an SQL92 condition.

        Before or after the start. Raises ClientError beside `assign`, SettingsError for a bad expression.
        """
        if self._assigned is not None:
            raise ClientError(EXCLUSIVE)
        self._subscriptions[self._wire(topic)] = self._subscription(topic, expression, sql)
        self._look_again()

    def unsubscribe(self, topic: str) -> None:
        """Give a topic up. One that is not subscribed is left alone."""
        self._subscriptions.pop(self._wire(topic), None)
        self._look_again()

    def assign(
        self, queues: Collection[MessageQueue], expression: str = MATCH_ALL, *, sql: str | None = None
    ) -> None:
        """Consume these queues and no others, whoever else does. Replaces what was assigned before.

        Before or after the start. Raises ClientError beside `subscribe`, SettingsError for a bad expression.
        """
        if self._subscriptions:
            raise ClientError(EXCLUSIVE)
        topics = {queue.topic for queue in queues}
        self._assigned_expression = {topic: self._subscription(topic, expression, sql) for topic in topics}
        self._assigned = set(queues)
        self._look_again()

    def assignment(self) -> list[MessageQueue]:
        """The queues that are fetched now, sorted."""
        return sorted(self._running().held)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that can be read. Raises NoRoute, RemotingError."""
        self._running()
        return sorted((await self._running_session().refresh_route(self._wire(topic))).read_queues)

    def on_queues_changed(self, topic: str, listener: QueuesChanged) -> None:
        """Have a function called with a topic and its queues when there are others; looked at every 30 s."""
        self._watch.add(self._wire(topic), lambda queues: listener(topic, queues))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these queues, fetch no more, until `resume`. Raises ClientError for others."""
        for held in self._held(queues):
            self._running().set_paused(held, True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Undo `pause`. Raises ClientError for queues that are not assigned."""
        for held in self._held(queues):
            self._running().set_paused(held, False)

    def _held(self, queues: Iterable[MessageQueue]) -> list[PulledQueue]:
        held = self._running().held
        for queue in queues:
            if queue not in held:
                raise ClientError(f"{NOT_ASSIGNED}: {queue}")
        return [held[queue] for queue in queues]

    # --- Messages ---

    async def poll(self, timeout_ms: float | None = None) -> list[ReceivedMessage]:
        """The next messages, of one queue; none if none come in time. What was handed out before is now done.

        So one reader at a time: several that share a consumer commit for themselves. Raises ClientClosed.
        """
        current, self._current = self._current, None
        if current is not None and not current[0].is_void:
            batch, index = current
            batch.held.hand_out(batch, index)
            batch.held.hand_out_all(batch)
            return list(batch.messages[index:])
        wait_ms = self.settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        found = await self.take_batch(wait_ms)
        if found is None:
            return []
        found.held.hand_out_all(found)
        return list(found.messages)

    async def take_batch(self, timeout_ms: float | None) -> PulledBatch | None:
        """Take messages without handing them out: for those who do that one by one, see `hand_out`."""
        fetcher = self._running()
        batch = await fetcher.take(None if timeout_ms is None else timeout_ms / 1000)
        for message in batch.messages if batch is not None else ():
            message.topic = without_namespace(self._client.namespace, message.topic)
        return batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message, whenever it comes; the end when the consumer is stopped."""
        current = self._current
        if current is None or current[0].is_void:
            try:
                taken = await self.take_batch(None)
            except ClientClosed:
                taken = None
            if taken is None:
                raise StopAsyncIteration
            current = (taken, 0)
        batch, index = current
        batch.held.hand_out(batch, index)
        self._current = (batch, index + 1) if index + 1 < len(batch.messages) else None
        return batch.messages[index]

    async def pull(
        self,
        queue: MessageQueue,
        expression: str,
        queue_offset: int,
        messages_max: int,
        *,
        hold: bool = False,
    ) -> Pulled:
        """Ask for messages of any queue once; nothing is remembered. With `hold`, the broker waits for some.

        Raises ClientError for arguments that cannot be, BrokerError, RemotingError.
        """
        self._running()
        if queue_offset < 0:
            raise ClientError(f"offset < 0: {queue_offset} is before every message of {queue}")
        if messages_max <= 0:
            raise ClientError(f"maxNums <= 0: {messages_max} messages cannot be asked for")
        assert self._puller is not None
        settings = self.settings
        return await self._puller.pull(
            queue,
            by_tags(queue.topic, expression, now_ms=self._clock.now_ms()),
            queue_offset,
            messages_max,
            hold_ms=settings.hold_ms,
            timeout_ms=settings.pull_timeout_ms if hold else settings.plain_pull_timeout_ms,
            hold=hold,
            lite=False,
        )

    # --- Where ---

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on at an offset. Raises ClientError for one outside, or a queue not assigned; RemotingError."""
        [held] = self._held([queue])
        session = self._running_session()
        begin, end = await asyncio.gather(
            start_offsets.min_offset(session, queue), start_offsets.max_offset(session, queue)
        )
        if not begin <= queue_offset <= end:
            raise ClientError(
                f"Seek offset illegal, seek offset = {queue_offset}, min offset = {begin}, max offset = {end}"
            )
        self._go_to(held, queue_offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with the first message that is still there. Raises ClientError, RemotingError."""
        await self._seek(queue, start_offsets.min_offset)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message that will come. Raises ClientError, RemotingError."""
        await self._seek(queue, start_offsets.max_offset)

    async def seek_to_time(self, queue: MessageQueue, time_ms: int) -> None:
        """Go on with the first message stored at a time or later. Raises ClientError, RemotingError."""
        await self._seek(queue, lambda session, queue: start_offsets.offset_at(session, queue, time_ms))

    async def _seek(self, queue: MessageQueue, find: FindOffset) -> None:
        [held] = self._held([queue])
        self._go_to(held, await find(self._running_session(), queue))

    def _go_to(self, held: PulledQueue, queue_offset: int) -> None:
        fetcher = self._running()
        if fetcher.held.get(held.queue) is held:
            fetcher.seek(held, queue_offset)

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message stored at a time or later. Raises RemotingError, BrokerError."""
        self._running()
        return await start_offsets.offset_at(self._running_session(), queue, time_ms)

    def positions(self) -> dict[MessageQueue, int | None]:
        """The next offset to be handed out, by queue; None while it is not known where to begin."""
        return {queue: held.position for queue, held in self._running().held.items()}

    async def committed(self, queue: MessageQueue) -> int | None:
        """What the group has committed in a queue, None if nothing. Raises RemotingError, BrokerError."""
        self._running()
        assert self._offsets is not None
        return await self._offsets.read(queue)

    async def lag(self) -> dict[MessageQueue, int]:
        """How many messages wait behind the position, by queue. Raises RemotingError, BrokerError."""
        positions = {queue: at for queue, at in self.positions().items() if at is not None}
        session = self._running_session()
        ends = await asyncio.gather(*(start_offsets.max_offset(session, queue) for queue in positions))
        return {queue: max(end - at, 0) for (queue, at), end in zip(positions.items(), ends, strict=True)}

    # --- Committing ---

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True) -> None:
        """Commit all that was handed out, or these offsets (each the next one to be consumed).

        With `wait`, return when brokers have said that they have it; else they are told and not waited for.
        Raises BrokerError, RemotingError.
        """
        held = self._running().held
        if offsets is None:
            offsets = {queue: part.position for queue, part in held.items() if part.position is not None}
        for queue, queue_offset in offsets.items():
            if queue in held and held[queue].position == queue_offset:
                held[queue].finish()
        commits = self._running_commits()
        await asyncio.gather(*(commits.commit(queue, offsets[queue], wait=wait) for queue in offsets))

    async def _commit_done(self) -> None:
        """Commit what is done and was not committed yet. Failures are logged: the next turn tries again."""
        commits = self._running_commits()
        await commits.commit_given_up()
        await commits.commit_done(list(self.held.values()))

    def _running_commits(self) -> OffsetCommits:
        assert self._commits is not None
        return self._commits

    # --- For the parts of the consumer ---

    @property
    def group(self) -> str:
        """The group as brokers know it."""
        return self._group

    @property
    def client_id(self) -> str:
        """As brokers know it. Raises ClientClosed before the start."""
        return self._running_session().client_id

    @property
    def subscriptions(self) -> Mapping[str, TopicSubscription]:
        """What is subscribed, by topic as brokers know it."""
        return self._subscriptions

    @property
    def assigned(self) -> Collection[MessageQueue]:
        """What was assigned by hand."""
        return self._assigned or ()

    @property
    def name_servers(self) -> tuple[str, ...]:
        return self._name_servers

    @property
    def held(self) -> Mapping[MessageQueue, PulledQueue]:
        """The state of each queue that is fetched."""
        return self._fetcher.held if self._fetcher is not None else {}

    def look_again(self) -> None:
        """Members or queues may have changed."""
        if self._sharing is not None:
            self._sharing.wake()

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go where a broker says, and commit it, so that the next member begins there, too."""
        for queue, queue_offset in offsets.items():
            held = self._running().held.get(queue)
            if held is not None:
                self._go_to(held, queue_offset)
                await self._running_commits().commit(queue, queue_offset, wait=True)

    async def hold(self, queues: Collection[MessageQueue]) -> None:
        """Fetch these queues; what is done of others is committed before they are forgotten."""
        self._hold(queues)
        await self._running_commits().commit_given_up()

    def _hold(self, queues: Collection[MessageQueue]) -> None:
        given_up = self._running().hold(queues)
        if self.settings.auto_commit:
            self._running_commits().give_up(given_up)

    def _look_again(self) -> None:
        """What is subscribed or assigned has changed."""
        if self._state != "RUNNING":
            return
        assert self._sharing is not None
        if self._assigned is not None:
            self._hold(self._assigned)
            self._tasks.spawn(self._running_commits().commit_given_up(), "give up queues")
        else:
            self._tasks.spawn(self._running_session().heartbeat(), "tell what is subscribed")
            self._sharing.wake()

    def _wire(self, topic: str) -> str:
        return with_namespace(self._client.namespace, topic)

    def _subscription(self, topic: str, expression: str, sql: str | None) -> TopicSubscription:
        wire_topic, now_ms = self._wire(topic), self._clock.now_ms()
        if sql is not None:
            return by_sql(wire_topic, sql, now_ms=now_ms)
        return by_tags(wire_topic, expression, now_ms=now_ms)

    def _subscription_of(self, topic: str) -> TopicSubscription:
        known = self._subscriptions.get(topic) or self._assigned_expression.get(topic)
        return known or by_tags(topic, MATCH_ALL, now_ms=self._made_ms)
