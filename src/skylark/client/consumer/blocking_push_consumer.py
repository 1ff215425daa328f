"""PushConsumer for programs without a loop of their own: listeners are plain functions in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from skylark.client.blocking_client import BlockingClient
from skylark.client.consumer.allocation_strategies import Strategy
from skylark.client.consumer.consumption import is_worker_thread
from skylark.client.consumer.listeners import Listener, Middleware
from skylark.client.consumer.offset_store import OffsetStore
from skylark.client.consumer.push_consumer import AsyncPushConsumer, QueueListener, on_termination
from skylark.protocol.bodies import ConsumerRunningInfo, MessageQueue
from skylark.settings.client import ClientSettings, PushConsumerSettings

F = TypeVar("F", bound=Listener)
T = TypeVar("T")
LOOK_S = 1.0
"""So often a waiting program looks whether it was interrupted, where signals do not wake it."""


class PushConsumer(BlockingClient[AsyncPushConsumer]):
    """Consumes topics for one group, in threads. Any thread may call.

    >>> consumer = PushConsumer("billing", namesrv="127.0.0.1:9876")
    >>> @consumer.subscribe("orders", "created || paid")
    ... def handle(messages):
    ...     ...
    >>> consumer.run()

    A listener that returns is done with its messages; one that raises, or returns `ConsumeResult.LATER`, gets
    them again later. Every message is delivered at least once, and may be delivered again: see the page on
    duplicates. Coroutine functions may be listeners too; they run on the client's own loop.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = "",
        settings: PushConsumerSettings | None = None,
        client: ClientSettings | None = None,
        strategy: str | Strategy = "AVG",
        offset_store: OffsetStore | None = None,
    ) -> None:
        """See `skylark.aio.PushConsumer`. Raises BadName, SettingsError."""
        inner = AsyncPushConsumer(
            group,
            namesrv=namesrv,
            settings=settings,
            client=client,
            strategy=strategy,
            offset_store=offset_store,
        )
        super().__init__(inner, f"push consumer {group}")
        self._ended = threading.Event()

    # --- What to consume, and with what ---

    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        listener: Listener | None = None,
        *,
        sql: str | None = None,
        filter_class: str | None = None,
    ) -> Callable[[F], F]:
        """Consume a topic: all messages, those with tags (`a || b`), or those that an SQL92 condition takes.

        A listener given here, or the function that this decorates, gets the messages of this topic; without
        either they go to the one that `listen` set. Before the start or while running. `filter_class` names a
        class for clusters that still run filter servers; their messages are then pulled from those.
        Raises SettingsError for a topic or an expression that cannot be one.
        """

        async def subscribe() -> Callable[[F], F]:
            return self._inner.subscribe(topic, expression, listener, sql=sql, filter_class=filter_class)

        if self._thread is not None:
            return self._wait(subscribe())
        return self._inner.subscribe(topic, expression, listener, sql=sql, filter_class=filter_class)

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more: its queues are given up in the next round."""
        if self._thread is not None:
            self._call(lambda: self._inner.unsubscribe(topic))
        else:
            self._inner.unsubscribe(topic)

    def listen(self, listener: F) -> F:
        """Give a listener the messages of all topics that have none of their own. Also as a decorator.

        A function, or a Java-shaped object: a `MessageListenerConcurrently` or a `MessageListenerOrderly`.
        """
        return self._inner.listen(listener)

    def use(self, middleware: Middleware) -> Middleware:
        """Put something around every call of a listener; see `skylark.aio.PushConsumer.use`."""
        return self._inner.use(middleware)

    def on_queues_changed(self, listener: QueueListener) -> QueueListener:
        """Be told `(topic, all_queues, my_queues)` when queues come or go, on the client's loop: be quick."""
        return self._inner.on_queues_changed(listener)

    # --- Life ---

    def stop(self) -> None:
        """Stop: listeners that run may finish, progress is kept, brokers are told.

        From inside a listener it returns at once, and the end comes when that listener has returned.
        """
        if is_worker_thread():
            threading.Thread(target=self.stop, name=f"stop {self._name}").start()
            return
        try:
            super().stop()
        finally:
            self._ended.set()

    def run(self) -> None:
        """Start, consume until Ctrl-C, SIGTERM or `stop`, and stop."""
        with on_termination(self._ended.set):
            self.start()
            try:
                while not self._ended.wait(LOOK_S):
                    pass
            except KeyboardInterrupt:
                pass
            finally:
                self.stop()

    def suspend(self) -> None:
        """Pull no more until `resume`; what is here is consumed."""
        self._call(self._inner.suspend)

    def resume(self) -> None:
        """Go on after `suspend`."""
        self._call(self._inner.resume)

    # --- Looking and correcting ---

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client. Raises ClientClosed unless it runs."""
        self._running()
        return self._inner.client_id

    def queues(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, retry topic included."""
        return self._call(self._inner.queues)

    def running_info(self) -> ConsumerRunningInfo:
        """What tools are told about this consumer (code 307)."""
        return self._call(self._inner.running_info)

    def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Move queues of a topic that are ours to other offsets, back or forth."""
        self._wait(self._inner.reset_offsets(topic, offsets))

    def reset_to_time(self, timestamp_ms: int) -> None:
        """Move all queues that are ours to a time. Raises RocketMQError if a broker does not answer."""
        self._wait(self._inner.reset_to_time(timestamp_ms))

    def _call(self, function: Callable[[], T]) -> T:
        """Call something on the loop and wait for it."""

        async def call() -> T:
            return function()

        return self._wait(call())
