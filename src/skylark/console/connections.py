"""Connections of the console to its clusters, one for each cluster and user."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from skylark.admin.admin import AsyncAdmin
from skylark.client.producer.producer import AsyncProducer
from skylark.console.watch import Watch
from skylark.settings.client import ClientSettings
from skylark.settings.credentials import Credentials

CONNECTIONS_MAX = 64
IDLE_S = 900.0
PRODUCER_GROUP = "skylark_console"


class ClusterConnection:
    """Admin, producer and watch of one cluster, which sign as one user. Owned by one event loop."""

    def __init__(self, alias: str, namesrv: str, credentials: Credentials | None) -> None:
        self.alias = alias
        self.namesrv = namesrv
        settings = ClientSettings()
        if credentials is not None:
            settings = ClientSettings(access_key=credentials.access_key, secret_key=credentials.secret_key)
        self._settings = settings
        self.admin = AsyncAdmin(namesrv=namesrv, client=settings)
        self.watch = Watch(self.admin)
        self.used_s = time.monotonic()
        self._producer: AsyncProducer | None = None
        self._starting = asyncio.Lock()

    async def producer(self) -> AsyncProducer:
        """Started when it is first needed."""
        async with self._starting:
            if self._producer is None:
                producer = AsyncProducer(PRODUCER_GROUP, namesrv=self.namesrv, client=self._settings)
                self._producer = await producer.start()
            return self._producer

    async def start(self) -> None:
        await self.admin.start()

    async def stop(self) -> None:
        await self.watch.close()
        if self._producer is not None:
            await self._producer.stop()
        await self.admin.stop()


class Connections:
    """Opens connections on demand and closes those that nobody used for IDLE_S."""

    def __init__(self, clusters: Mapping[str, str]) -> None:
        self._clusters = clusters
        self._open: dict[tuple[str, str], ClusterConnection] = {}
        self._changing = asyncio.Lock()

    async def get(self, alias: str, credentials: Credentials | None = None) -> ClusterConnection:
        """Raises KeyError for an unknown cluster."""
        namesrv = self._clusters[alias]
        name = "" if credentials is None else credentials.access_key
        found = self._open.get((alias, name))
        if found is None:
            async with self._changing:
                found = self._open.get((alias, name))
                if found is None:
                    await self._close_idle()
                    found = ClusterConnection(alias, namesrv, credentials)
                    await found.start()
                    self._open[alias, name] = found
        found.used_s = time.monotonic()
        return found

    async def drop(self, user: str) -> None:
        """Close the connections of a user who logged out or whose secret was wrong."""
        for key in [key for key in self._open if key[1] == user]:
            await self._open.pop(key).stop()

    async def close(self) -> None:
        for key in list(self._open):
            await self._open.pop(key).stop()

    async def _close_idle(self) -> None:
        oldest = sorted(self._open, key=lambda key: self._open[key].used_s)
        spare = len(self._open) - CONNECTIONS_MAX + 1
        for number, key in enumerate(oldest):
            if number < spare or time.monotonic() - self._open[key].used_s > IDLE_S:
                await self._open.pop(key).stop()
