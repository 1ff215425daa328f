"""The broker's runtime information under RocketMQ's names, which tools print and parse."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from skylark.broker.clients import ConsumerGroups
from skylark.broker.delayed.delay_levels import DelayLevels
from skylark.broker.delayed.timers import Timers
from skylark.broker.monitoring.stats import BrokerStats, Counter
from skylark.broker.record_loader import ReadCold
from skylark.broker.replication.last_master import LastMaster
from skylark.broker.replication.master import ReplicationMaster
from skylark.broker.replication.role import Role
from skylark.clock import Clock
from skylark.model.message import SCHEDULE_TOPIC
from skylark.protocol.codes import version_ordinal
from skylark.remoting.address import is_loopback
from skylark.remoting.monitor import Monitor
from skylark.remoting.server_metrics import security_faults
from skylark.remoting.tls import ServerTls
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.message_store import MessageStore

"""The release of RocketMQ whose protocol we speak."""
RATE_WINDOWS_S = (10.0, 60.0, 600.0)
GROUPS_NAMED_MAX = 100
NO_POOL = str((1 << 31) - 1)


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


@dataclass(frozen=True, slots=True, eq=False)
class RuntimeInfo:
    """The values of GET_BROKER_RUNTIME_INFO."""

    live: LiveSettings[BrokerSettings]
    clock: Clock
    role: Role
    store: MessageStore
    replication: ReplicationMaster
    delay_levels: DelayLevels
    timers: Timers
    stats: BrokerStats
    read_cold: ReadCold
    monitor: Monitor
    consumers: ConsumerGroups
    last_master: LastMaster
    started_ms: int
    tls: ServerTls | None

    async def collect(self) -> dict[str, str]:
        """Return all values, as text."""
        disk = await self.read_cold(self._of_disk)
        return {
            **self._of_store(),
            **self._rates(),
            **self._of_broker(),
            **self._of_security(),
            **self._of_replicas(),
            **self._queues(),
            **disk,
        }

    def _of_security(self) -> dict[str, str]:
        """Values that are there only if something is wrong."""
        settings = self.live.current
        is_open = not settings.auth.enabled and not is_loopback(settings.host)
        return security_faults(self.tls, settings.host if is_open else "")

    def _of_disk(self) -> dict[str, str]:
        """The values that need the disk. May block."""
        store, settings = self.store, self.store.settings
        log_directory = settings.commit_log_directory
        usage = _usage(log_directory)
        log_ratio = _used_ratio(usage)
        first = store.reader.store_timestamp(store.log.min_offset) if store.appended_offset else None
        return {
            "commitLogDiskRatio": log_ratio,
            f"commitLogDiskRatio_{log_directory}": log_ratio,
            "consumeQueueDiskRatio": _used_ratio(_usage(settings.path)),
            "commitLogDirCapacity": f"Total : {size_text(usage.total)}, Free : {size_text(usage.free)}.",
            "earliestMessageTimeStamp": str(-1 if first is None else first),
        }

    def _of_store(self) -> dict[str, str]:
        store, puts = self.store, self.stats.puts
        return {
            "bootTimestamp": str(self.started_ms),
            "runtime": duration_text(self.clock.now_ms() - self.started_ms),
            "putMessageTimesTotal": str(puts.count),
            "putMessageFailedTimes": str(self.stats.refused),
            "putMessageSizeTotal": str(puts.size),
            "putMessageAverageSize": str(puts.size / max(puts.count, 1)),
            "dispatchMaxBuffer": "0",
            "commitLogMinOffset": str(store.log.min_offset),
            "commitLogMaxOffset": str(store.appended_offset),
            "dispatchBehindBytes": str(store.appended_offset - store.confirmed_offset),
            "remainHowManyDataToFlush": size_text(store.appended_offset - store.flushed_offset),
            "remainTransientStoreBufferNumbs": NO_POOL,
            "pageCacheLockTimeMills": "0",
            **self._of_delays(),
        }

    def _of_delays(self) -> dict[str, str]:
        """Return delivered and maximum offset of each delay level that was used."""
        ends = {
            level: self.store.max_offset(SCHEDULE_TOPIC, level - 1) for level in self.delay_levels.offsets
        }
        return {
            f"scheduleMessageOffset_{level}": f"{self.delay_levels.offsets[level]},{end}"
            for level, end in sorted(ends.items())
            if end
        }

    def _of_broker(self) -> dict[str, str]:
        stats, version = self.stats, self.live.current.advertised_version
        return {
            "brokerActive": "true",
            "brokerVersion": str(version_ordinal(version)),
            "brokerVersionDesc": version,
            "msgPutTotalYesterdayMorning": str(stats.yesterday_morning.puts),
            "msgPutTotalTodayMorning": str(stats.this_morning.puts),
            "msgPutTotalTodayNow": str(stats.puts.count),
            "msgGetTotalYesterdayMorning": str(stats.yesterday_morning.gets),
            "msgGetTotalTodayMorning": str(stats.this_morning.gets),
            "msgGetTotalTodayNow": str(stats.gets.count),
            "startAcceptSendRequestTimeStamp": str(self.live.current.accept_sends_from_ms),
            "timerReadBehind": str(self.timers.behind_ms // 1000),
            "timerOffsetBehind": str(self.timers.queue_behind),
            "timerCongestNum": str(self.timers.waiting),
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "metricsAddress": self.monitor.address,
            "differentSubscriptions": " ".join(self._groups_with_different_subscriptions()),
        }

    def _groups_with_different_subscriptions(self) -> list[str]:
        counts = self.consumers.subscription_counts()
        return sorted(group for group, count in counts.items() if count > 1)[:GROUPS_NAMED_MAX]

    def _of_replicas(self) -> dict[str, str]:
        """Values that 907 has no members for, under names of our own."""
        if not self.role.is_slave:
            lags = {address: f"{lag_s:.1f}" for address, _, lag_s in self.replication.lags()}
            return {
                "replicationRole": self.role.kind.value,
                "replicationLagSeconds": " ".join(f"{address}={lag_s}" for address, lag_s in lags.items()),
                "replicationLastError": self.replication.last_error,
                **self._of_group(),
            }
        slave = self.role.slave
        return {
            "replicationRole": self.role.kind.value,
            "replicationMaster": slave.master_address,
            "replicationMasterRole": self.last_master.safety.broker_role,
            "replicationConnected": str(slave.sees_master).lower(),
            "replicationConnections": str(slave.connections),
            "replicationLagBytes": str(slave.lag_bytes),
            "replicationLagSeconds": f"{slave.lag_s(self.clock.now_ms()):.1f}",
            "replicationMetadataTimestamp": str(slave.metadata_ms),
            "replicationLastError": slave.last_error,
            "replicationDivergence": slave.divergence,
            **self._of_group(),
        }

    def _of_group(self) -> dict[str, str]:
        """Only in controller mode."""
        role = self.role
        if role.lease is None:
            return {}
        return {
            "replicationEpoch": str(role.epoch),
            "replicationMembers": " ".join(map(str, self.replication.members)),
            "replicationLapsed": str(not role.is_slave and role.is_lapsed).lower(),
        }

    def _rates(self) -> dict[str, str]:
        """Rates per second over the last 10, 60 and 600 seconds."""
        now, stats = self.clock.monotonic(), self.stats

        def rates(*counters: Counter, of_calls: bool = False) -> str:
            texts = []
            for window_s in RATE_WINDOWS_S:
                found = [counter.rate_within(now, window_s, of_calls=of_calls) for counter in counters]
                known = [rate for rate in found if rate is not None]
                # Unknown rates are omitted, as in RocketMQ; tools read the first.
                texts.append(str(sum(known)) if known else "")
            return " ".join([texts[0] or "0.0", *texts[1:]])

        return {
            "putTps": rates(stats.puts),
            "getFoundTps": rates(stats.gets, of_calls=True),
            "getMissTps": rates(stats.misses),
            "getTotalTps": rates(stats.gets, stats.misses, of_calls=True),
            "getTransferredTps": rates(stats.gets),
        }

    def _queues(self) -> dict[str, str]:
        """RocketMQ's request queues: always empty, requests are served on arrival."""
        settings = self.live.current
        capacities = {
            "send": settings.send_queue_max,
            "pull": settings.pull_queue_max,
            "litePull": settings.pull_queue_max,
            "query": settings.query_queue_max,
            "ack": 0,
        }
        info = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "0"}
        for name, capacity in capacities.items():
            info[f"{name}ThreadPoolQueueSize"] = "0"
            info[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
            info[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
        return info


def _usage(directory: Path) -> _Usage:
    """Return the usage of the disk of a directory, which may not exist yet."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return _Usage(*shutil.disk_usage(there))


def _used_ratio(usage: _Usage) -> str:
    """Return the used share of the usable space, rounded up to whole percents as RocketMQ does."""
    usable = usage.used + usage.free
    return str(-(-100 * usage.used // usable) / 100 if usable else 0.0)


def size_text(size: int) -> str:
    """`0 B`, `1.5 GiB`."""
    if size < 1024:
        return f"{size} B"
    number, units = float(size), "BKMGTPE"
    step = 0
    while number >= 1024 and step < len(units) - 1:
        number /= 1024
        step += 1
    return f"{number:.1f} {units[step]}iB"


def duration_text(duration_ms: int) -> str:
    """`[ 0 days, 0 hours, 5 minutes, 16 seconds ]`."""
    minutes, seconds = divmod(duration_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
