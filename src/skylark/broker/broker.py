"""Broker: builds the parts, starts and stops them. No request is decided here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from skylark.broker.delayed.timers import FLUSH_INTERVAL_S
from skylark.broker.handlers.pull import PullPath
from skylark.broker.handlers.send import SendPath
from skylark.broker.long_polling import HeldPull
from skylark.broker.metadata_files import MetadataFile, MetadataWriter, load_metadata
from skylark.broker.monitoring.monitor import Monitor
from skylark.broker.monitoring.stats import STEP_S
from skylark.broker.registration import Registration
from skylark.broker.replication.restore_offsets import restore_offsets
from skylark.broker.replication.slave import ReplicationSlave
from skylark.broker.request_routes import fast_routes, main_routes, watermarks
from skylark.broker.state import BrokerState
from skylark.clock import Clock
from skylark.model.sql92 import compile_selector
from skylark.protocol.bodies import TopicRouteData
from skylark.protocol.connection import Limits
from skylark.remoting.server import Peer, RemotingServer, RequestRate, ServerLimits
from skylark.settings import BrokerSettings
from skylark.settings.fields import FAST_PORT_DISTANCE
from skylark.store.append_result import AppendedRecord
from skylark.store.disk import Disk
from skylark.store.message_store import INDEX_SLICE

log = logging.getLogger(__name__)

EXPIRE_WAITERS_S = 0.1
WAITERS_CHECK_S = 0.005
INDEX_TOGETHER = 8
"""Messages of a lone sender that are indexed together: so few that its next one hardly waits for them."""
WARM_UP_AFTER_S = 3.0
"""When what is needed rarely, but then on the loop, is loaded: not while everybody connects."""
WARM_UP_TURN_S = 0.0005
"""How long the loop waits for the thread that loads it, each time that the two meet."""
USUAL_TURN_S = sys.getswitchinterval()
"""Not looked up when it is changed: another broker of this process may just have changed it."""


class Broker(BrokerState):
    """A broker on the running loop. Start it once, stop it once."""

    def __init__(
        self, settings: BrokerSettings, *, clock: Clock | None = None, disk: Disk | None = None
    ) -> None:
        super().__init__(settings, clock=clock, disk=disk)
        # A disk that hangs stops the writing of metadata, and nothing else.
        self._writers = ThreadPoolExecutor(1, "skylark-metadata")
        self._pull_path = PullPath(self)
        self._send_path = SendPath(self)
        self._indexing = False
        self.registration = Registration(self)
        self._slave = ReplicationSlave(self) if self.role.is_slave else None
        self.monitor = Monitor(self)
        self._server = RemotingServer(
            server_limits(self.live.current), on_disconnect=self._disconnected, latencies=self.latencies
        )
        self._server.rate = request_rate(self.live.current)
        self._server.vigil.on_end = self._index_soon
        self._config_file: MetadataFile | None = None
        self._opening: asyncio.Future[None] | None = None
        self._build_files()

    def _build_files(self) -> None:
        settings = self.live.current
        directory = settings.config_directory
        self.metadata = MetadataWriter(
            gather_s=settings.metadata_gather_ms / 1000, run_blocking=self._run_writer
        )
        self._topics_file = self.metadata.add(directory / "topics.json", self.topics.snapshot)
        groups_file = self.metadata.add(directory / "subscriptionGroup.json", self.groups.snapshot)
        self._offsets_file = self.metadata.add(directory / "consumerOffset.json", self.offsets.snapshot)
        self._delays_file = self.metadata.add(directory / "delayOffset.json", self.schedule.snapshot)
        self._timers_file = self.metadata.add(directory / "timermetrics", self.timers.snapshot)
        self._offset_changes_saved = self._delay_changes_saved = self._timer_changes_saved = 0
        self.topics.on_change = self._topics_changed
        self.groups.on_change = groups_file.mark
        modes_file = self.metadata.add(directory / "messageRequestMode.json", self.request_modes.snapshot)
        self.request_modes.on_change = modes_file.mark
        filters_file = self.metadata.add(directory / "consumerFilter.json", self.consumer_filters.snapshot)
        self.consumer_filters.on_change = filters_file.mark
        if (path := settings.config_path) is not None:
            self._config_file = self.metadata.add(path, lambda: self.configuration.snapshot(path))
        self.configuration.on_change = self._settings_changed

    # --- Life ---

    async def start(self) -> None:
        """Recover the store, load metadata, listen, register. Raises StoreError, MasterExists, OSError."""
        self._loop = asyncio.get_running_loop()
        settings = self.live.current
        try:
            slaves = set() if self.role.is_slave else await self.registration.find_slaves()
            self._opening = self._loop.run_in_executor(self.readers, self._open)
            await asyncio.shield(self._opening)
            await restore_offsets(self, slaves)
            main, fast = (make(self, self._send_path, self._pull_path) for make in (main_routes, fast_routes))
            await self._server.listen(settings.host, self.port, main)
            await self._server.listen(settings.host, self.port - FAST_PORT_DISTANCE, fast)
            if self._slave is None:
                await self.replication.start(settings.host, self.replica_port)
            self.monitor.start(settings.host, settings.metrics_port)
        except BaseException:
            await self.stop()
            raise
        self._start_services(settings)
        log.info("broker started name=%s address=%s", settings.name, self.address)

    def _open(self) -> None:
        """What waits for the disk: metadata and the store. Nothing else runs yet."""
        directory = self.live.current.config_directory
        load_metadata(directory / "topics.json", self.topics.load)
        load_metadata(directory / "subscriptionGroup.json", self.groups.load)
        load_metadata(directory / "consumerOffset.json", self.offsets.load)
        load_metadata(directory / "messageRequestMode.json", self.request_modes.load)
        now_ms = self.clock.now_ms()
        load_metadata(
            directory / "consumerFilter.json", lambda data: self.consumer_filters.load(data, now_ms=now_ms)
        )
        report = self.store.open()
        if report.others_wrote or not self.role.is_slave:
            self.copy_mark.clear()
        self.slave_status.is_copy = self.copy_mark.is_set
        load_metadata(directory / "delayOffset.json", self.schedule.load)
        if not self.role.is_slave:
            self.transactions.load()
        load_metadata(directory / "timermetrics", self.timers.load_metrics)
        self.timers.load()
        queues: dict[str, int] = {}
        for topic, queue_id in self.store.queues:
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
        self.adopt_topics(queues)

    def _start_services(self, settings: BrokerSettings) -> None:
        self.store.on_arrival = self._arrived
        self.store.on_flushed = self._flush_returned
        self.store.start()
        tasks = self.tasks
        tasks.spawn(self.metadata.run())
        if self._slave is None:
            tasks.spawn(self.schedule.run())
            tasks.spawn(self.transactions.run())
        else:
            self.registration.on_reply = self._slave.registered
            self._slave.start()
        tasks.spawn(self.timers.run())
        tasks.spawn(self._warm_up())
        tasks.every(FLUSH_INTERVAL_S * 1000, self.timers.flush, "flush timers")
        tasks.every(settings.offset_persist_interval_ms, self._save_offsets, "save offsets")
        tasks.every(settings.delay_offset_persist_interval_ms, self._save_delays, "save delays")
        tasks.every(settings.hold_check_interval_ms, self.long_polling.check, "check held pulls")
        tasks.every(settings.client_scan_interval_ms, self._expire_clients, "expire clients")
        tasks.every(STEP_S * 1000, self._step_stats, "step statistics")
        if self.syncs:
            tasks.every(EXPIRE_WAITERS_S * 1000, self.store.expire_waiters, "expire waiters")
        self.registration.start()

    async def stop(self) -> None:
        """Unregister, answer what is at work, save everything, close the store. Also after a failed start."""
        if self._opening is not None:
            # A start was given up, its thread cannot be: what that one opens is closed, too.
            await asyncio.wait([self._opening])
        await self.registration.stop()
        self.monitor.stop()
        self._server.stop_reading()
        self.long_polling.wake_all()
        timeout_s = self.live.current.shutdown_timeout_ms / 1000
        await self._answer_waiting(timeout_s / 2)
        self.replication.stop()
        await self._server.close(drain_timeout_s=timeout_s)
        await self.tasks.close()
        if self._slave is not None:
            await self._slave.stop()
        self.store.on_arrival = None  # closing flushes once more, in a thread
        self._save_offsets()
        self._save_delays()
        try:
            await self.timers.flush()
            await self.metadata.flush()
        finally:
            await asyncio.get_running_loop().run_in_executor(self.readers, self.store.close)
            self.readers.shutdown(wait=False)
            self._writers.shutdown(wait=False)
            log.info("broker stopped name=%s address=%s", self.live.current.name, self.address)

    async def _answer_waiting(self, timeout_s: float) -> None:
        """Let sends that wait for disk or slaves have their answer: that goes on, up to a time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while len(self.store.waiters) or self.replication.waiting:  # noqa: ASYNC110 (a flush answers many at once)
                    await asyncio.sleep(WAITERS_CHECK_S)
        # Those whose flush never came, here and not in the thread that closes the store.
        self.store.waiters.failed()

    # --- Called by the parts ---

    def resume_pull(self, held: HeldPull) -> None:
        self._pull_path.resume(held)

    async def wait_registered(self) -> None:
        await self.registration.settle()

    async def find_route(self, topic: str) -> TopicRouteData | None:
        return await self.registration.route(topic)

    async def keep_offsets(self) -> None:
        self._offsets_file.mark()
        await self.metadata.flush()

    def watermarks(self) -> dict[str, int]:
        return watermarks(
            self._server.at_work.copy(), sends=self._send_path.waiting, pulls=self._pull_path.cold
        )

    def _arrived(self, batch: Sequence[AppendedRecord]) -> None:
        """New messages are visible: index them when the loop has nothing better to do, wake who waits."""
        index = self.store.index
        # Several together cost less each. But only a loop that is kept awake can wait for them: who sends one
        # by one would find it asleep, and to wake it takes longer than to index one.
        if index is not None and not (self._server.vigil.is_kept and index.pending_count < INDEX_TOGETHER):
            self._index_soon()
        self.long_polling.arrived(batch)

    def _index_soon(self) -> None:
        if not self._indexing and self.store.index is not None:
            self._indexing = True
            self._loop.call_soon(self._build_index)

    def _build_index(self) -> None:
        self._indexing = self.store.build_some_index(INDEX_SLICE)
        if self._indexing:
            self._loop.call_soon(self._build_index)

    def _flush_returned(self) -> None:
        """The flush thread: answer a lone send right here, and go on where the tables live."""
        answer = self._send_path.flushed_lone()
        if answer is not None:
            self.store.publish()  # what is acknowledged can be read
            answer.send()
        with contextlib.suppress(RuntimeError):  # the loop is closed: a disk that hung let the broker stop
            self._loop.call_soon_threadsafe(self._flushed)

    def _flushed(self) -> None:
        # Answers leave before the index is built: with `call_soon` they would come after it.
        with self._server.gathering():
            self.store.advance()
        if self._slave is not None:
            self._slave.flushed()

    def _settings_changed(self) -> None:
        self._server.rate = request_rate(self.live.current)
        if self._config_file is not None:
            self._config_file.mark()

    def _topics_changed(self) -> None:
        self._topics_file.mark()
        self.registration.topics_changed()

    def _disconnected(self, peer: Peer) -> None:
        self.long_polling.drop(peer)
        self.producers.channel_closed(peer)
        for notice in self.consumers.channel_closed(peer):
            self.tell(notice)

    def _expire_clients(self) -> None:
        now = self.clock.monotonic()
        silent, notices = self.consumers.expire(now)
        for channel in dict.fromkeys([*silent, *self.producers.expire(now)]):
            if isinstance(channel, Peer):
                log.warning("client silent for too long, closed peer=%s", channel.address)
                channel.abort()
        for notice in notices:
            self.tell(notice)
        self.locks.expire(now)
        self.consumer_filters.retire(
            lambda group: self.consumers.group(group) is not None, now_ms=self.clock.now_ms()
        )

    async def _warm_up(self) -> None:
        """Load the grammar of selectors: the first one would hold up the loop for a tenth of a second."""
        await asyncio.sleep(WARM_UP_AFTER_S)
        if not self.live.current.sql_filters:
            return
        sys.setswitchinterval(WARM_UP_TURN_S)
        try:
            await self.read_cold(lambda: compile_selector("warm = TRUE"))
        finally:
            sys.setswitchinterval(USUAL_TURN_S)

    async def _step_stats(self) -> None:
        for _ in self.stats.slices(self.clock.monotonic(), self.clock.now_ms()):
            await asyncio.sleep(0)

    def _save_offsets(self) -> None:
        if not self.role.is_slave:
            self.transactions.save_progress()
        if self.offsets.changes != self._offset_changes_saved:
            self._offset_changes_saved = self.offsets.changes
            self._offsets_file.mark()

    def _save_delays(self) -> None:
        if self.schedule.changes != self._delay_changes_saved:
            self._delay_changes_saved = self.schedule.changes
            self.schedule.bump()
            self._delays_file.mark()
        if self.timers.changes != self._timer_changes_saved:
            self._timer_changes_saved = self.timers.changes
            self._timers_file.mark()

    async def _run_writer(self, write: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writers, write)


def request_rate(settings: BrokerSettings) -> RequestRate | None:
    """What each connection may send, None without a limit."""
    per_second = settings.client_requests_per_s_max
    return RequestRate(per_second, settings.client_requests_burst_max) if per_second else None


def server_limits(settings: BrokerSettings) -> ServerLimits:
    return ServerLimits(
        protocol=Limits(frame_bytes_max=settings.frame_bytes_max),
        connections_max=settings.connections_max,
        requests_in_flight_max=settings.requests_in_flight_max,
        bytes_in_flight_max=settings.bytes_in_flight_max,
        write_high_water_bytes=settings.write_high_water_bytes,
        write_bytes_max=settings.write_bytes_max,
        idle_timeout_s=settings.idle_timeout_s,
        stay_awake_us=settings.stay_awake_us,
    )
