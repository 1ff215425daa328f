"""A name server and a broker inside the test process: free ports, temporary files, fast start."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from skylark.broker.broker import Broker
from skylark.clock import Clock
from skylark.errors import ClientClosed
from skylark.namesrv.server import NameServer
from skylark.protocol.bodies import TopicConfig
from skylark.remoting.address import hold_ports
from skylark.settings import BrokerSettings, NameServerSettings, StoreSettings
from skylark.settings.fields import FAST_PORT_DISTANCE

T = TypeVar("T")

START_TIMEOUT_S = 60
REGISTERED_CHECK_S = 0.001
QUEUES = 4
# Small files and short intervals, for fast tests.
STORE = {
    "commit_log_file_bytes": 16 << 20,
    "consume_queue_file_bytes": 20 * 10_000,
    "index_slots": 1024,
    "index_items": 8192,
    "flush_interval_ms": 50,
}
BROKER = {
    "port": 0,
    "metrics_port": 0,
    "register_interval_ms": 1000,
    "hold_check_interval_ms": 100,
    "client_scan_interval_ms": 200,
    "offset_persist_interval_ms": 200,
    "delay_offset_persist_interval_ms": 200,
    "metadata_gather_ms": 1,
    "shutdown_timeout_ms": 1000,
    "default_topic_queues": QUEUES,
}


class EmbeddedServers:
    """Real servers on their own loop thread, for blocking and asyncio tests.

    >>> with EmbeddedServers() as servers:
    ...     servers.create_topic("orders")
    ...     producer = Producer("shop", namesrv=servers.namesrv)

    `clock` is the broker's: with a `ManualClock` the test advances delays and retries. `settings` are fields
    of `BrokerSettings`, `store` fields of `StoreSettings`. Thread-safe.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        settings: Mapping[str, Any] | None = None,
        store: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises SettingsError."""
        self.clock = clock
        files = StoreSettings(**{**STORE, **(store or {})})
        self._settings = BrokerSettings(store=files, **{**BROKER, **(settings or {})})
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._name_server: NameServer | None = None
        self._broker: Broker | None = None
        self._held = contextlib.ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    # --- Start and stop ---

    def start(self) -> Self:
        """Return when the broker is registered. Raises the errors of the servers."""
        self._directory = tempfile.TemporaryDirectory(prefix="skylark-test-")
        path = Path(self._directory.name)
        self._settings = replace(self._settings, store=replace(self._settings.store, path=path / "store"))
        self._name_server = NameServer(NameServerSettings(port=0, kv_config_path=path / "kvConfig.json"))
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="skylark-test-servers", daemon=True
        )
        self._thread.start()
        try:
            ready.result(START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop both servers and remove their files. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stopping is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join()
        self._held.close()
        if self._directory is not None:
            self._directory.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _serve(self, ready: concurrent.futures.Future[None]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        name_server = self._name_server
        assert name_server is not None
        try:
            await name_server.start()
            await self._start_broker()
        except BaseException as error:  # noqa: BLE001 (raised in the calling thread)
            ready.set_exception(error)
        else:
            ready.set_result(None)
            await self._stopping.wait()
        finally:
            await self._stop_broker()
            await name_server.stop()

    async def _start_broker(self) -> None:
        self._held.close()
        broker = Broker(replace(self._settings, name_servers=self.namesrv), clock=self.clock)
        await broker.start()
        self._broker = broker
        async with asyncio.timeout(START_TIMEOUT_S):
            while not broker.registration.registered:  # noqa: ASYNC110 (a few milliseconds)
                await asyncio.sleep(REGISTERED_CHECK_S)
        # Keep the port after a restart.
        self._settings = replace(self._settings, port=broker.port)

    async def _stop_broker(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stop()

    async def _send_broker_away(self) -> None:
        broker = self._broker
        if broker is not None:
            await self._stop_broker()
            ports = (broker.port - FAST_PORT_DISTANCE, broker.port, broker.addresses.replica_port)
            self._held = hold_ports(self._settings.host, *ports)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None or self._loop is None:
            work.close()
            raise ClientClosed("embedded servers")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # --- For tests ---

    @property
    def namesrv(self) -> str:
        """The name server's address, for clients."""
        if self._name_server is None:
            raise ClientClosed("embedded servers")
        return self._name_server.address

    @property
    def broker_address(self) -> str:
        """Raises ClientClosed while the broker is stopped."""
        if self._broker is None:
            raise ClientClosed("embedded broker")
        return self._broker.address

    def create_topic(self, topic: str, queues: int = QUEUES) -> str:
        """Create a topic, wait until it is routable, and return its name. Raises BrokerError."""
        self._run(self._create_topic(topic, queues))
        return topic

    async def _create_topic(self, topic: str, queues: int) -> None:
        if self._broker is None:
            raise ClientClosed("embedded broker")
        config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
        self._broker.topics.update(config, now_ms=self._broker.clock.now_ms())
        await self._broker.registration.settle()

    def message_count(self, topic: str) -> int:
        """Return the number of messages of a topic on the broker."""
        return self._run(self._message_count(topic))

    async def _message_count(self, topic: str) -> int:
        if self._broker is None:
            raise ClientClosed("embedded broker")
        store = self._broker.store
        queue_ids = [queue_id for name, queue_id in store.queues if name == topic]
        return sum(store.max_offset(topic, n) - store.min_offset(topic, n) for n in queue_ids)

    def stop_broker(self) -> None:
        """Stop the broker gracefully; the name server keeps running and the broker's ports stay reserved."""
        self._run(self._send_broker_away())

    def start_broker(self) -> None:
        """Start the broker again, on its old port and with all its messages."""
        self._run(self._start_broker())


@contextlib.contextmanager
def broker(
    *,
    clock: Clock | None = None,
    settings: Mapping[str, Any] | None = None,
    store: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Run a name server and a broker inside the context; yields the name server's address.

    >>> with skylark.testing.broker() as namesrv:
    ...     with Producer("shop", namesrv=namesrv) as producer:
    ...         producer.send(Message("orders", b"hello"))
    """
    with EmbeddedServers(clock=clock, settings=settings, store=store) as servers:
        yield servers.namesrv
