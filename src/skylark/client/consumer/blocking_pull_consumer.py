"""The blocking face of `PullConsumer`: for threads, with `for` over its messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Self, TypeVar

from skylark.client.blocking_client import BlockingClient
from skylark.client.consumer import pull_consumer
from skylark.client.consumer.allocation_strategies import Strategy
from skylark.client.consumer.fetcher import Pulled
from skylark.client.consumer.process_queue import PulledBatch
from skylark.client.consumer.pull_consumer import QueuesChanged
from skylark.client.received_message import ReceivedMessage
from skylark.errors import ClientClosed
from skylark.model.tag_expression import MATCH_ALL
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ClientSettings, PullConsumerSettings

T = TypeVar("T")


class PullConsumer(BlockingClient[pull_consumer.AsyncPullConsumer]):
    """Fetches messages ahead and hands them out when asked. Any thread may call, and waits.

    >>> with PullConsumer("billing", namesrv="127.0.0.1:9876") as consumer:
    ...     consumer.subscribe("orders", "created || paid")
    ...     for message in consumer:
    ...         print(message.body)

    Either `subscribe` topics, whose queues the members of the group share, or `assign` queues. A message
    counts as done when the next is asked for, and what is done is committed every few seconds, unless
    `auto_commit` is off; `commit` commits at once all that was handed out.
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
        inner = pull_consumer.AsyncPullConsumer(
            group, namesrv=namesrv, settings=settings, client=client, strategy=strategy
        )
        super().__init__(inner, f"pull consumer {group}")
        self._handing_out = threading.Lock()
        self._current: tuple[PulledBatch, int] | None = (
            None  # a batch that is iterated over, and what comes next
        )

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function of the inner consumer: on its loop once it runs, before that here."""
        if self._state == "CREATE_JUST":
            return function()

        async def on_loop() -> T:
            return function()

        return self._wait(on_loop())

    # --- Which queues ---

    def subscribe(self, topic: str, expression: str = MATCH_ALL, *, sql: str | None = None) -> None:
        """Consume a topic with the other members of the group: by tags, or by an SQL92 condition.

        Before or after the start. Raises ClientError beside `assign`, SettingsError for a bad expression.
        """
        self._call(lambda: self._inner.subscribe(topic, expression, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        """Give a topic up. One that is not subscribed is left alone."""
        self._call(lambda: self._inner.unsubscribe(topic))

    def assign(
        self, queues: Collection[MessageQueue], expression: str = MATCH_ALL, *, sql: str | None = None
    ) -> None:
        """Consume these queues and no others, whoever else does. Replaces what was assigned before.

        Before or after the start. Raises ClientError beside `subscribe`, SettingsError for a bad expression.
        """
        self._call(lambda: self._inner.assign(queues, expression, sql=sql))

    def assignment(self) -> list[MessageQueue]:
        """The queues that are fetched now, sorted."""
        return self._call(self._inner.assignment)

    def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that can be read. Raises NoRoute, RemotingError."""
        return self._wait(self._inner.queues(topic))

    def on_queues_changed(self, topic: str, listener: QueuesChanged) -> None:
        """Have a function called, on the loop's thread, when a topic has other queues; it must not block."""
        self._call(lambda: self._inner.on_queues_changed(topic, listener))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these queues, fetch no more, until `resume`. Raises ClientError for others."""
        self._call(lambda: self._inner.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Undo `pause`. Raises ClientError for queues that are not assigned."""
        self._call(lambda: self._inner.resume(queues))

    # --- Messages ---

    def poll(self, timeout_ms: float | None = None) -> list[ReceivedMessage]:
        """The next messages, of one queue; none if none come in time. What was handed out before is now done.

        So one reader at a time: several that share a consumer commit for themselves. Raises ClientClosed.
        """
        with self._handing_out:
            rest, self._current = self._current, None
            if rest is not None and not rest[0].is_void:
                batch, index = rest
                self._hand_out(batch, index, whole=True)
                return list(batch.messages[index:])
        return self._wait(self._inner.poll(timeout_ms))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """The next message, whenever it comes; the end when the consumer is stopped."""
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
        """Tell the loop what was handed out; it hears of it before anything that is asked later."""
        loop = self._running().loop
        loop.call_soon_threadsafe(batch.held.hand_out, batch, index)
        if whole:
            loop.call_soon_threadsafe(batch.held.hand_out_all, batch)

    def pull(
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
        return self._wait(self._inner.pull(queue, expression, queue_offset, messages_max, hold=hold))

    # --- Where ---

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on at an offset. Raises ClientError for one outside, or a queue not assigned; RemotingError."""
        self._wait(self._inner.seek(queue, queue_offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with the first message that is still there. Raises ClientError, RemotingError."""
        self._wait(self._inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message that will come. Raises ClientError, RemotingError."""
        self._wait(self._inner.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, time_ms: int) -> None:
        """Go on with the first message stored at a time or later. Raises ClientError, RemotingError."""
        self._wait(self._inner.seek_to_time(queue, time_ms))

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message stored at a time or later. Raises RemotingError, BrokerError."""
        return self._wait(self._inner.offset_at(queue, time_ms))

    def positions(self) -> dict[MessageQueue, int | None]:
        """The next offset to be handed out, by queue; None while it is not known where to begin."""
        return self._call(self._inner.positions)

    def committed(self, queue: MessageQueue) -> int | None:
        """What the group has committed in a queue, None if nothing. Raises RemotingError, BrokerError."""
        return self._wait(self._inner.committed(queue))

    def lag(self) -> dict[MessageQueue, int]:
        """How many messages wait behind the position, by queue. Raises RemotingError, BrokerError."""
        return self._wait(self._inner.lag())

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True) -> None:
        """Commit all that was handed out, or these offsets (each the next one to be consumed).

        With `wait`, return when brokers have said that they have it; else they are told and not waited for.
        Raises BrokerError, RemotingError.
        """
        work: Coroutine[Any, Any, None] = self._inner.commit(offsets, wait=wait)
        self._wait(work)

    @property
    def client_id(self) -> str:
        """As brokers know it. Raises ClientClosed before the start."""
        return self._inner.client_id
