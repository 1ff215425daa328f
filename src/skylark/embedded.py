"""A name server and a broker in one process, for `skylark serve` and the demo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from signal import Signals
from typing import Protocol

from skylark.broker.broker import Broker
from skylark.namesrv.server import NameServer
from skylark.settings import BrokerSettings, NameServerSettings
from skylark.stop_signal import StopSignal


class Sidecar(Protocol):
    """What runs in the process of a broker while it is ready."""

    async def start(self, broker: Broker) -> None: ...

    async def stop(self) -> None: ...


class Embedded:
    """Both servers on the running loop. The broker registers with this name server."""

    def __init__(self, name_server: NameServerSettings, broker: BrokerSettings) -> None:
        self.name_server = NameServer(name_server)
        self._broker_settings = broker
        self.broker: Broker | None = None

    async def start(self) -> None:
        """Return when the broker is registered.

        Raises StoreError, BadStoreFile, OSError; both servers are stopped then.
        """
        await self.name_server.start()
        try:
            broker = Broker(replace(self._broker_settings, name_servers=self.name_server.address))
            await broker.start()
            self.broker = broker
            await broker.registration.first_attempt()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        if self.broker is not None:
            await self.broker.stop()
        await self.name_server.stop()


async def serve(
    server: Embedded | Broker,
    on_ready: Callable[[], None],
    on_stop: Callable[[Signals], None] = lambda number: None,
    *,
    beside: Sidecar | None = None,
) -> None:
    """Run until SIGTERM or SIGINT, which `on_stop` gets before the server is stopped. Main thread only."""
    with StopSignal() as stop_signal:
        await server.start()
        try:
            if isinstance(server, Broker):
                await server.registration.first_attempt()
            on_ready()
            broker = server if isinstance(server, Broker) else server.broker
            if beside is not None and broker is not None:
                await beside.start(broker)
            on_stop(await stop_signal.wait())
        finally:
            if beside is not None:
                await beside.stop()
            await server.stop()
