"""The slave's side of replication in controller mode: follows the master that the controller names.

Epochs tell where the logs may part; from a little before that on their bytes are compared, and this log is
cut where they differ. So a log that parted within an epoch, as RocketMQ allows, becomes equal, too.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from skylark.broker.replication.slave import CONNECT_TIMEOUT_S, MasterLog, ReplicationSlave
from skylark.errors import CannotFollow, ConnectFailed, ConnectionLost, RocketMQError
from skylark.protocol.epoch_ha import (
    EpochBytes,
    MasterGreeting,
    MasterReader,
    SlaveGreeting,
    acknowledgement,
)
from skylark.remoting.address import join_address, split_address
from skylark.remoting.ha import HaLink, connect_ha
from skylark.store.epochs import EpochEntry, EpochFile, LogEpochs
from skylark.store.replica import ReplicaIntake, overlap_start
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

LAST_METADATA_S = 0.2
"""How long a new master waits for metadata of the former one, which may be alive."""


class GroupSlave(ReplicationSlave):
    """Follows one master after another, between `follow` and `leave`. Loop thread."""

    def begin(self, epoch_file: EpochFile) -> None:
        """Called once, before anything else."""
        self._epoch_file = epoch_file
        self._reader = MasterReader()
        self._greeted = asyncio.Event()
        self._master_epochs = LogEpochs()
        self.broker_id = 0
        """This replica's id at the controller."""

    def follow(self, master_address: str) -> None:
        """Follow the master at this address."""
        status = self._status
        status.master_address, status.replica_address, status.last_error = master_address, "", ""
        self._tasks = Tasks()
        self._found.set()
        self.start()

    async def leave(self) -> None:
        """Stop following."""
        if self._link is not None:
            self._link.abort()
        await self._tasks.close()
        self._found.clear()
        self._stop_publishing()

    async def last_metadata(self) -> None:
        """Copy metadata from the former master once more, if it answers at once."""
        if not self._followed:
            return
        try:
            async with asyncio.timeout(LAST_METADATA_S):
                await self._metadata.run(self._followed)
        except (RocketMQError, OSError, ValueError) as error:
            log.info("no last metadata from the former master reason=%s", str(error) or "no answer")

    def _replica_address(self) -> str:
        """The address that the master's settings name: no name server is needed to find it."""
        known = dict(self._master_config)
        host, port = split_address(self._status.master_address)
        address = join_address(known.get("brokerIP2") or host, int(known.get("haListenPort") or port + 1))
        self._status.replica_address = address
        return address

    # --- Following ---

    async def _follow(self) -> None:
        if self._store.settings.syncs_every_put:
            # What is reported first is where the master begins: it must be on disk.
            await self._read_cold(self._store.flusher.flush)
        self._followed = self._status.master_address
        master = await self._ask_master()
        self._reader, self._greeted = MasterReader(), asyncio.Event()
        self._joined.clear()
        link = await connect_ha(
            self._replica_address(), self._received, timeout_s=CONNECT_TIMEOUT_S, tls=self._tls
        )
        try:
            link.write(self._greeting().encode())
            greeting = await self._greeting_of(link)
            start, is_common = await self._compare_from(greeting, master)
            self._intake = ReplicaIntake(self._store, start, is_common=is_common)
            self._link = link  # not before: `flushed` would report the position of the former link
            log.info(
                "following the master address=%s physical_offset=%d end=%d master_end=%d",
                link.address, start, self._store.appended_offset, greeting.log_end,
            )  # fmt: skip
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

    def _greeting(self) -> SlaveGreeting:
        settings = self._settings
        return SlaveGreeting(self.broker_id, settings.sync_from_last_file, settings.async_learner)

    async def _greeting_of(self, link: HaLink) -> MasterGreeting:
        """Raises ConnectFailed, ConnectionLost, MalformedFrame."""
        waits = [asyncio.ensure_future(self._greeted.wait()), asyncio.ensure_future(link.wait_lost())]
        try:
            await asyncio.wait(waits, timeout=CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        if link.is_closed:
            raise link.failure or ConnectionLost(link.address, "the master hung up before its handshake")
        greeting = self._reader.greeting
        if greeting is None:
            raise ConnectFailed(link.address, f"no handshake within {CONNECT_TIMEOUT_S:g} s")
        return greeting

    async def _compare_from(self, greeting: MasterGreeting, master: MasterLog) -> tuple[int, bool]:
        """Where to begin comparing, or receiving; and whether what lies before is known to be the same."""
        store, end = self._store, self._store.appended_offset
        self._master_epochs = LogEpochs()
        for entry in greeting.epochs:
            self._master_epochs.append(EpochEntry(*entry))
        self._status.master_offset = greeting.log_end
        self._common_end = min(end, greeting.log_end)
        if end == 0:
            self._epoch_file.cut_from(0)
            return master.min_offset, True
        if end < master.min_offset:
            raise CannotFollow(
                f"its log begins at {master.min_offset}, and this one ends at {end}: what lies between is "
                "gone. Move the store away and begin with an empty one"
            )
        epochs = self._epoch_file.epochs
        vouched = epochs.common_end(end, self._master_epochs, greeting.log_end)
        if vouched is None:
            log.warning("no epoch in common with the master, the ends of the logs are compared")
            place = self._common_end
        else:
            place = min(max(vouched, store.log.min_offset), end)
        start = await self._read_cold(partial(overlap_start, store, place, self._overlap_bytes))
        start = max(start, master.min_offset)
        return start, vouched is not None and start in (0, vouched)

    def _received(self, link: HaLink, data: bytes) -> None:
        pieces = self._reader.receive(data)
        if not self._greeted.is_set():
            if self._reader.greeting is not None:
                self._greeted.set()
            return
        self._publish_soon()
        for piece in pieces:
            self._take(piece)
        status = self._status
        if self._intake.divergence is not None:
            status.divergence = str(self._intake.divergence)
        status.last_error = ""
        status.received_bytes += len(data)
        status.read_ms = self._clock.now_ms()
        self._report(link)
        self._restrain(link)

    def _take(self, piece: EpochBytes) -> None:
        intake, store = self._intake, self._store
        was_cut = intake.divergence
        if piece.data:
            intake.take(piece.physical_offset, piece.data)
            if intake.divergence is not was_cut:
                assert intake.divergence is not None
                self._epoch_file.cut_from(intake.divergence.physical_offset)
        # Not behind what was compared: this log may have a tail of its own there, which is about to be cut.
        store.replica_bound = min(piece.confirm_offset, intake.position)
        self._status.master_offset = max(self._status.master_offset, piece.confirm_offset)
        if not self._joined.is_set() and intake.position >= self._common_end:
            self._join()
        if not self._joined.is_set():
            return
        if piece.epoch > self._epoch_file.epochs.last_epoch and piece.epoch_start <= intake.position:
            self._epoch_file.append(EpochEntry(piece.epoch, piece.epoch_start))

    def _join(self) -> None:
        """The logs are equal as far as the master's went when it greeted."""
        self._overlap_bytes = self._settings.overlap_bytes
        self._intake.cut_rest()
        self._epoch_file.adopt(self._master_epochs, self._intake.position)
        self._last_master.note(self._master_config)
        self._joined.set()
        self._metadata_due.set()
        log.info("equal to the master's log physical_offset=%d", self._intake.position)

    def _encode_report(self, physical_offset: int) -> bytes:
        return acknowledgement(physical_offset)

    def _acknowledgeable(self) -> int:
        """Unlike in `slave`, what is not confirmed yet is acknowledged, too: that confirms it."""
        position, store = self._intake.position, self._store
        if not store.settings.syncs_every_put or position > store.appended_offset:
            return position
        return min(position, store.flushed_offset)
