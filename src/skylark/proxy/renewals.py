"""Automatic renewal: messages of push consumers stay invisible while their client lives and consumes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from skylark.clock import Clock
from skylark.errors import BrokerError, BrokerUnknown, RocketMQError
from skylark.protocol.pop_handle import PopHandle
from skylark.protocol.requests.pop import ChangeMessageInvisibleTime
from skylark.proxy.cluster import Cluster
from skylark.settings.proxy import ProxySettings

log = logging.getLogger(__name__)

STEPS_MS = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
"""How long a message is made invisible, by the number of renewals done."""
KEPT_MAX = 200_000
"""Handles of all clients; messages above it are not renewed."""
TOGETHER_MAX = 64
"""Renewals at the same time."""


@dataclass(slots=True)
class _Kept:
    group: str
    topic: str
    handle: PopHandle
    delivered_ms: int
    renewals: int = 0
    failures: int = 0


async def change_invisible(
    cluster: Cluster,
    group: str,
    topic: str,
    handle: PopHandle,
    invisible_ms: int,
    timeout_s: float | None,
    *,
    is_suspended: bool = False,
) -> PopHandle:
    """Change how long a message stays invisible, and return its new handle. Raises BrokerError and others.

    With `is_suspended` all messages of its lite topic that were received with it.
    """
    reply = await cluster.call(
        handle.broker_name,
        ChangeMessageInvisibleTime(
            consumer_group=group,
            topic=handle.popped_from(topic, group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            queue_offset=handle.queue_offset,
            invisible_time=invisible_ms,
            lite_topic=handle.lite_topic,
            suspend=is_suspended or None,
        ),
        timeout_s=timeout_s,
    )
    return handle.changed(reply.pop_time, reply.invisible_time, reply.revive_queue_id)


class Renewals:
    """Handles that are renewed, by client and the handle that the client has. Loop thread."""

    def __init__(self, settings: ProxySettings, cluster: Cluster, clock: Clock) -> None:
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._kept: dict[str, dict[str, _Kept]] = {}
        self.count = 0

    def keep(self, client_id: str, group: str, topic: str, handle: PopHandle) -> None:
        """Renew this handle from now on."""
        if self.count >= KEPT_MAX:
            return
        kept = _Kept(group, topic, handle, self._clock.now_ms())
        self._kept.setdefault(client_id, {})[handle.encode()] = kept
        self.count += 1

    def kept_of(self, client_id: str) -> int:
        """Return how many messages of a client are renewed."""
        return len(self._kept.get(client_id, ()))

    def take(self, client_id: str, handle: PopHandle) -> PopHandle:
        """Return the newest version of a client's handle, and stop renewing it."""
        if client_id not in self._kept:
            return handle
        kept = self._remove(client_id, handle.encode())
        return handle if kept is None else kept.handle

    def _remove(self, client_id: str, key: str) -> _Kept | None:
        handles = self._kept.get(client_id)
        kept = None if handles is None else handles.pop(key, None)
        if kept is not None:
            self.count -= 1
            if not handles:
                del self._kept[client_id]
        return kept

    async def release(self, client_id: str) -> None:
        """Let the messages of a client that is gone become visible soon."""
        handles = self._kept.pop(client_id, {})
        self.count -= len(handles)
        limit = asyncio.Semaphore(TOGETHER_MAX)
        await asyncio.gather(*(self._let_go(kept, limit) for kept in handles.values()))

    async def release_all(self) -> None:
        for client_id in list(self._kept):
            await self.release(client_id)

    async def _let_go(self, kept: _Kept, limit: asyncio.Semaphore) -> None:
        async with limit:
            try:
                await self._change(kept, self._settings.released_ms)
            except RocketMQError as error:
                log.info("message not released group=%s error=%s", kept.group, error)

    async def _change(self, kept: _Kept, invisible_ms: int) -> PopHandle:
        return await change_invisible(
            self._cluster, kept.group, kept.topic, kept.handle, invisible_ms, timeout_s=None
        )

    # --- Renewing ---

    async def renew(self) -> None:
        """Renew what becomes visible soon. Called every `renew_interval_ms`."""
        due = list(self._due(self._clock.now_ms() + self._settings.renew_ahead_ms))
        limit = asyncio.Semaphore(TOGETHER_MAX)
        await asyncio.gather(*(self._renew_one(client_id, key, limit) for client_id, key in due))

    def _due(self, before_ms: int) -> Iterator[tuple[str, str]]:
        for client_id, handles in self._kept.items():
            for key, kept in handles.items():
                if kept.handle.revive_time <= before_ms:
                    yield client_id, key

    async def _renew_one(self, client_id: str, key: str, limit: asyncio.Semaphore) -> None:
        async with limit:
            kept = self._kept.get(client_id, {}).get(key)
            if kept is None:
                return
            if self._clock.now_ms() - kept.delivered_ms > self._settings.renew_ms_max:
                self._remove(client_id, key)  # it comes again when its time is over
                return
            try:
                kept.handle = await self._change(kept, STEPS_MS[min(kept.renewals, len(STEPS_MS) - 1)])
            except (BrokerError, BrokerUnknown) as error:
                log.info("renewal refused group=%s error=%s", kept.group, error)
                self._remove(client_id, key)
            except RocketMQError as error:
                kept.failures += 1
                if kept.failures >= self._settings.renew_attempts_max:
                    log.warning("renewal given up group=%s error=%s", kept.group, error)
                    self._remove(client_id, key)
            else:
                kept.failures = 0
                kept.renewals += 1
