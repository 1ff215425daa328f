"""Administration of the broker itself, and ROUTES, the table of all administration requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from skylark.broker.error_replies import invalid_parameter, system_error
from skylark.broker.handlers import groups, relay, stats, topics
from skylark.broker.handlers.sliced_encoding import encode_tables
from skylark.broker.monitoring.runtime_info import runtime_info
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.errors import SettingsError
from skylark.protocol.bodies import HaClientInfo, HaStatus, KVTable, encode_body
from skylark.protocol.codes import NO_CODE_REMARK, RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.admin import BrokerConfigReply, HaInfo, SetCommitLogReadMode
from skylark.remoting.server import Peer
from skylark.settings.properties import read_properties

LIMIT = re.compile(r"[0-9]{1,18}")
LIMITS_OFF_REMARK = "kept, and without effect until coldDataFlowControlEnable is true"
READ_AHEAD_MODES = {"0": True, "1": False}
"""Normal, which is ours, and random."""
CHECKED = 0


# --- Settings and state ---


def get_config(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    settings = broker.live.current
    effective = {
        "listenPort": str(broker.port),
        "haListenPort": str(broker.replica_port),
        "brokerIP1": broker.advertised_host,
        "brokerIP2": settings.advertised_replica_host or broker.advertised_host,
    }
    version = encode_body(broker.configuration.version).decode()
    body = broker.configuration.text(effective).encode()
    return command.reply(fields=BrokerConfigReply(version).to_fields(), body=body)


def update_config(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    permission = broker.live.current.permission
    now_ms = broker.clock.now_ms()
    broker.configuration.update(str(command.body, "utf-8", "replace"), now_ms=now_ms)
    broker.store.apply(broker.live.current.store)
    if broker.live.current.permission != permission:
        # Name servers know topics with what the broker allows of them.
        broker.topics.touch(now_ms=now_ms)
    return command.reply()


async def get_runtime_info(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    return command.reply(body=encode_body(KVTable(table=await runtime_info(broker))))


# --- Cleaning ---


def clean_queues(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    broker.store.clean_soon()
    return command.reply()


def delete_expired_log(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """Delete files of the log that are old enough, at any hour."""
    broker.store.housekeeper.manual.arm()
    broker.store.clean_soon()
    return command.reply()


# --- Replicas ---


def get_ha_status(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    return command.reply(body=encode_body(ha_status(broker)))


def ha_status(broker: BrokerState) -> HaStatus:
    """Of a master its slaves, of a slave its link to the master."""
    if broker.role.is_slave:
        slave = broker.slave_status
        client = HaClientInfo(
            master_addr=slave.replica_address or slave.master_address,
            transferred_byte_in_second=slave.bytes_per_s,
            max_offset=broker.store.appended_offset,
            last_read_timestamp=slave.read_ms,
            last_write_timestamp=slave.written_ms,
        )
        return HaStatus(master=False, ha_client_runtime_info=client)
    slaves = broker.replication.slaves()
    return HaStatus(
        master=True,
        master_commit_log_max_offset=broker.store.appended_offset,
        in_sync_slave_nums=sum(slave.in_sync for slave in slaves),
        ha_connection_info=slaves,
    )


def get_ha_info(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    if broker.role.is_slave:
        return command.reply()
    info = HaInfo(
        master_ha_address=broker.replica_address,
        master_flush_offset=broker.store.reader.hot.written_from,
        master_address=broker.address,
    )
    return command.reply(fields=info.to_fields())


def reset_master_flush_offset(_: BrokerState, __: Peer, command: RemotingCommand) -> RemotingCommand:
    """Only a slave has one."""
    return command.reply()


def get_epochs(_: BrokerState, __: Peer, command: RemotingCommand) -> RemotingCommand:
    raise system_error("this request only for controllerMode ")


# --- Reads of cold data ---


def set_cold_read_limits(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """Each line is a group and how many bytes of cold data it may read in a window."""
    try:
        pairs = {key: value for key, value, _ in read_properties(str(command.body, "utf-8", "replace"))}
    except SettingsError as error:
        raise invalid_parameter(str(error)) from None
    for group, value in pairs.items():
        if not group.isprintable():  # half of a surrogate pair could be told to nobody
            raise invalid_parameter(f"group {group!r} has characters that cannot be printed")
        if not LIMIT.fullmatch(value):
            raise invalid_parameter(f"limit of group {group} is {value!r}, allowed is a number of bytes")
    broker.cold_reads.set_limits({group: int(value) for group, value in pairs.items()})
    is_on = broker.live.current.limit_cold_reads
    return command.reply(ResponseCode.SUCCESS, None if is_on else LIMITS_OFF_REMARK)


def remove_cold_read_limit(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    broker.cold_reads.limits.pop(str(command.body, "utf-8", "replace"), None)
    return command.reply()


async def get_cold_read_info(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    reads = broker.cold_reads
    totals = reads.totals(now=broker.clock.monotonic())
    tables: dict[str, Mapping[str, Any]] = {"runtimeTable": reads.table(), "configTable": reads.limits}
    return command.reply(body=await encode_tables(totals, tables))


def set_read_ahead(_: BrokerState, __: Peer, command: RemotingCommand) -> RemotingCommand:
    mode = SetCommitLogReadMode.from_command(command).mode
    is_ours = READ_AHEAD_MODES.get(mode)
    if is_ours is None:
        raise invalid_parameter("set commitlog readahead mode param value error")
    if not is_ours:
        raise system_error("set commitlog readahead mode failed: the kernel decides what it reads ahead")
    return command.reply(ResponseCode.SUCCESS, f"set commitlog readahead mode success, mode: {mode}")


# --- What this broker has none of, and tools ask about ---


def check_rocksdb_queues(_: BrokerState, __: Peer, command: RemotingCommand) -> RemotingCommand:
    body = {"checkResult": "queues are files, there is nothing to check", "checkStatus": CHECKED}
    return command.reply(body=encode_body(body))


def export_rocksdb_config(_: BrokerState, __: Peer, command: RemotingCommand) -> RemotingCommand:
    """It is in JSON as it is."""
    return command.reply(ResponseCode.SUCCESS, "export done.")


def roll_back_pops(_: BrokerState, __: Peer, command: RemotingCommand) -> RemotingCommand:
    """There are no pops in another form that would have to be written as messages."""
    return command.reply(ResponseCode.SUCCESS, NO_CODE_REMARK)


ROUTES: dict[RequestCode, BrokerHandler] = {
    **topics.ROUTES,
    **groups.ROUTES,
    **stats.ROUTES,
    **relay.ROUTES,
    RequestCode.GET_BROKER_CONFIG: get_config,
    RequestCode.UPDATE_BROKER_CONFIG: update_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: get_runtime_info,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: clean_queues,
    RequestCode.DELETE_EXPIRED_COMMITLOG: delete_expired_log,
    RequestCode.GET_BROKER_HA_STATUS: get_ha_status,
    RequestCode.EXCHANGE_BROKER_HA_INFO: get_ha_info,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: reset_master_flush_offset,
    RequestCode.GET_BROKER_EPOCH_CACHE: get_epochs,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: set_cold_read_limits,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: remove_cold_read_limit,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: get_cold_read_info,
    RequestCode.SET_COMMITLOG_READ_MODE: set_read_ahead,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: check_rocksdb_queues,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: export_rocksdb_config,
    RequestCode.POP_ROLLBACK: roll_back_pops,
}
