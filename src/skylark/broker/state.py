"""BrokerState: what the handlers of a broker share: tables, store, statistics, and the way to clients."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from skylark.broker.clients import ConsumerGroups, MembershipNotice, ProducerGroups, QueueLockTable
from skylark.broker.cold_reads import ColdReads
from skylark.broker.configuration import BrokerConfiguration
from skylark.broker.delayed.delay_levels import DelayLevels, parse_level
from skylark.broker.delayed.timers import SlaveTimers, Timers
from skylark.broker.error_replies import system_busy
from skylark.broker.filters.consumer_filters import ConsumerFilters
from skylark.broker.filters.pull_subscriptions import PullSubscriptions
from skylark.broker.groups import RequestModes, SubscriptionGroups
from skylark.broker.long_polling import HeldPull, LongPolling
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.replication.master import CombinedAnswer, ReplicationMaster
from skylark.broker.replication.role import Role, SlaveStatus
from skylark.broker.topics import TopicTable
from skylark.broker.transactions.coordinator import TransactionCoordinator
from skylark.clock import Clock, SystemClock
from skylark.errors import BrokerError
from skylark.model.message import PutMessage, pack_host
from skylark.model.message_id import UniqueIds
from skylark.protocol.bodies import TopicRouteData
from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.frame_templates import SendReplies
from skylark.protocol.requests.client import NotifyConsumerIdsChanged
from skylark.remoting.address import check_host, free_port, ip_of, join_address
from skylark.remoting.latency import RequestLatencies
from skylark.remoting.link import Answer as Reply
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings, parse_delay_levels
from skylark.settings.fields import FAST_PORT_DISTANCE
from skylark.settings.live import LiveSettings
from skylark.store.disk import Disk, RealDisk
from skylark.store.flush import FlushAnswer
from skylark.store.message_store import MessageStore
from skylark.store.replica import CopyMark
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

T = TypeVar("T")
COLD_READERS = 4


class BrokerState(ABC):
    """Loop thread, all of it; what may wait for the disk goes through `read_cold`."""

    def __init__(
        self, settings: BrokerSettings, *, clock: Clock | None = None, disk: Disk | None = None
    ) -> None:
        """Raises SettingsError for an address that cannot be listened on, or that clients cannot be told."""
        check_host(settings.host)
        if settings.port == 0:
            settings = replace(settings, port=free_port(settings.host, -FAST_PORT_DISTANCE, 0, 1))
        self.live = LiveSettings(settings)
        self.clock = clock or SystemClock()
        self.started_ms = now_ms = self.clock.now_ms()
        self.port = settings.port
        self.advertised_host = settings.advertised_host or settings.host
        self.address = join_address(self.advertised_host, self.port)
        self.replica_port = settings.replica_port if settings.replica_port is not None else self.port + 1
        if self.replica_port == 0:
            self.replica_port = free_port(settings.host, 0)
        self.replica_address = join_address(
            settings.advertised_replica_host or self.advertised_host, self.replica_port
        )
        self.store_host = pack_host(ip_of(self.advertised_host), self.port)
        self.syncs = settings.store.syncs_every_put
        self.role = Role(settings)
        self.slave_status = SlaveStatus()
        self.tasks = Tasks()
        self.stats = BrokerStats()
        self.latencies = RequestLatencies()
        self.unique_ids = UniqueIds(self.store_host[:-4], now_ms)
        self.send_replies = SendReplies(region=settings.region, trace_on=settings.trace_on)
        self._random = random.Random()  # noqa: S311 - it only spreads messages over queues
        # A disk that hangs stops reads of cold data, and nothing else.
        self.readers = ThreadPoolExecutor(COLD_READERS, "skylark-read")
        self.store = MessageStore(settings.store, disk=disk, clock=clock, store_host=self.store_host)
        self.store.is_replica = self.store.reader.keep_offset_on_correction = self.role.is_slave
        self.copy_mark = CopyMark(disk or RealDisk(), settings.store.path)
        self.replication = ReplicationMaster(
            self.live, self.store, self.clock, self.role, self.tasks, self.read_cold
        )
        self.topics = TopicTable(self.live, now_ms=now_ms)
        self.groups = SubscriptionGroups(self.live, now_ms=now_ms)
        self.offsets = ConsumerOffsets(self.live, now_ms=now_ms)
        self.consumers = ConsumerGroups(self.live)
        self.producers = ProducerGroups(self.live)
        self.consumer_filters = ConsumerFilters(filters_max=settings.offset_keys_max)
        self.locks = QueueLockTable(self.live)
        self.request_modes = RequestModes(self.live)
        self.configuration = BrokerConfiguration(self.live, now_ms=now_ms)
        self.cold_reads = ColdReads(self.live, now=self.clock.monotonic())
        self.deleting = asyncio.Lock()
        """Held for each topic that is deleted: of the reading threads only one shall wait for that."""
        self.pull_subscriptions = PullSubscriptions(self.live, self.consumers, self.groups)
        delays_ms = parse_delay_levels(settings.store.delay_levels)
        self.schedule = DelayLevels(
            self.store, self.clock, delays_ms, self.read_cold, self.adopt_undeleted, self.stats
        )
        self.transactions = TransactionCoordinator(self)
        timers = SlaveTimers if self.role.is_slave else Timers
        self.timers = timers(self, disk or RealDisk(), settings.store.path)
        self.long_polling = LongPolling(
            self.resume_pull, held_max=settings.held_pulls_max, held_bytes_max=settings.held_bytes_max
        )

    @abstractmethod
    def resume_pull(self, held: HeldPull) -> None:
        """Answer a pull that waited."""

    @abstractmethod
    async def wait_registered(self) -> None:
        """Wait, but not for long, until the name servers know the topics as they are now."""

    @abstractmethod
    async def find_route(self, topic: str) -> TopicRouteData | None:
        """Where a topic is, on all brokers, as name servers say; None if nobody says."""

    @abstractmethod
    async def keep_offsets(self) -> None:
        """Have the offsets of groups on the disk as they are now. Raises OSError."""

    @abstractmethod
    def watermarks(self) -> dict[str, int]:
        """Requests that wait for something, by RocketMQ's name of who serves them. Any thread."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let work go on by itself; its failure is logged."""
        self.tasks.spawn(work)

    async def read_cold(self, read: Callable[[], T]) -> T:
        """Do in a thread what may wait for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, read)

    def random_queue(self, queues: int) -> int:
        return self._random.randrange(queues) if queues > 0 else 0

    @property
    def waits(self) -> bool:
        """Whether sends are answered later, when disk or slaves have the messages."""
        return self.syncs or self.role.waits_for_slaves

    def check_shown(self) -> None:
        """Keep readers from what may be cut off, and groups from going back to where they were long ago.

        That is an old master's log and offsets, until it has joined the new one. A new slave knows of no
        offsets before that. Raises BrokerError 2.
        """
        if self.role.is_slave and not self.slave_status.is_copy:
            master = self.slave_status.master_address or "its master"
            raise system_busy(
                f"a slave that is new or was a master shows nothing before it has joined {master}"
            )

    def when_stored(self, end: int, answer: FlushAnswer) -> None:
        """Have `answer` called on the loop when disk and slaves have the log up to `end`, or too late."""
        if not self.role.waits_for_slaves:
            self.store.when_flushed(end, answer)
        elif not self.syncs:
            self.replication.when_replicated(end, answer)
        else:
            combined = CombinedAnswer(answer)
            self.store.when_flushed(end, combined.flushed)
            self.replication.when_replicated(end, combined.replicated)

    def commit_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Take an offset that came along with a pull: what is wrong with it does not matter to the pull."""
        try:
            self.offsets.commit(topic, group, queue_id, queue_offset, now_ms=self.clock.now_ms())
        except BrokerError as error:
            log.warning("offset not committed topic=%s group=%s reason=%s", topic, group, error.remark)

    def adopt_topics(self, queues_by_topic: Mapping[str, int]) -> None:
        """Take topics that hold messages although no file names them, with as many queues as they need."""
        try:
            adopted = self.topics.adopt(queues_by_topic.items(), now_ms=self.clock.now_ms())
        except BrokerError as error:
            log.warning("topics not taken from the store reason=%s", error.remark)
            return
        for topic in adopted:
            log.warning("topic taken from the store, no file names it topic=%s", topic)

    def adopt_undeleted(self, queues_by_topic: Mapping[str, int]) -> None:
        """Take topics to which messages are delivered late, but none that was deleted meanwhile."""
        deleted = self.store.housekeeper.deleted
        self.adopt_topics(
            {topic: queues for topic, queues in queues_by_topic.items() if topic not in deleted}
        )

    def delay_or_time(self, message: PutMessage, properties: dict[str, str]) -> None:
        """Send a message to where it waits, if its properties ask for that. Changes it in place.

        Raises BrokerError 13 for a time that cannot be kept, 1 if the broker does not keep times.
        """
        level = parse_level(properties)
        if level > 0:
            self.schedule.delay(message, properties, level)
        else:
            self.timers.admit(message, properties)

    def wait_as_sent(self, message: PutMessage) -> bool:
        """As `delay_or_time`, without taking properties apart; False without a wish, or where more is to do.

        Raises as `delay_or_time`.
        """
        return self.schedule.delay_as_sent(message) or self.timers.admit_as_sent(message)

    def tell(self, notice: MembershipNotice | None) -> None:
        """Tell the members of a group that it changed."""
        if notice is None:
            return
        # All are told the same: of a thousand members that leave one by one, each hears of all the others.
        command = NotifyConsumerIdsChanged(notice.group).to_command(oneway=True)
        command.language = Peer.language
        frame = b"".join(encode(command))
        for channel in notice.channels:
            if isinstance(channel, Peer) and not channel.is_closed:
                channel.write(frame)


BrokerHandler = Callable[[BrokerState, Peer, RemotingCommand], Reply | Awaitable[Reply]]
"""Answers one kind of request, now or later; a BrokerError that it raises is the answer."""
