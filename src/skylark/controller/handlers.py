"""Requests to a controller, one function per code, and ROUTES, the table of them.

A handler takes the decisions, the peer and the command. A BrokerError that it raises becomes the reply; the
ext fields that Apache adds to a refusal are added here.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

from skylark.controller import membership
from skylark.controller.decisions import Decisions
from skylark.controller.election import Outcome
from skylark.controller.group import BrokerGroup, ControllerRefusal
from skylark.protocol.bodies import (
    BrokerMemberGroup,
    ElectedMasterBody,
    ReplicaIdentity,
    ReplicasInfo,
    ReplicasInfoBody,
    encode_body,
)
from skylark.protocol.codes import NO_CODE_REMARK, RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.controller import (
    AlterSyncStateSet,
    AppliedBrokerId,
    ApplyBrokerId,
    CleanBrokerData,
    ControllerMetadata,
    ElectMaster,
    GetNextBrokerId,
    GetReplicaInfo,
    GetSyncStateData,
    MasterFields,
    NewSetReply,
    NextBrokerId,
    RegisterBrokerToController,
    UpdateControllerConfig,
)
from skylark.protocol.requests.name_server import BrokerHeartbeat
from skylark.settings.loader import shown_properties
from skylark.settings.properties import read_properties, write_properties

Answer = RemotingCommand | Awaitable[RemotingCommand]
Handler = Callable[[Decisions, object, RemotingCommand], Answer]
AsyncHandler = Callable[[Decisions, object, RemotingCommand], Awaitable[RemotingCommand]]

CONFIG_BLACK_LIST = frozenset({"configBlackList", "configStorePath", "rocketmqHome"})


def _with_refusal_fields(
    fields: Callable[[RemotingCommand], Mapping[str, str]],
) -> Callable[[AsyncHandler], AsyncHandler]:
    """Add ext fields to refusals, which have none otherwise."""

    def decorate(handle: AsyncHandler) -> AsyncHandler:
        @wraps(handle)
        async def handled(decisions: Decisions, peer: object, command: RemotingCommand) -> RemotingCommand:
            try:
                return await handle(decisions, peer, command)
            except ControllerRefusal as refusal:
                return command.reply(refusal.code, refusal.remark, fields=fields(command))

        return handled

    return decorate


def _names(command: RemotingCommand) -> Mapping[str, str]:
    return {name: command.fields[name] for name in ("clusterName", "brokerName") if name in command.fields}


# --- Liveness and leadership ---


def heartbeat(decisions: Decisions, peer: object, command: RemotingCommand) -> RemotingCommand:
    request = BrokerHeartbeat.from_command(command)
    if request.broker_id is None:
        return command.reply(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
    decisions.beat(request, request.broker_id, peer)
    return command.reply(remark="Heart beat success")


def get_metadata(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    leader = decisions.leader
    metadata = ControllerMetadata(
        group=decisions.settings.group,
        controller_leader_id=None if leader is None else leader.id,
        controller_leader_address=None if leader is None else leader.address,
        is_leader=decisions.is_leading,
        peers="".join(f"{peer_id}:{address};" for peer_id, address in decisions.peers.items()),
    )
    return command.reply(fields=metadata.to_fields())


# --- Identity ---


def get_next_id(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    request = GetNextBrokerId.from_command(command)
    broker_id = membership.next_id(decisions.group(request.broker_name))
    reply = NextBrokerId(broker_id, request.cluster_name, request.broker_name)
    return command.reply(fields=reply.to_fields())


@_with_refusal_fields(_names)
async def apply_id(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    request = ApplyBrokerId.from_command(command)
    await decisions.change(request.broker_name, lambda group: membership.apply_id(group, request))
    return command.reply(fields=AppliedBrokerId(request.cluster_name, request.broker_name).to_fields())


@_with_refusal_fields(_names)
async def register(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    request = RegisterBrokerToController.from_command(command)

    def decide(group: BrokerGroup | None) -> BrokerGroup:
        return membership.register(group, request, decisions.alive(group) if group is not None else {})

    group = await decisions.change(request.broker_name, decide)
    assert group is not None
    fields = MasterFields(request.cluster_name, request.broker_name)
    if decisions.has_living_master(group):
        fields = _master_fields(group, request.cluster_name, request.broker_name)
    return command.reply(fields=fields.to_fields(), body=encode_body(group.sync_state_set))


def _master_fields(group: BrokerGroup, cluster: str | None = None, name: str | None = None) -> MasterFields:
    return MasterFields(
        cluster, name, group.master, group.master_address, group.master_epoch, group.set_epoch
    )


# --- Masters ---


async def elect(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    request = ElectMaster.from_command(command)
    known = decisions.group(request.broker_name)
    if known is None:
        raise ControllerRefusal.of(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered"
        )
    asked_by = None if request.broker_id < 0 else request.broker_id
    outcome, group = await decisions.elect(known.name, asked_by, is_designated=request.designate_elect)
    if outcome is Outcome.NOBODY:
        raise ControllerRefusal.of(
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master"
        )
    fields = _master_fields(group).to_fields()
    if outcome is Outcome.KEPT:
        remark = (
            f"The old master {group.master} is still alive, "
            f"not need to elect new master for broker {group.name}"
        )
        body = encode_body(ElectedMasterBody(sync_state_set=group.sync_state_set.members))
        return command.reply(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, remark, fields=fields, body=body)
    members = BrokerMemberGroup(
        cluster=group.cluster,
        broker_name=group.name,
        broker_addrs={broker_id: replica.address for broker_id, replica in group.replicas.items()},
    )
    elected = ElectedMasterBody(broker_member_group=members, sync_state_set=group.sync_state_set.members)
    return command.reply(fields=fields, body=encode_body(elected))


def get_replica_info(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    group = decisions.group(GetReplicaInfo.from_command(command).broker_name)
    if group is None:
        return command.reply(
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed"
        )
    fields = MasterFields(
        master_broker_id=group.master, master_address=group.master_address, master_epoch=group.master_epoch
    )
    return command.reply(fields=fields.to_fields(), body=encode_body(group.sync_state_set))


@_with_refusal_fields(lambda _: NewSetReply().to_fields())
async def alter_set(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    request = AlterSyncStateSet.from_command(command)

    def decide(group: BrokerGroup | None) -> BrokerGroup:
        return membership.alter_set(group, request, decisions.alive(group) if group is not None else {})

    group = await decisions.change(request.broker_name, decide)
    assert group is not None
    return command.reply(
        fields=NewSetReply(group.set_epoch).to_fields(), body=encode_body(group.sync_state_set)
    )


# --- Administration ---


def get_replicas(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    request = GetSyncStateData.from_command(command)
    names = sorted(decisions.groups) if request.all_brokers else request.body
    if not names and not request.all_brokers:
        return command.reply(ResponseCode.SYSTEM_ERROR, NO_CODE_REMARK)
    groups = [group for group in map(decisions.group, names or ()) if group is not None]
    table = ReplicasInfoBody({group.name: _replicas(decisions, group) for group in groups})
    return command.reply(body=encode_body(table))


def _replicas(decisions: Decisions, group: BrokerGroup) -> ReplicasInfo:
    alive = decisions.alive(group)
    info = ReplicasInfo(
        master_epoch=group.master_epoch,
        sync_state_set_epoch=group.set_epoch,
        master_broker_id=group.master,
        master_address=group.master_address,
    )
    for broker_id, replica in sorted(group.replicas.items()):
        kind = info.in_sync_replicas if broker_id in group.members else info.not_in_sync_replicas
        kind.append(ReplicaIdentity(group.name, broker_id, replica.address, broker_id in alive))
    return info


async def clean(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    request = CleanBrokerData.from_command(command)

    def decide(group: BrokerGroup | None) -> BrokerGroup | None:
        return membership.clean(group, request, decisions.alive(group) if group is not None else {})

    await decisions.change(request.broker_name, decide)
    return command.reply()


def get_config(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    """The settings; and, for `skylark doctor`, what is wrong with the security of the controller."""
    more = write_properties(decisions.security_faults())
    return command.reply(body=(shown_properties(decisions.settings) + more).encode())


async def update_config(decisions: Decisions, _: object, command: RemotingCommand) -> RemotingCommand:
    """Make all changes or none: only live settings may change."""
    text = str(UpdateControllerConfig.from_command(command).body, "utf-8", "replace")
    changes = {key: value for key, value, _ in read_properties(text)}
    if not CONFIG_BLACK_LIST.isdisjoint(changes):
        return command.reply(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    refused = await decisions.update_settings(changes)
    if refused:
        remark = f"cannot be changed while the controller runs: {', '.join(refused)}"
        return command.reply(ResponseCode.NO_PERMISSION, remark)
    return command.reply()


ROUTES: Mapping[RequestCode, Callable[[Decisions, Any, RemotingCommand], Answer]] = {
    RequestCode.BROKER_HEARTBEAT: heartbeat,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: alter_set,
    RequestCode.CONTROLLER_ELECT_MASTER: elect,
    RequestCode.CONTROLLER_REGISTER_BROKER: register,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: get_replica_info,
    RequestCode.CONTROLLER_GET_METADATA_INFO: get_metadata,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: get_replicas,
    RequestCode.UPDATE_CONTROLLER_CONFIG: update_config,
    RequestCode.GET_CONTROLLER_CONFIG: get_config,
    RequestCode.CLEAN_BROKER_DATA: clean,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: get_next_id,
    RequestCode.CONTROLLER_APPLY_BROKER_ID: apply_id,
}
