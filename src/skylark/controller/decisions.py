"""Decisions: applies the pure rules to the groups of a register, one change at a time, and tells brokers."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial

from skylark.atomic_file import write_file
from skylark.clock import Clock
from skylark.controller.election import Election, Outcome, elect
from skylark.controller.group import BrokerGroup, ControllerRefusal
from skylark.controller.liveness import BrokerKey, LiveBroker, LiveTable
from skylark.controller.register import Leader, NotLeading, Register, RegisterUnavailable, StaleGroup
from skylark.controller.role_notices import RoleNotices
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.name_server import BrokerHeartbeat
from skylark.settings.controller import ControllerSettings
from skylark.settings.live import plan_update
from skylark.settings.loader import to_properties

log = logging.getLogger(__name__)

NOT_LEADER = "The controller is not in leader state"


class Decisions:
    """What a controller knows and decides. Belongs to one loop."""

    def __init__(
        self,
        settings: ControllerSettings,
        register: Register,
        notices: RoleNotices,
        clock: Clock,
        writer: Executor,
    ) -> None:
        self.settings = settings
        self.elections: Counter[Outcome] = Counter()
        self.live = LiveTable(clock.monotonic(), settings.unseen_grace_ms / 1000)
        self.peers: Mapping[str, str] = settings.peer_addresses
        """The addresses of all controllers by id."""
        self.security_faults: Callable[[], Mapping[str, str]] = dict
        """Returns what is wrong with the security of this controller, for `skylark doctor`."""
        self._register = register
        self._notices = notices
        self._clock = clock
        self._writer = writer
        self._deciding = asyncio.Lock()
        self._outdated: set[str] = set()

    # --- What it knows ---

    @property
    def leader(self) -> Leader | None:
        return self._register.leader

    @property
    def is_leading(self) -> bool:
        return self._register.is_leading

    @property
    def groups(self) -> Mapping[str, BrokerGroup]:
        """All groups; exact only while this controller leads."""
        return self._register.groups

    def group(self, name: str) -> BrokerGroup | None:
        """Return a group, None for an unknown name.

        Raises ControllerRefusal: this controller does not lead, or its document is older than the epochs in
        the brokers' logs, as after a restored backup.
        """
        if not self._register.is_leading:
            raise ControllerRefusal.of(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
        group = self._register.groups.get(name)
        if group is not None:
            self._check_epoch(group)
        return group

    def _check_epoch(self, group: BrokerGroup) -> None:
        newest = max((broker.epoch for broker in self.alive(group).values()), default=0)
        if group.master_epoch == 0 or newest <= group.master_epoch:
            return
        remark = (
            f"the register knows master epoch {group.master_epoch} of {group.name}, but a broker has "
            f"{newest}: was the register restored from an old backup? Restore a newer one"
        )
        if group.name not in self._outdated:
            self._outdated.add(group.name)
            log.error("group not served broker=%s reason=%s", group.name, remark)
        raise ControllerRefusal.of(ResponseCode.SYSTEM_ERROR, remark)

    def alive(self, group: BrokerGroup) -> Mapping[int, LiveBroker]:
        """Return the living brokers of a group by id."""
        return self.live.alive(group.cluster, group.name, self._clock.monotonic())

    def has_living_master(self, group: BrokerGroup) -> bool:
        """Return whether the master is alive, or may be: a controller that just started must wait for it."""
        if group.master is None:
            return False
        key = BrokerKey(group.cluster, group.name, group.master)
        return group.master in self.alive(group) or self.live.is_awaited(key, self._clock.monotonic())

    # --- Decisions ---

    async def change(
        self, name: str, decide: Callable[[BrokerGroup | None], BrokerGroup | None]
    ) -> BrokerGroup | None:
        """Replace a group by what `decide` makes of it, and return that when it is durable.

        Raises ControllerRefusal, and what `decide` raises.
        """
        async with self._deciding:
            while True:
                group = self.group(name)
                changed = decide(group)
                if group is None and changed is not None and len(self.groups) >= self.settings.groups_max:
                    raise ControllerRefusal.of(
                        ResponseCode.SYSTEM_ERROR,
                        f"there are {len(self.groups)} broker names, as many as brokerNamesMax allows",
                    )
                try:
                    if changed is group:
                        await self._register.confirm()
                    else:
                        await self._register.put(name, changed)
                except NotLeading:
                    raise ControllerRefusal.of(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER) from None
                except StaleGroup:
                    continue
                if changed is not group:
                    self._outdated.discard(name)
                    log.info("group changed broker=%s document=%s", name, changed)
                return changed

    async def elect(self, name: str, asked_by: int | None, *, is_designated: bool = False) -> Election:
        """Elect a master of a known group and tell its brokers. Raises ControllerRefusal."""
        election: Election | None = None

        def decide(group: BrokerGroup | None) -> BrokerGroup | None:
            nonlocal election
            if group is None:
                return None
            election = self._election(group, asked_by, is_designated=is_designated)
            return election.group

        await self.change(name, decide)
        if election is None:
            raise ControllerRefusal.of(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered"
            )
        outcome, group = election
        self.elections[outcome] += 1
        if outcome is Outcome.ELECTED:
            log.warning(
                "master elected broker=%s id=%s address=%s epoch=%d",
                name, group.master, group.master_address, group.master_epoch,
            )  # fmt: skip
            if self.settings.notify_roles:
                alive = self.alive(group)
                addresses = [replica.address for each, replica in group.replicas.items() if each in alive]
                self._notices.send(addresses, group.current)
        elif outcome is Outcome.NOBODY and asked_by is None:
            log.error(
                "no master broker=%s set=%s alive=%s", name, sorted(group.members), sorted(self.alive(group))
            )
        return election

    def _election(self, group: BrokerGroup, asked_by: int | None, *, is_designated: bool = False) -> Election:
        return elect(
            group,
            self.alive(group),
            master_lives=self.has_living_master(group),
            asked_by=asked_by,
            is_designated=is_designated,
            is_unclean_allowed=self.settings.elect_unclean,
        )

    # --- Liveness ---

    def beat(self, beat: BrokerHeartbeat, broker_id: int, channel: object) -> None:
        """Record a heartbeat."""
        if self.live.beat(beat, broker_id, channel, self._clock.monotonic()):
            log.info("broker alive broker=%s id=%d address=%s", beat.broker_name, broker_id, beat.broker_addr)

    def drop_channel(self, channel: object) -> set[str]:
        """Forget the brokers of a closed connection; return the names of their groups."""
        gone = self.live.drop_channel(channel)
        for key in gone:
            log.warning("broker gone broker=%s id=%d reason=connection closed", key.name, key.broker_id)
        return {key.name for key in gone}

    async def scan(self) -> None:
        """Forget silent brokers, and elect masters wherever that changes something."""
        for key in self.live.expire(self._clock.monotonic()):
            log.warning("broker gone broker=%s id=%d reason=silent", key.name, key.broker_id)
        await self.elect_where_needed(set(self.groups))

    async def elect_where_needed(self, names: set[str]) -> None:
        """Elect masters of groups whose master is gone, and of those that have a candidate again."""
        for name in names:
            group = self.groups.get(name) if self.is_leading else None
            if group is None or self._election(group, None).group is group:
                continue
            try:
                await self.elect(name, None)
            except (ControllerRefusal, RegisterUnavailable) as error:
                log.warning("no election broker=%s reason=%s", name, error)

    # --- Settings ---

    async def update_settings(self, changes: Mapping[str, str]) -> list[str]:
        """Change live settings, all or none; return the keys that cannot be changed. Raises SettingsError."""
        update = plan_update(self.settings, changes)
        if refused := [*update.fixed, *update.unknown]:
            return refused
        self.settings = update.settings
        path = self.settings.config_path
        if path is not None:
            text = to_properties(self.settings).encode()
            try:
                await asyncio.get_running_loop().run_in_executor(
                    self._writer, partial(write_file, path, text, is_private=True)
                )
            except OSError as error:
                raise ControllerRefusal.of(
                    ResponseCode.SYSTEM_ERROR, f"changed, but not written: {error}"
                ) from error
        return []
