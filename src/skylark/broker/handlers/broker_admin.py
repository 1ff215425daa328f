"""Administration of the broker itself: settings, cleaning, replication status, cold reads."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from skylark.broker.address import BrokerAddress
from skylark.broker.cold_reads import ColdReads
from skylark.broker.configuration import BrokerConfiguration
from skylark.broker.error_replies import invalid_parameter, system_error
from skylark.broker.handlers.served_requests import (
    HandlerReply,
    serves,
    serves_code,
    serves_command,
)
from skylark.broker.handlers.sliced_encoding import encode_tables
from skylark.broker.replication.master import ReplicationMaster
from skylark.broker.replication.role import Role
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import SettingsError
from skylark.protocol.bodies import HaClientInfo, HaStatus, KVTable, encode_body
from skylark.protocol.codes import NO_CODE_REMARK, RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.admin import BrokerConfigReply, HaInfo, SetCommitLogReadMode
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.settings.properties import read_properties
from skylark.store.message_store import MessageStore

LIMIT = re.compile(r"[0-9]{1,18}")
LIMITS_OFF_REMARK = "kept, and without effect until coldDataFlowControlEnable is true"
READ_AHEAD_MODES = {"0": True, "1": False}
"""Normal, which is ours, and random."""
CHECKED = 0


@dataclass(frozen=True, slots=True, eq=False)
class BrokerAdminHandlers:
    live: LiveSettings[BrokerSettings]
    clock: Clock
    store: MessageStore
    topics: TopicTable
    configuration: BrokerConfiguration
    cold_reads: ColdReads
    role: Role
    replication: ReplicationMaster
    address: BrokerAddress
    runtime_info: Callable[[], Awaitable[dict[str, str]]]

    # --- Settings and state ---

    @serves_code(RequestCode.GET_BROKER_CONFIG)
    def get_config(self) -> HandlerReply:
        address = self.address
        effective = {
            "listenPort": str(address.port),
            "haListenPort": str(address.replica_port),
            "brokerIP1": address.host,
            "brokerIP2": self.live.current.advertised_replica_host or address.host,
        }
        version = encode_body(self.configuration.version).decode()
        body = self.configuration.text(effective).encode()
        return HandlerReply(fields=BrokerConfigReply(version), body=body)

    @serves_command(RequestCode.UPDATE_BROKER_CONFIG)
    def update_config(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        permission = self.live.current.permission
        now_ms = self.clock.now_ms()
        self.configuration.update(_text(command), now_ms=now_ms)
        self.store.apply(self.live.current.store)
        if self.live.current.permission != permission:
            # Name servers know topics with the broker's permission applied.
            self.topics.touch(now_ms=now_ms)
        return command.reply()

    @serves_code(RequestCode.GET_BROKER_RUNTIME_INFO)
    async def get_runtime_info(self) -> KVTable:
        return KVTable(table=await self.runtime_info())

    # --- Cleaning ---

    @serves_code(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    def clean_queues(self) -> None:
        self.store.clean_soon()

    @serves_code(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired_log(self) -> None:
        """Delete expired files of the log, at any hour."""
        self.store.housekeeper.manual.arm()
        self.store.clean_soon()

    # --- Replication ---

    @serves_code(RequestCode.GET_BROKER_HA_STATUS)
    def get_ha_status(self) -> HaStatus:
        """Return a master's slaves, or a slave's link to its master."""
        if self.role.is_slave:
            slave = self.role.slave
            client = HaClientInfo(
                master_addr=slave.replica_address or slave.master_address,
                transferred_byte_in_second=slave.bytes_per_s,
                max_offset=self.store.appended_offset,
                last_read_timestamp=slave.read_ms,
                last_write_timestamp=slave.written_ms,
            )
            return HaStatus(master=False, ha_client_runtime_info=client)
        slaves = self.replication.slaves()
        return HaStatus(
            master=True,
            master_commit_log_max_offset=self.store.appended_offset,
            in_sync_slave_nums=sum(slave.in_sync for slave in slaves),
            ha_connection_info=slaves,
        )

    @serves_code(RequestCode.EXCHANGE_BROKER_HA_INFO)
    def get_ha_info(self) -> HaInfo | None:
        if self.role.is_slave:
            return None
        return HaInfo(
            master_ha_address=self.address.replica,
            master_flush_offset=self.store.reader.hot.written_from,
            master_address=self.address.text,
        )

    @serves_code(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    def reset_master_flush_offset(self) -> None:
        """Only a slave has one."""

    # --- Cold reads ---

    @serves_command(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG)
    def set_cold_read_limits(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        """Take lines of a group and the bytes of cold data that it may read per window."""
        try:
            pairs = {key: value for key, value, _ in read_properties(_text(command))}
        except SettingsError as error:
            raise invalid_parameter(str(error)) from None
        for group, value in pairs.items():
            if not group.isprintable():  # half of a surrogate pair cannot be encoded in a reply
                raise invalid_parameter(f"group {group!r} has characters that cannot be printed")
            if not LIMIT.fullmatch(value):
                raise invalid_parameter(f"limit of group {group} is {value!r}, allowed is a number of bytes")
        self.cold_reads.set_limits({group: int(value) for group, value in pairs.items()})
        return command.reply(remark=None if self.live.current.limit_cold_reads else LIMITS_OFF_REMARK)

    @serves_command(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)
    def remove_cold_read_limit(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        self.cold_reads.limits.pop(_text(command), None)
        return command.reply()

    @serves_code(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    async def get_cold_read_info(self) -> bytes:
        reads = self.cold_reads
        totals = reads.totals(now=self.clock.monotonic())
        tables: dict[str, Mapping[str, Any]] = {"runtimeTable": reads.table(), "configTable": reads.limits}
        return await encode_tables(totals, tables)

    @serves(SetCommitLogReadMode)
    def set_read_ahead(self, request: SetCommitLogReadMode) -> HandlerReply:
        mode = request.mode
        is_ours = READ_AHEAD_MODES.get(mode)
        if is_ours is None:
            raise invalid_parameter("set commitlog readahead mode param value error")
        if not is_ours:
            raise system_error("set commitlog readahead mode failed: the kernel decides what it reads ahead")
        return HandlerReply(remark=f"set commitlog readahead mode success, mode: {mode}")

    # --- Features that this broker does not have, but tools ask about ---

    @serves_code(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS)
    def check_rocksdb_queues(self) -> bytes:
        return encode_body(
            {"checkResult": "queues are files, there is nothing to check", "checkStatus": CHECKED}
        )

    @serves_code(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON)
    def export_rocksdb_config(self) -> HandlerReply:
        """The configuration already is JSON."""
        return HandlerReply(remark="export done.")

    @serves_code(RequestCode.POP_ROLLBACK)
    def roll_back_pops(self) -> HandlerReply:
        """There are no pop records to convert."""
        return HandlerReply(remark=NO_CODE_REMARK)


def _text(command: RemotingCommand) -> str:
    return str(command.body, "utf-8", "replace")
