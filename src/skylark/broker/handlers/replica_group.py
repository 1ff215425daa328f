"""The broker's group in controller mode: a new master (1008), hand-over (1002), epochs (1007)."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.broker.error_replies import system_error
from skylark.broker.handlers.served_requests import HandlerReply, serves, serves_code
from skylark.broker.replication.membership import Membership
from skylark.broker.replication.role import Role
from skylark.protocol.bodies import ElectedMasterBody, EpochCache
from skylark.protocol.codes import RequestCode
from skylark.protocol.requests.controller import ElectMaster, MasterFields
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.epochs import EpochFile
from skylark.store.message_store import MessageStore


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaGroupHandlers:
    live: LiveSettings[BrokerSettings]
    role: Role
    store: MessageStore
    epoch_file: EpochFile
    membership: Membership | None
    """None without controllers."""

    @serves_code(RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
    def notify_role_changed(self) -> None:
        """Ask the controller; the request itself is not trusted."""
        self._members().notified()

    @serves(ElectMaster)
    async def hand_over(self, request: ElectMaster) -> HandlerReply:
        """Hand the master's role over to another broker of the group, without failed sends.

        A controller serves this code, too, and elects at once; this broker first stops accepting messages.
        """
        membership = self._members()
        if request.broker_name != self.live.current.name:
            raise system_error(f"this is {self.live.current.name}, not {request.broker_name}")
        found = await membership.hand_over(request.broker_id)
        fields = MasterFields(
            master_broker_id=found.master_broker_id,
            master_address=found.master_address,
            master_epoch=found.master_epoch,
            sync_state_set_epoch=found.sync_state_set.epoch,
        )
        return HandlerReply(
            fields=fields, body=ElectedMasterBody(sync_state_set=found.sync_state_set.members)
        )

    @serves_code(RequestCode.GET_BROKER_EPOCH_CACHE)
    def get_epochs(self) -> EpochCache:
        settings, entries = self.live.current, self.epoch_file.epochs.entries
        status, end = self._members().status, self.store.appended_offset
        ends = [*(entry.start for entry in entries[1:]), end]
        return EpochCache(
            cluster_name=settings.cluster,
            broker_name=settings.name,
            broker_id=status.broker_id,
            max_offset=end,
            epoch_list=[
                {"epoch": entry.epoch, "startOffset": entry.start, "endOffset": stop}
                for entry, stop in zip(entries, ends, strict=False)
            ],
        )

    def _members(self) -> Membership:
        if self.membership is None:
            raise system_error("this request only for controllerMode ")
        return self.membership
