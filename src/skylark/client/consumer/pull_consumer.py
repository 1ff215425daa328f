"""Pull consumers: `AsyncPullConsumer` (`skylark.aio.PullConsumer`) and the blocking `PullConsumer`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from skylark.client.blocking_client import BlockingClient, blocking, on_loop
from skylark.client.callback import check_callback
from skylark.client.consumer import start_offsets
from skylark.client.consumer.allocation_strategies import Strategy
from skylark.client.consumer.broker_requests import BrokerRequests, common_properties
from skylark.client.consumer.fetcher import Fetcher, FetchOptions, Pulled, PullFetchLoop, message_rows
from skylark.client.consumer.group_consumer import GroupConsumer
from skylark.client.consumer.offset_store import OffsetCommits, OffsetStore, open_offset_store
from skylark.client.consumer.process_queue import MEBIBYTE, PulledBatch, PulledQueue
from skylark.client.consumer.rebalancer import PullQueues, QueueWatch, Rebalancer, check_expression
from skylark.client.consumer.start_offsets import StartOffsets
from skylark.client.consumer.subscription import TopicSubscription, by_tags
from skylark.client.namespace import without_namespace
from skylark.client.received_message import ReceivedMessage
from skylark.client.session.session import Session, join
from skylark.clock import Clock
from skylark.errors import AlreadyStarted, ClientClosed, ClientError, RocketMQError, SettingsError
from skylark.model.tag_expression import MATCH_ALL
from skylark.protocol.bodies import ConsumerRunningInfo, MessageQueue, ProcessQueueInfo
from skylark.settings.client import ClientSettings, MessageModel, PullConsumerSettings
from skylark.tasks import Tasks

if TYPE_CHECKING:
    import pyarrow as pa

    from skylark.arrow.decoder import Decoder

EXCLUSIVE = "Subscribe and assign are mutually exclusive."
NOT_ASSIGNED = "The message queue is not in assigned list, may be rebalancing, message queue"
FindOffset = Callable[[Session, MessageQueue], Awaitable[int]]
QueuesChanged = Callable[[str, list[MessageQueue]], None]


def _record_rows() -> ModuleType:
    """Raises SettingsError without pyarrow."""
    try:
        from skylark.client.consumer import record_rows  # noqa: PLC0415  needs pyarrow, an optional package
    except ImportError as error:
        raise SettingsError("poll_arrow", f"{error}; run: pip install 'skylarkmq[arrow]'") from error
    return record_rows


class AsyncPullConsumer(GroupConsumer[PullConsumerSettings]):
    """`skylark.aio.PullConsumer`: fetches messages ahead and returns them on demand. For one event loop.

    >>> async with PullConsumer("billing", namesrv="127.0.0.1:9876") as consumer:
    ...     consumer.subscribe("orders", "created || paid")
    ...     async for message in consumer:
    ...         print(message.body)

    Either `subscribe` topics, whose queues the members of the group share, or `assign` queues. A message is
    done when the next one is requested; finished messages are committed every few seconds, unless
    `auto_commit` is off. `commit` commits everything handed out at once. A group without committed offsets
    starts as `consume_from` says.
    """

    consume_type: ClassVar[str] = "CONSUME_ACTIVELY"

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
        """Nothing is connected yet. Raises BadName, SettingsError."""
        super().__init__(group, namesrv, settings or PullConsumerSettings(), client, strategy, clock)
        self._assigned: set[MessageQueue] | None = None
        self._assigned_expression: dict[str, TopicSubscription] = {}
        self._watch = QueueWatch()
        self._current: tuple[PulledBatch, int] | None = None  # the batch being iterated, and the next index
        self._current_rows: tuple[PulledBatch, int] | None = None  # the same for Arrow rows
        self._decoder: tuple[object, Decoder] | None = None  # of the last `poll_arrow`, and its arguments
        self._tasks = Tasks()
        self._session: Session | None = None
        self._offsets: OffsetStore | None = None
        self._commits: OffsetCommits | None = None
        self._fetcher: Fetcher | None = None
        self._fetch_loop: PullFetchLoop | None = None
        self._rebalancer: Rebalancer | None = None

    # --- Lifecycle ---

    async def start(self) -> Self:
        """Raises AlreadyStarted, GroupInUse, BrokerError 23 for an SQL92 expression that a broker refuses,
        BadStoreFile for an unreadable offset file (broadcasting).
        """
        if self._state != "CREATE_JUST":
            raise AlreadyStarted("PullConsumer", self._state)
        self._state = "START_FAILED"
        settings, broadcasting = self.settings, self.settings.model is MessageModel.BROADCASTING
        session = self._session = await join(
            self, self._client, self._name_servers, keep_default_name=broadcasting, is_stream=True
        )
        try:
            self._offsets = open_offset_store(session, self._group, settings)
            await self._offsets.load()
            for wanted in self._subscriptions.values():
                await check_expression(session, self._group, wanted)
        except BaseException:
            await session.leave(self)
            raise
        self._commits = OffsetCommits(session, self._group, self._offsets, settings.commit_timeout_ms)
        starts = StartOffsets(session, self._offsets, settings.consume_from, self._timestamp_ms)
        self._fetcher = Fetcher(session, self._group)
        self._fetch_loop = PullFetchLoop(
            self._fetcher, settings, subscription_of=self._subscription_of, start_of=starts.find
        )
        queues = PullQueues(session, self._group, self._subscriptions, self._hold_subscribed)
        rebalancer = self._rebalancer = Rebalancer(session, self._group, settings, self._strategy, queues)
        self._broker_requests = BrokerRequests(self)
        self._state = "RUNNING"
        self._tasks.spawn(rebalancer.run(), "rebalance")
        if settings.auto_commit:
            self._tasks.every(settings.auto_commit_interval_ms, self._commit_done, "commit")
        self._tasks.every(
            settings.queues_check_interval_ms, lambda: self._watch.check(session), "check for changed queues"
        )
        self._subscriptions_changed()
        return self

    async def stop(self) -> None:
        """Wait for commits in flight, commit finished messages (with `auto_commit`), and unregister.

        Does nothing unless the consumer runs.
        """
        if self._state != "RUNNING":
            return
        self._state = "SHUTDOWN_ALREADY"
        session, fetch_loop = self._running_session(), self._fetch_loop
        assert fetch_loop is not None
        async with contextlib.AsyncExitStack() as then:  # runs in reverse order, also after a cancellation
            then.push_async_callback(session.leave, self)
            if self.settings.auto_commit:
                then.push_async_callback(self._commit_done)
            then.push_async_callback(fetch_loop.close)
            then.push_async_callback(self._tasks.close)
            await self._running_commits().settle()

    def _running_session(self) -> Session:
        if self._session is None:
            raise ClientClosed(f"pull consumer {self._group}")
        return self._session

    def _running(self) -> PullFetchLoop:
        """Raises ClientClosed."""
        if self._state != "RUNNING" or self._fetch_loop is None:
            raise ClientClosed(f"pull consumer {self._group}")
        return self._fetch_loop

    # --- Queues ---

    def subscribe(self, topic: str, expression: str = MATCH_ALL, *, sql: str | None = None) -> None:
        """Consume a topic together with the other members of the group, by tags or an SQL92 condition.

        Before or after the start. Raises ClientError after `assign`, SettingsError for an invalid expression.
        """
        if self._assigned is not None:
            raise ClientError(EXCLUSIVE)
        self._subscriptions[self._wire(topic)] = self._subscription(topic, expression, sql)
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic, if it is subscribed."""
        self._subscriptions.pop(self._wire(topic), None)
        self._subscriptions_changed()

    def assign(
        self, queues: Collection[MessageQueue], expression: str = MATCH_ALL, *, sql: str | None = None
    ) -> None:
        """Consume exactly these queues, regardless of other members. Replaces an earlier assignment.

        Before or after the start. Raises ClientError after `subscribe`, SettingsError for an invalid
        expression.
        """
        if self._subscriptions:
            raise ClientError(EXCLUSIVE)
        topics = {queue.topic for queue in queues}
        self._assigned_expression = {topic: self._subscription(topic, expression, sql) for topic in topics}
        self._assigned = set(queues)
        self._subscriptions_changed()

    def assignment(self) -> list[MessageQueue]:
        """Return the fetched queues, sorted."""
        return sorted(self._running().held)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of a topic. Raises NoRoute, RemotingError."""
        self._running()
        return sorted((await self._running_session().refresh_route(self._wire(topic))).read_queues)

    def on_queues_changed(self, topic: str, listener: QueuesChanged) -> None:
        """Call a function with a topic and its queues when they change; checked every 30 s.

        It is called on the loop and must not block. Raises SettingsError for other parameters.
        """
        check_callback("on_queues_changed", listener, "topic", "queues")
        self._watch.add(self._wire(topic), lambda queues: listener(topic, queues))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop fetching and handing out these queues until `resume`.

        Raises ClientError for unassigned queues.
        """
        for held in self._held(queues):
            self._running().set_paused(held, True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Undo `pause`. Raises ClientError for unassigned queues."""
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
        """Return the next messages, of one queue; none at the timeout. Messages handed out before are done.

        Use one reader at a time, or commit explicitly. Raises ClientClosed.
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
        """Take a batch without handing it out; the caller does that message by message (`hand_out`)."""
        fetcher = self._running()
        fetcher.decode_as(message_rows, self.settings.pull_batch_max)
        batch = await fetcher.take(None if timeout_ms is None else timeout_ms / 1000)
        namespace = self._client.namespace
        if namespace and batch is not None:
            for message in batch.messages:
                message.topic = without_namespace(namespace, message.topic)
        return batch

    async def poll_arrow(
        self,
        max_rows: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        json: Any = None,
        check_crc: bool = False,
        timeout_ms: float | None = None,
    ) -> pa.RecordBatch:
        """As `poll`, but return a `pyarrow.RecordBatch`: the next rows of one queue; no row at the timeout.

        Rows are decoded by columns, many times faster than messages. `columns` are those of Spark's source;
        `json`, an Arrow schema, decodes JSON bodies to the column `value`, null where a body does not fit.
        Commit, seek and pause work as with `poll`; changing between the two fetches queues again from their
        positions.

        Needs the extra `skylarkmq[arrow]`. Raises ClientClosed, SettingsError, CorruptRecord.
        """
        if max_rows is not None and max_rows < 1:
            raise SettingsError("max_rows", f"must be at least 1, not {max_rows}")
        wait_ms = self.settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        decoder = self._arrow_decoder(columns, json, check_crc)
        found = await self._next_rows(decoder, max_rows, wait_ms)
        return decoder.empty if found is None else found

    async def arrow(
        self,
        max_rows: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        json: Any = None,
        check_crc: bool = False,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over batches as `poll_arrow` returns them, until the consumer is stopped."""
        decoder = self._arrow_decoder(columns, json, check_crc)
        while (batch := await self._next_rows(decoder, max_rows, None)) is not None:
            yield batch

    def _arrow_decoder(self, columns: Sequence[str] | None, json: Any, check_crc: bool) -> Decoder:
        """Return a decoder, the same one for the same question. Raises SettingsError."""
        asked = (None if columns is None else tuple(columns), json, check_crc)
        if self._decoder is None or self._decoder[0] != asked:
            rows = _record_rows()
            self._decoder = asked, rows.make_decoder(columns or rows.COLUMNS, json, check_crc=check_crc)
        return self._decoder[1]

    async def _next_rows(
        self, decoder: Decoder, max_rows: int | None, timeout_ms: float | None
    ) -> pa.RecordBatch | None:
        rows = _record_rows()
        fetch_loop = self._running()
        fetch_loop.decode_as(rows.record_rows, rows.ROWS_PER_PULL, units=True)
        current, self._current_rows = self._current_rows, None
        if current is None or current[0].is_void:
            taken = await fetch_loop.take(None if timeout_ms is None else timeout_ms / 1000)
            if taken is None:
                return None
            current = taken, 0
        taken, start = current
        held, found = taken.held, taken.rows
        assert isinstance(found, rows.RecordRows)
        topic = without_namespace(self._client.namespace, held.queue.topic)
        stop = len(found) if max_rows is None else min(start + max_rows, len(found))
        try:
            batch = found.batch(decoder, topic)
        except RocketMQError:
            self._current_rows = current  # nothing was handed out: the next call meets it again
            raise
        held.hand_out_rows(taken, start, stop)
        if stop < len(found):
            self._current_rows = taken, stop
        return batch.slice(start, stop - start)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Return the next message, waiting for it; stops when the consumer is stopped."""
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
        """Pull messages of any queue once, without state. With `hold`, the broker waits for messages.

        Raises ClientError for invalid arguments, BrokerError, RemotingError.
        """
        self._running()
        if queue_offset < 0:
            raise ClientError(f"offset < 0: the offset of {queue} must be at least 0, not {queue_offset}")
        if messages_max <= 0:
            raise ClientError(f"maxNums <= 0: messages_max must be positive, not {messages_max}")
        assert self._fetcher is not None
        settings = self.settings
        options = FetchOptions(
            messages_max=messages_max,
            hold_ms=settings.hold_ms,
            timeout_ms=settings.pull_timeout_ms if hold else settings.plain_pull_timeout_ms,
            hold=hold,
        )
        subscription = by_tags(queue.topic, expression, now_ms=self._clock.now_ms())
        return await self._fetcher.fetch(queue, subscription, queue_offset, options)

    # --- Positions ---

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue at an offset.

        Raises ClientError for an invalid offset or an unassigned queue; RemotingError.
        """
        [held] = self._held([queue])
        session = self._running_session()
        begin, end = await asyncio.gather(
            start_offsets.min_offset(session, queue), start_offsets.max_offset(session, queue)
        )
        if not begin <= queue_offset <= end:
            table = await start_offsets.archive_of(session, queue.topic) if queue_offset < begin else None
            hint = f"; older messages are archived in {table}" if table is not None else ""
            raise ClientError(
                f"Seek offset illegal, seek offset = {queue_offset}, min offset = {begin}, "
                f"max offset = {end}{hint}"
            )
        self._go_to(held, queue_offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue with the first message of the queue. Raises ClientError, RemotingError."""
        await self._seek(queue, start_offsets.min_offset)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue with the next message to be stored. Raises ClientError, RemotingError."""
        await self._seek(queue, start_offsets.max_offset)

    async def seek_to_time(self, queue: MessageQueue, time_ms: int) -> None:
        """Continue with the first message stored at a time or later. Raises ClientError, RemotingError."""
        await self._seek(queue, lambda session, queue: start_offsets.offset_at(session, queue, time_ms))

    async def _seek(self, queue: MessageQueue, find: FindOffset) -> None:
        [held] = self._held([queue])
        self._go_to(held, await find(self._running_session(), queue))

    def _go_to(self, held: PulledQueue, queue_offset: int) -> None:
        fetcher = self._running()
        if fetcher.held.get(held.queue) is held:
            fetcher.seek(held, queue_offset)

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of the first message stored at a time or later.

        Raises RemotingError, BrokerError.
        """
        self._running()
        return await start_offsets.offset_at(self._running_session(), queue, time_ms)

    def positions(self) -> dict[MessageQueue, int | None]:
        """Return the next offset to be handed out by queue; None while the start offset is unknown."""
        return {queue: held.position for queue, held in self._running().held.items()}

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue, None without one.

        Raises RemotingError, BrokerError.
        """
        self._running()
        assert self._offsets is not None
        return await self._offsets.read(queue)

    async def lag(self) -> dict[MessageQueue, int]:
        """Return the number of messages behind the position by queue. Raises RemotingError, BrokerError."""
        positions = {queue: at for queue, at in self.positions().items() if at is not None}
        session = self._running_session()
        ends = await asyncio.gather(*(start_offsets.max_offset(session, queue) for queue in positions))
        return {queue: max(end - at, 0) for (queue, at), end in zip(positions.items(), ends, strict=True)}

    # --- Commits ---

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True) -> None:
        """Commit everything handed out, or these offsets (each the next one to consume).

        With `wait`, wait for the brokers' replies. Raises BrokerError, RemotingError.
        """
        held = self._running().held
        if offsets is None:
            offsets = {queue: part.position for queue, part in held.items() if part.position is not None}
        for queue, queue_offset in offsets.items():
            if queue in held:
                held[queue].done = queue_offset  # or else the next automatic commit would undo this one
        commits = self._running_commits()
        await asyncio.gather(*(commits.commit(queue, offsets[queue], wait=wait) for queue in offsets))

    async def _commit_done(self) -> None:
        """Commit finished messages. Failures are logged and retried in the next interval."""
        commits = self._running_commits()
        await commits.commit_released()
        await commits.commit_done(list(self.held.values()))

    def _running_commits(self) -> OffsetCommits:
        assert self._commits is not None
        return self._commits

    # --- For the session, the rebalancer and broker requests ---

    @property
    def client_id(self) -> str:
        """The client id that brokers see. Raises ClientClosed before the start."""
        return self._running_session().client_id

    @property
    def held(self) -> Mapping[MessageQueue, PulledQueue]:
        """The state of each fetched queue."""
        return self._fetch_loop.held if self._fetch_loop is not None else {}

    def topics(self) -> Iterable[str]:
        return {*self._subscriptions, *(queue.topic for queue in self._assigned or ())}

    def wake_rebalancer(self) -> None:
        if self._rebalancer is not None:
            self._rebalancer.wake()

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Seek held queues to these offsets and commit them, so that the next member starts there, too."""
        for queue, queue_offset in offsets.items():
            held = self._running().held.get(queue)
            if held is not None:
                self._go_to(held, queue_offset)
                await self._running_commits().commit(queue, queue_offset, wait=True)

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the positions in a topic's queues."""
        return {
            queue: held.position
            for queue, held in self.held.items()
            if queue.topic == topic and held.position is not None
        }

    def running_info(self, *, with_stacks: bool = False) -> ConsumerRunningInfo:
        """Return what tools show about this consumer (code 307)."""
        return ConsumerRunningInfo(
            properties=common_properties(self._group, self.consume_type, self._name_servers),
            subscription_set=[wanted.data() for wanted in self._subscriptions.values()],
            mq_table={
                queue: ProcessQueueInfo(
                    commit_offset=-1 if held.done is None else held.done,
                    cached_msg_count=held.message_count,
                    cached_msg_size_in_mi_b=held.message_bytes // MEBIBYTE,
                )
                for queue, held in self.held.items()
            },
        )

    async def _hold_subscribed(self, queues: Collection[MessageQueue]) -> None:
        if self._assigned is not None:
            return  # the rebalancing had begun before the queues were assigned
        self._hold(queues)
        await self._running_commits().commit_released()

    def _hold(self, queues: Collection[MessageQueue]) -> None:
        """Fetch exactly these queues; the progress of released ones is committed later."""
        released = self._running().hold(queues)
        if self.settings.auto_commit:
            self._running_commits().release(released)

    def _subscriptions_changed(self) -> None:
        if self._state != "RUNNING":
            return
        if self._assigned is not None:
            self._hold(self._assigned)
            self._tasks.spawn(self._running_commits().commit_released(), "commit released queues")
        else:
            self._tasks.spawn(self._running_session().heartbeat(), "announce subscriptions")
            self.wake_rebalancer()

    def _subscription_of(self, topic: str) -> TopicSubscription:
        known = self._subscriptions.get(topic) or self._assigned_expression.get(topic)
        return known or by_tags(topic, MATCH_ALL, now_ms=self._created_ms)


class PullConsumer(BlockingClient[AsyncPullConsumer]):
    """`skylark.PullConsumer`: fetches messages ahead and returns them on demand. Any thread may call.

    >>> with PullConsumer("billing", namesrv="127.0.0.1:9876") as consumer:
    ...     consumer.subscribe("orders", "created || paid")
    ...     for message in consumer:
    ...         print(message.body)

    Either `subscribe` topics, whose queues the members of the group share, or `assign` queues. A message is
    done when the next one is requested; finished messages are committed every few seconds, unless
    `auto_commit` is off. `commit` commits everything handed out at once.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = "",
        settings: PullConsumerSettings | None = None,
        client: ClientSettings | None = None,
        strategy: str | Strategy = "AVG",
    ) -> None:
        """As `skylark.aio.PullConsumer`. Raises BadName, SettingsError."""
        inner = AsyncPullConsumer(group, namesrv=namesrv, settings=settings, client=client, strategy=strategy)
        super().__init__(inner, f"pull consumer {group}")
        self._handing_out = threading.Lock()
        self._current: tuple[PulledBatch, int] | None = None  # the batch being iterated, and the next index

    subscribe = on_loop(AsyncPullConsumer.subscribe)
    unsubscribe = on_loop(AsyncPullConsumer.unsubscribe)
    assign = on_loop(AsyncPullConsumer.assign)
    assignment = on_loop(AsyncPullConsumer.assignment)
    queues = blocking(AsyncPullConsumer.queues)
    on_queues_changed = on_loop(AsyncPullConsumer.on_queues_changed)
    pause = on_loop(AsyncPullConsumer.pause)
    resume = on_loop(AsyncPullConsumer.resume)
    pull = blocking(AsyncPullConsumer.pull)
    seek = blocking(AsyncPullConsumer.seek)
    seek_to_begin = blocking(AsyncPullConsumer.seek_to_begin)
    seek_to_end = blocking(AsyncPullConsumer.seek_to_end)
    seek_to_time = blocking(AsyncPullConsumer.seek_to_time)
    offset_at = blocking(AsyncPullConsumer.offset_at)
    positions = on_loop(AsyncPullConsumer.positions)
    committed = blocking(AsyncPullConsumer.committed)
    lag = blocking(AsyncPullConsumer.lag)
    commit = blocking(AsyncPullConsumer.commit)

    @property
    def client_id(self) -> str:
        """The client id that brokers see. Raises ClientClosed before the start."""
        return self._inner.client_id

    def poll(self, timeout_ms: float | None = None) -> list[ReceivedMessage]:
        """Return the next messages, of one queue; none at the timeout. Messages handed out before are done.

        Use one reader at a time, or commit explicitly. Raises ClientClosed.
        """
        with self._handing_out:
            rest, self._current = self._current, None
            if rest is not None and not rest[0].is_void:
                batch, index = rest
                self._hand_out(batch, index, whole=True)
                return list(batch.messages[index:])
        return self._wait(self._inner.poll(timeout_ms))

    def poll_arrow(
        self,
        max_rows: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        json: Any = None,
        check_crc: bool = False,
        timeout_ms: float | None = None,
    ) -> pa.RecordBatch:
        """As `poll`, but return a `pyarrow.RecordBatch`: the next rows of one queue; no row at the timeout.

        >>> batch = consumer.poll_arrow(columns=["queueOffset", "keys", "body"])
        >>> frame = batch.to_pandas()

        See `skylark.aio.PullConsumer.poll_arrow`.
        """
        polled = self._inner.poll_arrow(
            max_rows, columns=columns, json=json, check_crc=check_crc, timeout_ms=timeout_ms
        )
        return self._wait(polled)

    def arrow(
        self,
        max_rows: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        json: Any = None,
        check_crc: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over batches as `poll_arrow` returns them, until the consumer is stopped."""
        batches = self._inner.arrow(max_rows, columns=columns, json=json, check_crc=check_crc)
        while True:
            try:
                batch = self._wait(anext(batches, None))
            except ClientClosed:
                return
            if batch is None:
                return
            yield batch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """Return the next message, waiting for it; stops when the consumer is stopped."""
        with self._handing_out:
            current = self._current
            if current is None or current[0].is_void:
                try:
                    taken = self._wait(self._inner.take_batch(None))
                except ClientClosed:
                    taken = None
                if taken is None:
                    raise StopIteration
                current = (taken, 0)
            batch, index = current
            self._hand_out(batch, index)
            self._current = (batch, index + 1) if index + 1 < len(batch.messages) else None
            return batch.messages[index]

    def _hand_out(self, batch: PulledBatch, index: int, *, whole: bool = False) -> None:
        """Record on the loop what was handed out, before anything that is requested later."""
        loop = self._running().loop
        loop.call_soon_threadsafe(batch.held.hand_out, batch, index)
        if whole:
            loop.call_soon_threadsafe(batch.held.hand_out_all, batch)
