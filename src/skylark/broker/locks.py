"""Pure. QueueLocks: which client of a group consumes a queue in order. Times are monotonic seconds."""

from dataclasses import dataclass

from skylark.protocol.bodies import LockRequest, MessageQueue
from skylark.settings import BrokerSettings
from skylark.settings.live import Live


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_at: float


class QueueLocks:
    """Locks by group and queue. One that its client does not renew ends; a restart ends all."""

    def __init__(self, live: Live[BrokerSettings]) -> None:
        self._live = live
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0

    def lock(self, request: LockRequest, *, now: float) -> list[MessageQueue]:
        """Lock or renew what is free or the client's own, and return it. Without room nothing new is."""
        locked = []
        for queue in dict.fromkeys(request.mq_set):
            lock = self._locks.get(request.consumer_group, {}).get(queue)
            if lock is None:
                if self._count >= self._live.current.locks_max:
                    continue
                self._locks.setdefault(request.consumer_group, {})[queue] = _Lock(request.client_id, now)
                self._count += 1
            elif lock.client_id == request.client_id or self._has_ended(lock, now):
                lock.client_id, lock.renewed_at = request.client_id, now
            else:
                continue
            locked.append(queue)
        return locked

    def unlock(self, request: LockRequest) -> None:
        """Free what is the client's own."""
        locks = self._locks.get(request.consumer_group, {})
        for queue in request.mq_set:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == request.client_id:
                self._free(request.consumer_group, queue)

    def has_any(self, group: str, *, now: float) -> bool:
        """Say whether a group consumes any queue in order now."""
        return any(not self._has_ended(lock, now) for lock in self._locks.get(group, {}).values())

    def expire(self, now: float) -> None:
        """Forget locks that have ended, which nobody may ever ask for again."""
        ended = [
            (group, queue)
            for group, locks in self._locks.items()
            for queue, lock in locks.items()
            if self._has_ended(lock, now)
        ]
        for group, queue in ended:
            self._free(group, queue)

    def _has_ended(self, lock: _Lock, now: float) -> bool:
        return now - lock.renewed_at > self._live.current.lock_expiry_ms / 1000

    def _free(self, group: str, queue: MessageQueue) -> None:
        del self._locks[group][queue]
        self._count -= 1
        if not self._locks[group]:
            del self._locks[group]
