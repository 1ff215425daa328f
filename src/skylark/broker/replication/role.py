"""Pure. Role, epoch and confirm offset of a broker, and the rules that depend on them.

A controller changes `kind`, `broker_id` and `epoch` while the broker runs; see docs/design/failover.md.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from skylark.broker.error_replies import system_busy
from skylark.broker.replication.lease import NEVER, MasterLease
from skylark.errors import BrokerError
from skylark.settings import BrokerRole, BrokerSettings, ReplicationSettings

CHANGE_S = 1.0
"""A new master is usually registered within this time after the former one has stepped back."""


@dataclass
class SlaveStatus:
    """Slave status. Written by the replication slave, read by any part."""

    master_address: str = ""
    replica_address: str = ""
    sees_master: bool = False
    """The link to the master is open."""
    is_copy: bool = False
    """Log and offsets are a copy of a master's: readers may see all of them."""
    position: int = 0
    """The log equals the master's up to here, and this was reported."""
    master_offset: int = 0
    """Last known end of the master's log."""
    connections: int = 0
    received_bytes: int = 0
    bytes_per_s: int = 0
    read_ms: int = 0
    written_ms: int = 0
    metadata_ms: int = 0
    """When topics, groups and offsets were last copied."""
    caught_up_ms: int = 0
    last_error: str = ""
    divergence: str = ""
    """The last truncation because of a divergence from the master."""

    @property
    def lag_bytes(self) -> int:
        return max(self.master_offset - self.position, 0)

    def lag_s(self, now_ms: int) -> float:
        """Return for how long the slave has lagged behind."""
        return (now_ms - self.caught_up_ms) / 1000 if self.lag_bytes and self.caught_up_ms else 0.0


SlaveRefusal = Callable[[str], BrokerError]
"""Makes the error with which a slave refuses a request; given the address of its master."""


class Role:
    """Role and epoch of this broker, and what a slave may not do. Loop thread."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.kind = settings.role
        self.broker_id = settings.broker_id
        """For name servers and clients: 0 on a master."""
        self.slave = SlaveStatus()
        """Not used by a master."""
        self.epoch = 0
        """Number of the current master in its group; 0 without a controller."""
        self.lease: MasterLease | None = None
        """Set in controller mode."""
        self.is_settled = True
        """Whether the members of this master's set have all that it shows: not yet after a restart."""
        self.is_alone = False
        """Whether this master acknowledges messages that no other member of its group has."""
        self.demoted_at = NEVER
        """When this broker was a master last, by the lease's clock."""
        self.is_paused = False
        """Whether this master hands over to another, and takes no messages meanwhile."""

    @property
    def is_slave(self) -> bool:
        return self.kind is BrokerRole.SLAVE

    @property
    def waits_for_slaves(self) -> bool:
        return self.kind is BrokerRole.SYNC_MASTER

    @property
    def is_lapsed(self) -> bool:
        """Whether another master may have been elected that this one has not heard of."""
        return self.lease is not None and not self.lease.holds

    @property
    def is_fenced(self) -> bool:
        """Whether this master takes no messages now.

        With a lapsed lease it still takes them if other members must acknowledge them: those that follow
        another master do not.
        """
        return self.lease is not None and (self.is_paused or self.is_doubtful)

    @property
    def is_doubtful(self) -> bool:
        """Whether another master may acknowledge other messages: this one is alone, and its lease is over."""
        return self.lease is not None and self.is_alone and not self.lease.holds

    @property
    def is_changing(self) -> bool:
        """Whether another broker takes over from this one, or has just done so."""
        lease = self.lease
        return lease is not None and (self.is_paused or lease.now() < self.demoted_at + CHANGE_S)

    def check_master(self, refuse: SlaveRefusal) -> None:
        """Raise the error of `refuse` on a slave, and on a master that may have been replaced."""
        if self.is_slave or self.is_lapsed:
            raise refuse(self._master)

    def check_copy(self) -> None:
        """Raise BrokerError 2 on a slave that is not yet a copy of its master, and on an unsettled master.

        A former master's log may be truncated when it joins the new one, and its offsets are old; a new slave
        has no offsets. Readers must not see either.
        """
        if not self.is_settled:
            raise system_busy(
                "a master that was restarted shows nothing before the other members of its set have its log"
            )
        if self.is_slave and not self.slave.is_copy:
            raise system_busy(
                f"a slave that is new or was a master shows nothing before it has joined {self._master}"
            )

    @property
    def _master(self) -> str:
        return self.slave.master_address or "its master"


def slaves_required(settings: ReplicationSettings, usable: int) -> int:
    """Return how many slaves must have a message before its send is acknowledged.

    Without a setting it is one, as in RocketMQ 4.9; with it, RocketMQ 5's rule, which counts the master, too.
    """
    wanted = settings.in_sync_replicas
    if wanted is None:
        return 1
    if settings.auto_in_sync_replicas:
        wanted = max(settings.min_in_sync_replicas, min(wanted, usable + 1))
    return wanted - 1


class Confirmation:
    """The offset that enough slaves have, and the offset up to which readers may see the log.

    Readers wait for slaves, but no message is invisible for longer than its send waits: what a slave does not
    acknowledge in time was answered as such, and is stored.
    """

    def __init__(self) -> None:
        self.reached = 0
        """Up to here, enough slaves had the log at some time."""
        self.usable = 0
        """Slaves that count: they have reported, and are not too far behind."""
        self.required = 0
        self._released = 0
        self._appended: deque[tuple[float, int]] = deque()

    def update(self, acknowledged: Iterable[int], appended: int, settings: ReplicationSettings) -> None:
        """Update from the offsets that slaves have reported."""
        within = [offset for offset in acknowledged if appended - offset <= settings.lag_bytes_max]
        self.usable = len(within)
        self.required = slaves_required(settings, self.usable)
        if 0 < self.required <= self.usable:
            self.reached = max(self.reached, sorted(within, reverse=True)[self.required - 1])

    @property
    def is_enough(self) -> bool:
        return self.usable >= self.required

    @property
    def bound(self) -> int | None:
        """The limit for readers; None if there are not enough slaves to wait for."""
        return max(self.reached, self._released) if 0 < self.required <= self.usable else None

    def release(self, now: float, appended: int, timeout_s: float) -> None:
        """Let readers see what was appended longer ago than the timeout. Call it periodically."""
        self._appended.append((now, appended))
        while self._appended[0][0] <= now - timeout_s:
            self._released = self._appended.popleft()[1]
            if not self._appended:
                return
