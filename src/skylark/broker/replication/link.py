"""The master's link to one slave: the slave's position, and the transfer of the log.

In controller mode it begins with greetings, and frames have epochs: see `ConnectedReplica`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skylark.broker.record_loader import ReadCold
from skylark.broker.replication.role import Role
from skylark.broker.replication.sync_state import Progress
from skylark.errors import ConnectionLost, MalformedFrame, OffsetOutOfRange
from skylark.protocol.command import Buffer
from skylark.protocol.epoch_ha import MasterGreeting, SlaveGreeting, SlaveReader, data_head
from skylark.protocol.ha import FRAME_HEAD, ReportReader
from skylark.remoting.ha import HaLink
from skylark.remoting.server import RequestRate, TokenBucket
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.epochs import EpochFile
from skylark.store.message_store import MessageStore

GATHER_S = 0.002
"""An asynchronous master collects data for this time before it sends."""
NEAR_BYTES = 64 << 20
"""So close to its end, and written by this process, the log is in memory."""
RATE_PAUSE_S = 0.01
RATE_BURSTS_PER_S = 20


class ConnectedSlave:
    """A link to one slave. Loop thread."""

    def __init__(
        self,
        link: HaLink,
        store: MessageStore,
        live: LiveSettings[BrokerSettings],
        role: Role,
        read_cold: ReadCold,
        *,
        now: float,
    ) -> None:
        self.link = link
        self.acknowledged: int | None = None
        """Up to here it has the log; None before its first report."""
        self.position = 0
        """What is sent next."""
        self.bytes_per_s = 0
        self._store = store
        self._live = live
        self._role = role
        self._read_cold = read_cold
        self._reports = ReportReader()
        self._more = asyncio.Event()
        self._sent_bytes = 0
        self._bucket: TokenBucket | None = None
        self._counted = (now, 0)  # when, and what had been sent by then
        self._checked = (now, store.appended_offset)
        self._caught_up_at = now

    # --- What the slave says ---

    def receive(self, data: bytes) -> bool:
        """Take its reports; returns whether there was one. Raises MalformedFrame for one that cannot be."""
        return self._take(self._reports.receive(data))

    def _take(self, reports: list[int]) -> bool:
        for report in reports:
            if self.acknowledged is None:
                self._begin(report)
            elif report > self.position:
                raise MalformedFrame(f"report of {report}, although only {self.position} was sent")
            self.acknowledged = max(report, self.acknowledged or 0)
        return bool(reports)

    def _begin(self, report: int) -> None:
        log, appended = self._store.log, self._store.appended_offset
        if report > appended:
            raise MalformedFrame(f"report of {report}, although the log ends at {appended}")
        if report < log.min_offset and report != 0:
            raise MalformedFrame(f"{report} was asked for, and the log begins at {log.min_offset}")
        self.position = report or self._first()

    def _first(self) -> int:
        """Where a slave with an empty log begins."""
        return self._store.log.files.start_of(self._store.appended_offset)

    # --- What it is sent ---

    def wake(self) -> None:
        """Wake the sender: the log has grown, or the link is lost."""
        self._more.set()

    async def send(self) -> None:
        """Send the log as it grows, until the link is lost."""
        batch_bytes = self._live.current.replication.batch_bytes
        while not self.link.is_closed:
            size = self._limited(min(self._store.appended_offset - self.position, batch_bytes))
            if size <= 0:
                self._more.clear()
                await self._more.wait()
                if not self._role.waits_for_slaves:
                    await asyncio.sleep(GATHER_S)
                continue
            size = self._allowed(size)
            if size == 0:
                await asyncio.sleep(RATE_PAUSE_S)
                continue
            try:
                data = await self._read(size)
            except (OffsetOutOfRange, OSError) as error:
                self.link.abort(error)
                return
            self.link.write(self._head(len(data)), data)
            self.position += len(data)
            self._sent_bytes += len(data)
            await self.link.wait_writable()
            if self.position < self._store.appended_offset:
                await asyncio.sleep(0)  # yields to sends and pulls while the slave catches up

    def _head(self, body_bytes: int) -> bytes:
        """The head of a frame with data from the position on, or of a heartbeat."""
        return FRAME_HEAD.pack(self.position, body_bytes)

    def _limited(self, size: int) -> int:
        """Limit data to what one frame may hold."""
        return size

    def _allowed(self, size: int) -> int:
        """Limit data to what may be sent now."""
        settings = self._live.current.replication
        if not settings.flow_control:
            return size
        rate = RequestRate(settings.bytes_per_s_max, max(settings.bytes_per_s_max // RATE_BURSTS_PER_S, 1))
        now = asyncio.get_running_loop().time()
        if self._bucket is None:
            self._bucket = TokenBucket(rate, now)
        return self._bucket.take(size, rate, now)

    async def _read(self, size: int) -> Buffer:
        """Bytes of the log from the position on, within a file. Raises OffsetOutOfRange, OSError."""
        store, position = self._store, self.position
        size = min(size, store.log.file_bytes - position % store.log.file_bytes)
        if position >= max(store.reader.hot.written_from, store.appended_offset - NEAR_BYTES):
            view = store.log.select(position, size)
            if view is not None:
                return view
        return await self._read_cold(lambda: store.read_log(position, size))

    # --- Time ---

    def tick(self, now: float, loop_now: float) -> None:
        """Send a heartbeat when due. Raises ConnectionLost if the slave was silent for too long."""
        settings = self._live.current.replication
        if loop_now - self.link.read_at > settings.idle_timeout_ms / 1000:
            raise ConnectionLost(self.link.address, f"silent for {settings.idle_timeout_ms} ms")
        if (
            self.acknowledged is not None
            and loop_now - self.link.written_at > settings.heartbeat_interval_ms / 1000
        ):
            self.link.write(self._head(0))
        self._measure(now)

    def _measure(self, now: float) -> None:
        checked_at, appended = self._checked
        if self.acknowledged is not None and self.acknowledged >= appended:
            self._caught_up_at = checked_at
        self._checked = (now, self._store.appended_offset)
        counted_at, counted_bytes = self._counted
        if now - counted_at >= 1:
            self.bytes_per_s = int((self._sent_bytes - counted_bytes) / (now - counted_at))
            self._counted = (now, self._sent_bytes)

    def lag_s(self, now: float, appended: int) -> float:
        """Return for how long the slave has lagged behind."""
        if self.acknowledged is None or self.acknowledged >= appended:
            return 0.0
        return now - self._caught_up_at


class ConnectedReplica(ConnectedSlave):
    """A link to one replica. Loop thread."""

    def __init__(
        self,
        link: HaLink,
        store: MessageStore,
        live: LiveSettings[BrokerSettings],
        role: Role,
        read_cold: ReadCold,
        epoch_file: EpochFile,
        confirmed: Callable[[], int],
        *,
        now: float,
    ) -> None:
        """`confirmed` returns the confirm offset."""
        super().__init__(link, store, live, role, read_cold, now=now)
        self._epoch_file = epoch_file
        self._confirmed = confirmed
        self._reader = SlaveReader()
        self._end_when_sent = store.appended_offset

    @property
    def greeting(self) -> SlaveGreeting | None:
        return self._reader.greeting

    def progress(self, now: float) -> Progress:
        acknowledged = self.acknowledged
        return Progress(
            acknowledged,
            self.lag_s(now, self._store.appended_offset),
            is_learner=self.greeting is not None and self.greeting.is_learner,
            is_near=acknowledged is not None and acknowledged >= self._end_when_sent,
        )

    def receive(self, data: bytes) -> bool:
        is_greeted = self.greeting is not None
        reports = self._reader.receive(data)
        if self.greeting is not None and not is_greeted:
            entries = self._epoch_file.epochs.entries
            self.link.write(MasterGreeting(self._store.appended_offset, entries).encode())
        return self._take(reports)

    def _first(self) -> int:
        log = self._store.log
        if self.greeting is not None and self.greeting.syncs_from_last_file:
            return super()._first()
        return log.min_offset

    def _limited(self, size: int) -> int:
        """A frame does not cross an epoch."""
        following = self._epoch_file.epochs.after(self.position)
        return size if following is None else min(size, following.start - self.position)

    def _head(self, body_bytes: int) -> bytes:
        self._end_when_sent = self._store.appended_offset
        entry = self._epoch_file.epochs.at(self.position)
        epoch, start = (self._role.epoch, self.position) if entry is None else entry
        return data_head(self.position, body_bytes, epoch, start, self._confirmed())
