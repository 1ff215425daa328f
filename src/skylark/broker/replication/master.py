"""The master's side of replication: accepts slaves, sends them the log and collects acknowledgements."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from skylark.broker.record_loader import ReadCold
from skylark.broker.replication.link import ConnectedSlave
from skylark.broker.replication.role import Confirmation, Role
from skylark.clock import Clock
from skylark.errors import RocketMQError
from skylark.protocol.bodies import HaConnectionInfo
from skylark.remoting.address import split_address
from skylark.remoting.ha import HaLink, HaListener
from skylark.remoting.server import RefusedConnections
from skylark.remoting.tls import ServerTls
from skylark.settings import BrokerSettings, ReplicationSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import PutStatus
from skylark.store.flush import FlushAnswer, FlushWaiters
from skylark.store.message_store import MessageStore
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

TICK_S = 0.1


class CombinedAnswer:
    """Waits for the disk and for the slaves; of two failures the slaves' is reported."""

    def __init__(self, answer: FlushAnswer) -> None:
        self._answer = answer
        self._flushed: PutStatus | None = None
        self._replicated: PutStatus | None = None

    def flushed(self, status: PutStatus) -> None:
        self._flushed = status
        self._finish()

    def replicated(self, status: PutStatus) -> None:
        self._replicated = status
        self._finish()

    def _finish(self) -> None:
        if self._flushed is not None and self._replicated is not None:
            is_replicated = self._replicated is PutStatus.PUT_OK
            self._answer(self._flushed if is_replicated else self._replicated)


class ReplicationMaster:
    """The slaves of a master, and the sends that wait for them. Loop thread, except `lags`."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        store: MessageStore,
        clock: Clock,
        role: Role,
        tasks: Tasks,
        read_cold: ReadCold,
        tls: ServerTls | None = None,
        *,
        is_tls_enforced: bool = False,
    ) -> None:
        """`tls` is for links of slaves; with `is_tls_enforced` plain ones need an allowed address."""
        self._tls = tls
        self._is_tls_enforced = is_tls_enforced
        self._live = live
        self._store = store
        self._syncs = store.settings.syncs_every_put
        self._clock = clock
        self._role = role
        self._tasks = tasks
        self._read_cold = read_cold
        self._listener = HaListener(
            partial(HaLink, self._received, self._opened, self._lost),
            tls,
            allows_plain=self._allows_plain,
            on_refused=self._refuse,
        )
        self._slaves: dict[HaLink, ConnectedSlave] = {}
        self._waiters = FlushWaiters(late=PutStatus.FLUSH_SLAVE_TIMEOUT)
        self._confirmation = Confirmation()
        self._refused = RefusedConnections()
        self._is_stopped = False
        self.last_error = ""
        """Why the last link was closed."""

    @property
    def _settings(self) -> ReplicationSettings:
        return self._live.current.replication

    async def start(self, host: str, port: int) -> None:
        """Listen for slaves. Raises OSError."""
        await self._listener.listen(host, port)
        self._store.on_appended = self._appended
        self._tasks.every(TICK_S * 1000, self._tick, "watch slaves")

    def stop(self) -> None:
        """Close all links. Sends that wait for slaves get a timeout reply."""
        self._is_stopped = True
        self._listener.close()
        self._store.on_appended = None
        for link in list(self._slaves):
            link.abort()
        self._slaves.clear()
        self._confirm()
        self._waiters.failed()

    # --- Sends ---

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @property
    def lacks_replicas(self) -> bool:
        """Whether sends that would wait are refused for lack of replicas."""
        if not self._role.waits_for_slaves or self._settings.in_sync_replicas is None:
            return False
        self._count()
        return not self._confirmation.is_enough

    @property
    def delays_acks(self) -> bool:
        """Whether sends are acknowledged later, when disk or slaves have the messages."""
        return self._syncs or self._role.waits_for_slaves

    def when_stored(self, end: int, answer: FlushAnswer) -> None:
        """Call `answer` when disk and slaves have the log up to `end`, or time out."""
        if not self._role.waits_for_slaves:
            self._store.when_flushed(end, answer)
        elif not self._syncs:
            self.when_replicated(end, answer)
        else:
            combined = CombinedAnswer(answer)
            self._store.when_flushed(end, combined.flushed)
            self.when_replicated(end, combined.replicated)

    def when_replicated(self, end: int, answer: FlushAnswer) -> None:
        """Call `answer` when enough slaves have the log up to `end`, or time out."""
        self._count()
        confirmation = self._confirmation
        if confirmation.required == 0 or end <= confirmation.reached:
            answer(PutStatus.PUT_OK)
        elif confirmation.usable == 0:
            answer(PutStatus.SLAVE_NOT_AVAILABLE)
        else:
            self._waiters.add(end, self._clock.monotonic() + self._settings.ack_timeout_ms / 1000, answer)

    # --- Questions ---

    def slaves(self) -> list[HaConnectionInfo]:
        """Return the status of each slave that has reported."""
        appended, lag_bytes_max = self._store.appended_offset, self._settings.lag_bytes_max
        return [
            HaConnectionInfo(
                addr=slave.link.address,
                slave_ack_offset=slave.acknowledged,
                diff=appended - slave.acknowledged,
                in_sync=appended - slave.acknowledged <= lag_bytes_max,
                transferred_byte_in_second=slave.bytes_per_s,
                transfer_from_where=slave.position,
            )
            for slave in self._slaves.values()
            if slave.acknowledged is not None
        ]

    @property
    def members(self) -> list[int]:
        """The in-sync set, in controller mode on a master."""
        return []

    def lags(self) -> list[tuple[str, int, float]]:
        """Return address and lag in bytes and seconds of each slave. Any thread."""
        now, appended = self._clock.monotonic(), self._store.appended_offset
        return [
            (slave.link.address, appended - slave.acknowledged, slave.lag_s(now, appended))
            for slave in list(self._slaves.values())
            if slave.acknowledged is not None
        ]

    # --- Links ---

    def _opened(self, link: HaLink) -> None:
        if self._is_stopped:  # it was accepted just before
            link.abort()
            return
        now = self._clock.monotonic()
        if len(self._slaves) >= self._settings.connections_max:
            self._refuse(link, f"{self._settings.connections_max} slaves are connected already")
            link.abort()
            return
        if self._tls is None and not self._allows_plain(split_address(link.address)[0]):
            self._refuse(link, "not in haAllowedAddresses")
            link.abort()
            return
        self._slaves[link] = self._connect(link, now)
        log.info("slave connected address=%s", link.address)

    def _connect(self, link: HaLink, now: float) -> ConnectedSlave:
        return ConnectedSlave(link, self._store, self._live, self._role, self._read_cold, now=now)

    def _allows_plain(self, host: str) -> bool:
        settings = self._settings
        return settings.allows_address(host) if settings.allowed_addresses else not self._is_tls_enforced

    def _refuse(self, link: HaLink, reason: str) -> None:
        link.failure = ConnectionError(reason)
        self.last_error = f"{link.address}: {reason}"
        self._refused.add(link.address, reason, self._clock.monotonic())

    def _received(self, link: HaLink, data: bytes) -> None:
        slave = self._slaves.get(link)
        if slave is None:
            return
        is_new = slave.acknowledged is None
        if not slave.receive(data):
            return
        if is_new:
            self._tasks.spawn(slave.send())
        self._confirm()

    def _lost(self, link: HaLink) -> None:
        slave = self._slaves.pop(link, None)
        if slave is not None:
            slave.wake()  # it ends
            self._note(link)
            self._confirm()

    def _note(self, link: HaLink) -> None:
        self.last_error = f"{link.address}: {link.failure or 'closed by the slave'}"
        log.warning("slave lost address=%s reason=%s", link.address, link.failure or "closed by the slave")

    def _tick(self) -> None:
        """Send heartbeats, close silent links, expire waiting sends."""
        now = self._clock.monotonic()
        self._watch_links(now)
        timeout_s = self._settings.ack_timeout_ms / 1000
        self._confirmation.release(now, self._store.appended_offset, timeout_s)
        self._confirm()
        self._waiters.expired(now)

    def _watch_links(self, now: float) -> None:
        loop_now = asyncio.get_running_loop().time()
        for slave in list(self._slaves.values()):
            try:
                slave.tick(now, loop_now)
            except RocketMQError as error:
                slave.link.abort(error)

    # --- What is confirmed ---

    def _appended(self) -> None:
        for slave in self._slaves.values():
            slave.wake()

    def _count(self) -> None:
        known = [slave.acknowledged for slave in self._slaves.values() if slave.acknowledged is not None]
        self._confirmation.update(known, self._store.appended_offset, self._settings)

    def _confirm(self) -> None:
        """Publish what enough slaves have now, and acknowledge it."""
        if not self._role.waits_for_slaves:
            return
        self._count()
        self._release(self._confirmation.bound, self._confirmation.reached)

    def _release(self, bound: int | None, reached: int) -> None:
        """Publish the log up to `bound`, and acknowledge it up to `reached`."""
        has_moved = bound != self._store.replica_bound
        if has_moved:
            self._store.replica_bound = bound
            self._store.publish()
        self._waiters.flushed(reached)
        if has_moved:
            # After the replies have left: it resumes held pulls and builds the index.
            asyncio.get_running_loop().call_soon(self._store.announce_arrivals)
