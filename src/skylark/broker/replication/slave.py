"""The slave's side of replication: finds the master, compares logs, follows, and reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial

from skylark.broker.long_polling import LongPolling
from skylark.broker.record_loader import ReadCold
from skylark.broker.replication.last_master import LastMaster
from skylark.broker.replication.metadata_sync import MetadataSync
from skylark.broker.replication.role import SlaveStatus
from skylark.clock import Clock
from skylark.errors import CannotFollow, ConnectionLost, LogsDiverged, RocketMQError
from skylark.protocol.ha import REPORT, FrameReader
from skylark.protocol.requests.admin import GetBrokerConfig, GetBrokerRuntimeInfo
from skylark.protocol.requests.name_server import RegisterBrokerReply
from skylark.protocol.requests.pull import ViewMessageById
from skylark.remoting.address import join_address, split_address
from skylark.remoting.ha import HaLink, connect_ha
from skylark.remoting.tls_client import ClientTls
from skylark.settings import ReplicationSettings
from skylark.settings.properties import read_properties
from skylark.store.message_store import MessageStore
from skylark.store.replica import ReplicaIntake, overlap_start
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
WATCH_S = 0.05
PUBLISH_S = 0.005
"""Readers of a slave see records so much later: it costs less to publish many together."""
FIRST_PAUSE_SHARE = 20
"""The first pause between attempts is the longest divided by this."""
METADATA_RETRY_S = 1.0
"""Retry interval of failed metadata synchronization: missing metadata is lost on promotion."""
FILE_BYTES_KEY = "mappedFileSizeCommitLog"


@dataclass(frozen=True)
class MasterLog:
    """Where the master's log begins and ends."""

    min_offset: int
    max_offset: int


class ReplicationSlave:
    """Follows a master. Loop thread."""

    def __init__(
        self,
        settings: ReplicationSettings,
        clock: Clock,
        status: SlaveStatus,
        store: MessageStore,
        metadata: MetadataSync,
        last_master: LastMaster,
        long_polling: LongPolling,
        tasks: Tasks,
        read_cold: ReadCold,
        tls: ClientTls | None = None,
    ) -> None:
        self._tls = tls
        self._settings = settings
        self._clock = clock
        self._status = status
        self._store = store
        self._metadata = metadata
        self._pool = metadata.pool
        self._last_master = last_master
        self._long_polling = long_polling
        self._tasks = tasks
        self._read_cold = read_cold
        self._overlap_bytes = self._settings.overlap_bytes
        self._link: HaLink | None = None
        self._frames = FrameReader()
        self._intake = ReplicaIntake(self._store, 0)
        self._found = asyncio.Event()
        self._master_config: list[tuple[str, str]] = []
        self._followed = ""
        """The master of this attempt: name servers may speak of another one before the link to it is lost."""
        self._common_end = 0
        self.publishing: asyncio.TimerHandle | None = None
        """Set while received records wait to be published."""
        self._joined = asyncio.Event()
        """Set while the link is open and the logs were found to be the same: it is the right master."""
        self._metadata_due = asyncio.Event()
        self._status.master_address = self._settings.slave_of
        self._status.replica_address = self._settings.replica_address
        if self._settings.slave_of:
            self._found.set()
        else:
            self._status.last_error = "no name server knows the master"

    def start(self) -> None:
        self._tasks.spawn(self._run())
        self._tasks.spawn(self._keep_metadata())

    async def stop(self) -> None:
        """The tasks are the broker's, and cancelled by it."""
        if self._link is not None:
            self._link.abort()
        self._stop_publishing()
        await self._pool.close()

    # --- Who the master is ---

    def registered(self, reply: RegisterBrokerReply) -> None:
        """Take the master's addresses from a name server's reply."""
        status = self._status
        if not reply.master_addr or self._settings.slave_of not in ("", reply.master_addr):
            return
        status.master_address = reply.master_addr
        if not self._settings.replica_address and reply.ha_server_addr:
            status.replica_address = reply.ha_server_addr
        self._found.set()

    def _replica_address(self) -> str:
        """Raises ValueError for an invalid address."""
        if self._status.replica_address:
            return self._status.replica_address
        host, port = split_address(self._status.master_address)
        return join_address(host, port + 1)

    async def _ask_master(self) -> MasterLog:
        """Raises CannotFollow, RemotingError, BrokerError."""
        address = self._followed
        config = (await self._pool.call(address, GetBrokerConfig(), timeout_s=ASK_TIMEOUT_S)).text
        self._master_config = [(key, value) for key, value, _ in read_properties(config)]
        for key, value in self._master_config:
            if key == FILE_BYTES_KEY and value != str(self._store.log.file_bytes):
                raise CannotFollow(
                    f"its log has files of {value} bytes, this one of {self._store.log.file_bytes}: "
                    f"set {FILE_BYTES_KEY}={value}, and begin with an empty store"
                )
        info = (await self._pool.call(address, GetBrokerRuntimeInfo(), timeout_s=ASK_TIMEOUT_S)).table
        try:
            # An empty log of Apache's begins at -1.
            found = MasterLog(max(0, int(info["commitLogMinOffset"])), int(info["commitLogMaxOffset"]))
        except (KeyError, ValueError) as error:
            raise CannotFollow(f"{address} does not say where its log begins and ends ({error})") from None
        self._status.master_offset = found.max_offset
        return found

    # --- Following ---

    async def _run(self) -> None:
        longest_s = self._settings.reconnect_interval_ms_max / 1000
        pause_s = longest_s / FIRST_PAUSE_SHARE
        while True:
            await self._found.wait()
            position = self._store.appended_offset
            try:
                await self._follow()
            except LogsDiverged as error:
                self._widen(error)
            except (RocketMQError, OSError, ValueError) as error:
                self._note(error)
            except Exception as error:
                log.exception("following the master failed, retrying")
                self._note(error)
            if self._store.appended_offset > position:
                pause_s = longest_s / FIRST_PAUSE_SHARE
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def _note(self, error: Exception) -> None:
        """Record why the master is not followed; logged once, as critical if it needs an administrator."""
        text = str(error) or type(error).__name__
        if text != self._status.last_error:
            level = logging.CRITICAL if isinstance(error, CannotFollow) else logging.WARNING
            log.log(level, "master not followed address=%s reason=%s", self._status.master_address, text)
        self._status.last_error = text

    def _widen(self, error: LogsDiverged) -> None:
        """Compare more next time; if the whole log differs, it is another master's."""
        if error.physical_offset <= self._store.log.min_offset:
            self._note(
                CannotFollow(
                    f"no record that was compared is the same, from {error.physical_offset} on. Nothing is "
                    "deleted: if this is the right master, move the store away and begin with an empty one"
                )
            )
        else:
            log.warning("nothing in common, more is compared reason=%s", error)
            self._overlap_bytes *= 4

    async def _follow(self) -> None:
        """Follow the master until the link is lost. Raises what ended it."""
        if self._store.settings.syncs_every_put:
            # What is reported first is where the master begins: it must be on disk.
            await self._read_cold(self._store.flusher.flush)
        self._followed = self._status.master_address
        start, is_common = await self._where_to_begin(await self._ask_master())
        self._frames = FrameReader()
        self._intake = ReplicaIntake(self._store, start, is_common=is_common)
        link = await connect_ha(
            self._replica_address(), self._received, timeout_s=CONNECT_TIMEOUT_S, tls=self._tls
        )
        self._link = link
        try:
            log.info("following the master address=%s physical_offset=%d", link.address, start)
            self._status.connections += 1
            self._report(link)
            self._see_master(True)
            if self._common_end == 0:
                self._join()
            await self._watch(link)
        finally:
            self._link = None
            self._joined.clear()
            self._see_master(False)
            link.abort()
        raise link.failure or ConnectionLost(link.address)

    async def _where_to_begin(self, master: MasterLog) -> tuple[int, bool]:
        """Where to begin comparing, or receiving; and whether what lies before is known to be the same."""
        store, end = self._store, self._store.appended_offset
        if end == 0:
            return await self._begin_empty(master)
        if end < master.min_offset:
            raise CannotFollow(
                f"its log begins at {master.min_offset}, and this one ends at {end}: what lies between is "
                "gone. Move the store away and begin with an empty one"
            )
        self._common_end = min(end, master.max_offset)
        start = await self._read_cold(partial(overlap_start, store, self._common_end, self._overlap_bytes))
        start = max(start, master.min_offset)
        if start == 0 and master.max_offset == 0:
            raise CannotFollow(
                f"its log is empty, and this one ends at {end}: is it the right master, on the right store?"
            )
        if start == 0 and master.max_offset >= store.log.file_bytes:
            # A report of 0 would mean its last file: the first record is compared by asking for it.
            record = await self._first_record()
            if store.read_log(0, len(record)) != record:
                raise LogsDiverged(0)
            return len(record), True
        return start, False

    async def _begin_empty(self, master: MasterLog) -> tuple[int, bool]:
        """Get all that the master has."""
        self._common_end = 0
        if master.min_offset or master.max_offset < self._store.log.file_bytes:
            return master.min_offset, True
        # A report of 0 would mean its last file: the first record is asked for, and the others follow.
        record = await self._first_record()
        self._store.append_raw(0, record)
        return len(record), True

    async def _first_record(self) -> bytes:
        request = ViewMessageById(0)
        record = await self._pool.call(self._followed, request, timeout_s=ASK_TIMEOUT_S)
        return bytes(record)

    def _received(self, link: HaLink, data: bytes) -> None:
        self._publish_soon()
        for piece in self._frames.receive(data):
            self._intake.take(*piece)
        if self._intake.position >= self._common_end and not self._joined.is_set():
            self._join()
        if self._intake.divergence is not None:
            self._status.divergence = str(self._intake.divergence)
        status = self._status
        status.last_error = ""
        status.received_bytes += len(data)
        status.read_ms = self._clock.now_ms()
        self._report(link)
        self._restrain(link)

    def _restrain(self, link: HaLink) -> None:
        """Read no more while too much waits for the disk."""
        store = self._store
        if store.appended_offset - store.flushed_offset > store.settings.unflushed_bytes_max:
            link.pause_reading()

    def _join(self) -> None:
        """The logs are the same as far as the master's went when it was asked: it is the right one."""
        self._overlap_bytes = self._settings.overlap_bytes
        if not self._status.is_copy:
            # Records that this broker appended as a master, and the new master lacks, are dropped.
            # It becomes a copy when it also has the offsets.
            self._intake.cut_rest()
        self._last_master.note(self._master_config)
        self._joined.set()
        self._metadata_due.set()

    def _publish_soon(self) -> None:
        """Publish received records together, after the report has left: the master waits for it."""
        if self.publishing is None:
            self.publishing = asyncio.get_running_loop().call_later(PUBLISH_S, self._publish)

    def _publish(self) -> None:
        self.publishing = None
        self._store.advance()

    def _stop_publishing(self) -> None:
        if self.publishing is not None:
            self.publishing.cancel()
            self.publishing = None

    def _report(self, link: HaLink) -> None:
        """Report up to where the log equals the master's, and is on disk under sync flush."""
        status = self._status
        status.position = self._acknowledgeable()
        status.master_offset = max(status.master_offset, self._intake.position)
        status.written_ms = self._clock.now_ms()
        if not status.lag_bytes:
            status.caught_up_ms = status.written_ms
        link.write(self._encode_report(status.position))

    def _encode_report(self, physical_offset: int) -> bytes:
        return REPORT.pack(physical_offset)

    def flushed(self) -> None:
        """More of the log is on disk."""
        link = self._link
        if link is None:
            return
        if self._status.position < self._acknowledgeable():
            self._report(link)

    def _acknowledgeable(self) -> int:
        position, store = self._intake.position, self._store
        # An empty log may begin anywhere.
        return min(position, store.confirmed_offset) if position <= store.appended_offset else position

    def _see_master(self, sees: bool) -> None:
        self._status.sees_master = sees
        if sees:
            self._long_polling.wake_all()

    async def _watch(self, link: HaLink) -> None:
        """Watch a link until it is lost: heartbeats, idle timeout, back-pressure of the disk."""
        loop, store, settings = asyncio.get_running_loop(), self._store, self._settings
        counted_at, counted = loop.time(), self._status.received_bytes
        while not link.is_closed:
            try:
                async with asyncio.timeout(WATCH_S):
                    await link.wait_lost()
            except TimeoutError:
                pass
            now = loop.time()
            if now - link.read_at > settings.idle_timeout_ms / 1000:
                link.abort(ConnectionLost(link.address, f"silent for {settings.idle_timeout_ms} ms"))
            elif now - link.written_at > settings.heartbeat_interval_ms / 1000:
                self._report(link)
            if store.appended_offset - store.flushed_offset <= store.settings.unflushed_bytes_max // 2:
                link.resume_reading()
            if now - counted_at >= 1:
                received = self._status.received_bytes
                self._status.bytes_per_s = int((received - counted) / (now - counted_at))
                counted_at, counted = now, received

    # --- Metadata ---

    async def _keep_metadata(self) -> None:
        while True:
            # Not before: another broker's topics would take the place of ours.
            await self._joined.wait()
            self._metadata_due.clear()
            pause_s = self._settings.metadata_interval_ms / 1000
            try:
                await self._metadata.run(self._followed)
                await self._ask_master()
            except (RocketMQError, OSError, ValueError) as error:
                log.debug("cannot synchronize metadata reason=%s", error)
                pause_s = min(pause_s, METADATA_RETRY_S)
            except Exception:
                log.exception("synchronization of metadata failed, retrying")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._metadata_due.wait()
