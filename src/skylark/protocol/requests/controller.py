"""Requests between brokers, administrators and controllers, which decide who is the master of a broker name.

Brokers are named by their controller ids, which start at 1 and never change. 904 is in `name_server`: brokers
send it to both.
"""

from typing import ClassVar, Self

from msgspec import Struct, field

from skylark.protocol.bodies import ElectedMasterBody, ReplicasInfoBody, SyncStateSet, decode_body
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import BODY_MEMBER, Int32, Int64, RawBody, RemotingCommand
from skylark.protocol.request import Header, Request


class GroupMaster(Struct, frozen=True):
    """Who is the master of a broker name. No master id and address: there is none, or it is not alive."""

    master_broker_id: int | None
    master_address: str | None
    master_epoch: int
    sync_state_set: SyncStateSet


class MasterFields(Header, frozen=True):
    """Ext fields of the answers to 1002, 1003 and 1004, each of which omits some."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None

    def with_set(self, sync_state_set: SyncStateSet) -> GroupMaster:
        return GroupMaster(self.master_broker_id, self.master_address, self.master_epoch or 0, sync_state_set)


class NewSetReply(Header, frozen=True):
    """0 in a refusal."""

    new_sync_state_set_epoch: Int32 = 0


class AlterSyncStateSet(Request[SyncStateSet], frozen=True):
    """A master proposes a set. The body has the epoch of the set that it replaces, the answer the new one."""

    code: ClassVar[RequestCode] = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    answer = SyncStateSet
    broker_name: str
    master_broker_id: Int64
    master_epoch: Int32
    body: SyncStateSet = field(name=BODY_MEMBER)
    invoke_time: Int64 | None = None


class ElectMaster(Request[GroupMaster], frozen=True):
    """Elect a master if there is none, or the given broker in any case (`designate_elect`).

    2011 is a good answer: the old master is alive.
    """

    code: ClassVar[RequestCode] = RequestCode.CONTROLLER_ELECT_MASTER
    good_codes: ClassVar[frozenset[int]] = frozenset(
        {ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST}
    )
    cluster_name: str
    broker_name: str
    broker_id: Int64
    designate_elect: bool = False
    invoke_time: Int64 | None = None

    def parse(self, reply: RemotingCommand) -> GroupMaster:
        fields = MasterFields.from_fields(reply.fields)
        members = decode_body(reply.body, ElectedMasterBody).sync_state_set if reply.body else ()
        return fields.with_set(SyncStateSet.of(members, fields.sync_state_set_epoch or 0))


class RegisterBrokerToController(Request[GroupMaster], frozen=True):
    """A broker that has its id registers its address. The master in the answer is alive.

    `clean_start` and `async_learner` are Skylark's: False if the log may have lost its end since the broker
    was a member of the set; True for a replica that must never be a member.
    """

    code: ClassVar[RequestCode] = RequestCode.CONTROLLER_REGISTER_BROKER
    cluster_name: str
    broker_name: str
    broker_id: Int64
    broker_address: str
    invoke_time: Int64 | None = None
    clean_start: bool | None = None
    async_learner: bool | None = None

    def parse(self, reply: RemotingCommand) -> GroupMaster:
        return MasterFields.from_fields(reply.fields).with_set(decode_body(reply.body, SyncStateSet))


class GetReplicaInfo(Request[GroupMaster], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.CONTROLLER_GET_REPLICA_INFO
    broker_name: str

    def parse(self, reply: RemotingCommand) -> GroupMaster:
        return MasterFields.from_fields(reply.fields).with_set(decode_body(reply.body, SyncStateSet))


class ControllerMetadata(Header, frozen=True):
    """A controller's view of its group. `peers` is `n0:host:port;n1:host:port`."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class GetControllerMetadata(Request[ControllerMetadata], frozen=True):
    """Every controller answers; most other requests need the leader."""

    code: ClassVar[RequestCode] = RequestCode.CONTROLLER_GET_METADATA_INFO
    answer = ControllerMetadata


class GetSyncStateData(Request[ReplicasInfoBody], frozen=True):
    """The replicas of several broker names; unknown names are left out.

    `all_brokers` is Skylark's: all names, without a body.
    """

    code: ClassVar[RequestCode] = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    answer = ReplicasInfoBody
    body: list[str] | None = field(default=None, name=BODY_MEMBER)
    all_brokers: bool | None = None


class NotifyBrokerRoleChanged(Request[None], frozen=True):
    """Sent by a controller to the brokers of a name, oneway, after it elected a master."""

    code: ClassVar[RequestCode] = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    master_address: str | None
    master_broker_id: Int64 | None
    master_epoch: Int32
    sync_state_set_epoch: Int32
    body: SyncStateSet = field(name=BODY_MEMBER)

    @classmethod
    def of(cls, master: GroupMaster) -> Self:
        return cls(
            master_address=master.master_address,
            master_broker_id=master.master_broker_id,
            master_epoch=master.master_epoch,
            sync_state_set_epoch=master.sync_state_set.epoch,
            body=master.sync_state_set,
        )

    @property
    def master(self) -> GroupMaster:
        return GroupMaster(self.master_broker_id, self.master_address, self.master_epoch, self.body)


class UpdateControllerConfig(Request[None], frozen=True):
    """The body is Java properties text."""

    code: ClassVar[RequestCode] = RequestCode.UPDATE_CONTROLLER_CONFIG
    body: RawBody = field(default=b"", name=BODY_MEMBER)


class GetControllerConfig(Request[str], frozen=True):
    """`key=value` lines."""

    code: ClassVar[RequestCode] = RequestCode.GET_CONTROLLER_CONFIG

    def parse(self, reply: RemotingCommand) -> str:
        return str(reply.body, "utf-8", "replace")


class CleanBrokerData(Request[None], frozen=True):
    """Forget replicas (`1;2`), or the whole broker name without ids. Living ones only on demand."""

    code: ClassVar[RequestCode] = RequestCode.CLEAN_BROKER_DATA
    cluster_name: str | None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Int64 | None = None


class NextBrokerId(Header, frozen=True):
    """Ext fields of the answer to 1012."""

    next_broker_id: Int64
    cluster_name: str | None = None
    broker_name: str | None = None


class GetNextBrokerId(Request[int], frozen=True):
    """The id that the next broker of this name may apply for."""

    code: ClassVar[RequestCode] = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID
    cluster_name: str
    broker_name: str

    def parse(self, reply: RemotingCommand) -> int:
        return NextBrokerId.from_fields(reply.fields).next_broker_id


class AppliedBrokerId(Header, frozen=True):
    """Ext fields of the answer to 1013."""

    cluster_name: str | None = None
    broker_name: str | None = None


class ApplyBrokerId(Request[AppliedBrokerId], frozen=True):
    """Apply for an id. The check code is `address;ms`; the same one may apply again."""

    code: ClassVar[RequestCode] = RequestCode.CONTROLLER_APPLY_BROKER_ID
    answer = AppliedBrokerId
    cluster_name: str
    broker_name: str
    applied_broker_id: Int64
    register_check_code: str
