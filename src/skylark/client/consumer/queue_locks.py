"""Queue locks at the brokers: the member that holds the lock of a queue consumes it in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.session.session import Session
from skylark.errors import RocketMQError
from skylark.protocol.bodies import LockRequest, MessageQueue
from skylark.protocol.requests.client import LockBatchMq, UnlockBatchMq

log = logging.getLogger(__name__)


class OrderlyLocks:
    """Queue locks of one group member. Loop thread; failures are logged and mean not locked."""

    def __init__(self, session: Session, group: str, timeout_ms: int) -> None:
        self._session = session
        self._group = group
        self._timeout_ms = timeout_ms

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock or renew queues; return the locked ones. Brokers expire locks after a minute."""
        answers = await asyncio.gather(
            *(self._lock_at(broker, of_broker) for broker, of_broker in _by_broker(queues).items())
        )
        return set().union(*answers)

    async def _lock_at(self, broker: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        try:
            address = self._session.routes.master(broker)
            locked = await self._session.call(
                address, LockBatchMq(self._request(queues)), timeout_ms=self._timeout_ms
            )
        except RocketMQError as error:
            log.warning("queues not locked broker=%s count=%d error=%s", broker, len(queues), error)
            return set()
        return set(locked.queues) & set(queues)

    async def renew(self, process_queues: Iterable[ProcessQueue], now: float) -> None:
        """Renew the locks of all held queues and update their `locked`."""
        held = {held.queue: held for held in process_queues if not held.dropped}
        locked = await self.lock(held)
        for queue, process_queue in held.items():
            process_queue.locked = queue in locked
            if process_queue.locked:
                process_queue.last_lock_at = now

    async def unlock(self, queue: MessageQueue) -> None:
        """Unlock one queue without waiting for the reply."""
        try:
            address = self._session.routes.master(queue.broker_name)
            await self._session.notify(address, UnlockBatchMq(self._request([queue])))
        except RocketMQError as error:
            log.warning("queue not unlocked queue=%s error=%s", queue, error)

    async def unlock_all(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues and wait for the replies."""
        for broker, of_broker in _by_broker(queues).items():
            try:
                address = self._session.routes.master(broker)
                await self._session.call(
                    address, UnlockBatchMq(self._request(of_broker)), timeout_ms=self._timeout_ms
                )
            except RocketMQError as error:
                log.warning("queues not unlocked broker=%s error=%s", broker, error)

    def _request(self, queues: list[MessageQueue]) -> LockRequest:
        return LockRequest(self._session.client_id, self._group, queues)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, []).append(queue)
    return brokers
