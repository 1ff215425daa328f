"""Connections of the console to its clusters, one for each cluster and user."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping

from skylark.admin.admin import AsyncAdmin
from skylark.client.producer.producer import AsyncProducer
from skylark.console.watch import Watch
from skylark.errors import ClientError, NoPermission
from skylark.settings.client import ClientSettings
from skylark.settings.credentials import Credentials

CONNECTIONS_MAX = 64
IDLE_S = 900.0
CHECK_EVERY_S = 300.0
"""A secret that was changed ends its connections at the latest after this time."""
PRODUCER_GROUP = "skylark_console"
REFUSED_MAX, REFUSED_S = 5, 10.0
"""Brokers block an address, here the console's, after ten wrong signatures in ten seconds."""
HAS_NO_RIGHT = "has no permission"
"""In the remark for a user who is known."""


class WrongCredentials(Exception):
    """The cluster does not know the user, or the secret is wrong; its own sentence."""


class ClusterConnection:
    """Admin, producer and watch of one cluster, which sign as one user. Owned by one event loop."""

    def __init__(self, alias: str, namesrv: str, credentials: Credentials | None) -> None:
        """Raises WrongCredentials for those that cannot sign."""
        self.alias = alias
        self.namesrv = namesrv
        settings = ClientSettings()
        if credentials is not None:
            if not credentials.access_key or not credentials.secret_key:
                raise WrongCredentials("a user has a name and a secret")
            settings = ClientSettings(access_key=credentials.access_key, secret_key=credentials.secret_key)
        self._settings = settings
        self.admin = AsyncAdmin(namesrv=namesrv, client=settings)
        self.watch = Watch(self.admin)
        self.used_s = time.monotonic()
        self._checked_s = -CHECK_EVERY_S
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

    @property
    def is_checked(self) -> bool:
        """Whether a broker knew the user a short time ago."""
        return self._settings.access_key is None or time.monotonic() < self._checked_s + CHECK_EVERY_S

    async def check_user(self) -> None:
        """Ask a broker, signed. Raises WrongCredentials, RocketMQError."""
        try:
            node = next(iter(await self.admin.brokers.nodes()), None)
            if node is None:
                raise ClientError(f"no broker of {self.namesrv} can check the user")
            await self.admin.brokers.runtime(node.address)
        except NoPermission as error:
            if HAS_NO_RIGHT not in error.remark:
                raise WrongCredentials(str(error)) from None
        self._checked_s = time.monotonic()

    async def stop(self) -> None:
        await self.watch.close()
        if self._producer is not None:
            await self._producer.stop()
        await self.admin.stop()


class Connections:
    """Opens connections on demand and closes those that nobody used for IDLE_S."""

    def __init__(self, clusters: Mapping[str, str]) -> None:
        self._clusters = clusters
        self._open: dict[tuple[str, Credentials | None], ClusterConnection] = {}
        self._changing = asyncio.Lock()
        self._refused: deque[float] = deque(maxlen=REFUSED_MAX)

    async def get(
        self, alias: str, credentials: Credentials | None = None, *, is_login: bool = False
    ) -> ClusterConnection:
        """The connection of exactly these credentials: a name with another secret gets none.

        `is_login` has the cluster check them now. Raises KeyError for an unknown cluster, WrongCredentials,
        RocketMQError.
        """
        if alias not in self._clusters:
            raise KeyError(alias)
        found = self._open.get((alias, credentials))
        if found is None or is_login or not found.is_checked:
            async with self._changing:
                found = await self._checked(alias, credentials, is_login=is_login)
        found.used_s = time.monotonic()
        return found

    async def _checked(
        self, alias: str, credentials: Credentials | None, *, is_login: bool
    ) -> ClusterConnection:
        found = self._open.pop((alias, credentials), None)
        if found is None:
            found = ClusterConnection(alias, self._clusters[alias], credentials)
            await found.start()
        try:
            if is_login or not found.is_checked:
                await self._check_user(found)
        except BaseException:
            await found.stop()
            raise
        await self._close_idle()
        self._open[alias, credentials] = found
        return found

    async def _check_user(self, connection: ClusterConnection) -> None:
        if len(self._refused) == REFUSED_MAX and time.monotonic() < self._refused[0] + REFUSED_S:
            raise WrongCredentials(f"too many failed logins; try again in {REFUSED_S:.0f} s")
        try:
            await connection.check_user()
        except WrongCredentials:
            self._refused.append(time.monotonic())
            raise

    async def drop(self, user: str) -> None:
        """Close the connections of a user who logged in again or out."""
        for key in [key for key in self._open if key[1] is not None and key[1].access_key == user]:
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
