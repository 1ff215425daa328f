"""Name server requests, one function per request code, and ROUTES, the table of them.

A handler takes the server's state, the peer and the command, and returns the reply; a BrokerError that it
raises becomes the reply (see `remoting.link`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from zlib_ng import zlib_ng

from skylark.atomic_file import write_file
from skylark.auth.administration import CHANGES as USER_CHANGES
from skylark.auth.administration import READS as USER_READS
from skylark.auth.administration import UserAdministration
from skylark.clock import Clock
from skylark.model.record import CRC_MASK
from skylark.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig, Tables
from skylark.namesrv.route_table import RouteTable, in_zone
from skylark.protocol.bodies import (
    UNIT_FLAG,
    UNIT_SUB_FLAG,
    BrokerMemberGroupBody,
    KVTable,
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
    encode_body,
    encode_standard_body,
)
from skylark.protocol.codes import NO_CODE_REMARK, RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.name_server import (
    AddReply,
    AddWritePermOfBroker,
    BrokerHeartbeat,
    DataVersionReply,
    DeleteKvConfig,
    DeleteTopicInNamesrv,
    GetBrokerMemberGroup,
    GetKvConfig,
    GetKvListByNamespace,
    GetRouteInfoByTopic,
    GetTopicsByCluster,
    KvReply,
    PutKvConfig,
    QueryDataVersion,
    RegisterBroker,
    RegisterTopicInNamesrv,
    UnregisterBroker,
    UpdateNamesrvConfig,
    WipeReply,
    WipeWritePermOfBroker,
)
from skylark.settings import NameServerSettings
from skylark.settings.live import plan_update
from skylark.settings.loader import shown_properties
from skylark.settings.properties import read_properties, write_properties

T = TypeVar("T")


class SavedFile(Generic[T]):
    """Writes whole snapshots, one at a time; changes made while one is written share the next.

    `snapshot` runs on the loop, `encode` in the executor, which must have a single thread.
    """

    def __init__(
        self,
        path: Path,
        executor: Executor,
        *,
        snapshot: Callable[[], T],
        encode: Callable[[T], bytes],
        is_private: bool = False,
    ) -> None:
        self.path = path
        self._is_private = is_private
        self._executor = executor
        self._snapshot = snapshot
        self._encode = encode
        self._writing = asyncio.Lock()
        self._changes = 0
        self._saved = 0

    async def save(self) -> None:
        """Return when all changes made before this call are on the disk. Raises OSError."""
        self._changes += 1
        change = self._changes
        async with self._writing:
            if self._saved >= change:
                return
            saving = self._changes
            value = self._snapshot()
            await asyncio.get_running_loop().run_in_executor(self._executor, self._write, value)
            self._saved = saving

    def _write(self, value: T) -> None:
        write_file(self.path, self._encode(value), is_private=self._is_private)


log = logging.getLogger(__name__)

Answer = RemotingCommand | Awaitable[RemotingCommand]
Handler = Callable[["NameServerState", "BrokerChannel", RemotingCommand], Answer]

STANDARD_JSON_VERSION = 401  # from RocketMQ 4.9.4 on, clients read routes with quoted broker ids
# Bodies above this, and all compressed ones, are decoded in a thread: almost-JSON takes time.
DECODE_BYTES_ON_LOOP = 256 << 10
ROUTE_CACHE_BYTES_MAX = 16 << 20
# Keys that RocketMQ refuses as well.
CONFIG_BLACK_LIST = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
# RocketMQ's remark on a reply that is nevertheless a success.


class BrokerChannel(Protocol):
    """A peer's connection, as far as handlers need it."""

    @property
    def is_closed(self) -> bool: ...


class EncodedRoutes:
    """Cache of encoded routes by topic and JSON dialect, valid while the stamp is unchanged.

    Clients request the same few routes repeatedly, and encoding one takes ten times as long as the rest.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._stamp: object = None
        self._bodies: dict[tuple[str, bool], bytes] = {}

    def get(self, stamp: object, topic: str, is_standard: bool) -> bytes | None:
        """Return what was put under this stamp."""
        return self._bodies.get((topic, is_standard)) if stamp == self._stamp else None

    def put(self, stamp: object, topic: str, is_standard: bool, body: bytes) -> None:
        """Keep a body, and drop those of other stamps."""
        self._bytes += len(body)
        if stamp != self._stamp or self._bytes > self._bytes_max:
            self._bodies.clear()
            self._stamp, self._bytes = stamp, len(body)
        self._bodies[topic, is_standard] = body


@dataclass(slots=True, kw_only=True, eq=False)
class NameServerState:
    """State shared by the handlers. `settings` is replaced as a whole when one changes."""

    settings: NameServerSettings
    clock: Clock
    routes: RouteTable
    kv_config: KvConfig
    kv_file: SavedFile[Tables]
    config_file: SavedFile[str] | None
    users: UserAdministration
    user_files: tuple[SavedFile[Callable[[], bytes]], SavedFile[Callable[[], bytes]]]
    decoder: Executor
    started_at: float
    security_faults: Callable[[], Mapping[str, str]] = dict
    """Returns what is wrong with the security of the server, for `skylark doctor`."""
    # Peers over which brokers have registered: only their disconnection affects the routes.
    broker_peers: set[BrokerChannel] = field(default_factory=set)
    route_cache: EncodedRoutes = field(default_factory=lambda: EncodedRoutes(ROUTE_CACHE_BYTES_MAX))


# --- Brokers ---


def register_broker(state: NameServerState, peer: BrokerChannel, command: RemotingCommand) -> Answer:
    request = RegisterBroker.from_command(command)
    if request.body_crc32 and request.body_crc32 != zlib_ng.crc32(request.body) & CRC_MASK:
        return command.reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    if request.compressed or len(request.body) > DECODE_BYTES_ON_LOOP:
        return _register_later(state, peer, command, request)
    return _register(state, peer, command, request, request.topics(command.version))


async def _register_later(
    state: NameServerState, peer: BrokerChannel, command: RemotingCommand, request: RegisterBroker
) -> RemotingCommand:
    loop = asyncio.get_running_loop()
    body = await loop.run_in_executor(state.decoder, request.topics, command.version)
    if peer.is_closed:
        # The connection has ended already: the broker would never be removed.
        return command.reply(ResponseCode.SYSTEM_ERROR, "connection closed")
    return _register(state, peer, command, request, body)


def _register(
    state: NameServerState,
    peer: BrokerChannel,
    command: RemotingCommand,
    request: RegisterBroker,
    body: RegisterBrokerBody,
) -> RemotingCommand:
    generation = state.routes.generation
    reply = state.routes.register(
        request,
        body,
        channel=peer,
        now=state.clock.monotonic(),
        delete_absent_topics=state.settings.delete_absent_topics,
    )
    state.broker_peers.add(peer)
    if state.routes.generation != generation:
        log.info(
            "broker registered address=%s name=%s id=%d cluster=%s",
            request.broker_addr,
            request.broker_name,
            request.broker_id,
            request.cluster_name,
        )
    order = state.kv_config.table(ORDER_TOPIC_CONFIG) if state.settings.return_order_config else None
    return command.reply(
        fields=reply.to_fields(), body=b"" if order is None else encode_body(KVTable(table=dict(order)))
    )


def unregister_broker(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    request = UnregisterBroker.from_command(command)
    if state.routes.unregister(request.cluster_name, request.broker_addr):
        log.info("broker unregistered address=%s", request.broker_addr)
    return command.reply()


def broker_heartbeat(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    request = BrokerHeartbeat.from_command(command)
    state.routes.heartbeat(request.cluster_name, request.broker_addr, state.clock.monotonic())
    return command.reply()


def query_data_version(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    """Also counts as a heartbeat."""
    request = QueryDataVersion.from_command(command)
    version = state.routes.heartbeat(request.cluster_name, request.broker_addr, state.clock.monotonic())
    fields = DataVersionReply(changed=version != request.body).to_fields()
    return command.reply(fields=fields, body=b"" if version is None else encode_body(version))


def get_cluster_info(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    return command.reply(body=encode_body(state.routes.cluster_info()))


def get_broker_member_group(
    state: NameServerState, _: BrokerChannel, command: RemotingCommand
) -> RemotingCommand:
    request = GetBrokerMemberGroup.from_command(command)
    group = state.routes.member_group(request.cluster_name, request.broker_name)
    body = encode_body(BrokerMemberGroupBody(broker_member_group=group))
    return command.reply(remark=NO_CODE_REMARK, body=body)


def wipe_write_perm(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    request = WipeWritePermOfBroker.from_command(command)
    count = state.routes.wipe_write_perm(request.broker_name)
    return command.reply(fields=WipeReply(wipe_topic_count=count).to_fields())


def add_write_perm(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    request = AddWritePermOfBroker.from_command(command)
    count = state.routes.add_write_perm(request.broker_name)
    return command.reply(fields=AddReply(add_topic_count=count).to_fields())


# --- Topics ---


def get_route(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    settings = state.settings
    ready_at = state.started_at + settings.wait_for_service_s
    if settings.wait_for_service and state.clock.monotonic() < ready_at:
        return command.reply(ResponseCode.SYSTEM_ERROR, "name server not ready")
    request = GetRouteInfoByTopic.from_command(command)
    if request.zone_mode and request.zone_name and request.zone_name.strip():
        route = in_zone(_route(state, request.topic), request.zone_name)
        return command.reply(body=encode_body(route))
    stamp = (state.routes.generation, state.kv_config.generation, settings.order_messages)
    is_standard = command.version >= STANDARD_JSON_VERSION or bool(request.accept_standard_json_only)
    body = state.route_cache.get(stamp, request.topic, is_standard)
    if body is None:
        encode = encode_standard_body if is_standard else encode_body
        body = encode(_route(state, request.topic))
        state.route_cache.put(stamp, request.topic, is_standard, body)
    return command.reply(body=body)


def _route(state: NameServerState, topic: str) -> TopicRouteData:
    route = state.routes.route(topic)
    if state.settings.order_messages:
        route.order_topic_conf = state.kv_config.get(ORDER_TOPIC_CONFIG, topic)
    return route


def register_topic(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    request = RegisterTopicInNamesrv.from_command(command)
    state.routes.register_topic(request.topic, request.body.queue_datas)
    return command.reply()


def delete_topic(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    request = DeleteTopicInNamesrv.from_command(command)
    state.routes.delete_topic(request.topic, request.cluster_name)
    return command.reply()


def get_topics(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    return _topic_list(command, state.settings.all_topic_list, state.routes.topics)


def get_topics_of_cluster(
    state: NameServerState, _: BrokerChannel, command: RemotingCommand
) -> RemotingCommand:
    cluster = GetTopicsByCluster.from_command(command).cluster
    return _topic_list(command, state.settings.topic_list, lambda: state.routes.topics_of_cluster(cluster))


def get_system_topics(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    return _topic_list(command, state.settings.topic_list, state.routes.system_topics)


def _get_topics_with_flags(wanted: int, unwanted: int = 0) -> Handler:
    def handle(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
        return _topic_list(
            command, state.settings.topic_list, lambda: state.routes.topics_with_flags(wanted, unwanted)
        )

    return handle


def _topic_list(
    command: RemotingCommand, is_enabled: bool, topics: Callable[[], TopicList]
) -> RemotingCommand:
    if not is_enabled:
        return command.reply(ResponseCode.SYSTEM_ERROR, "disable")
    return command.reply(body=encode_body(topics()))


# --- Key-value configuration ---


async def put_kv_config(
    state: NameServerState, _: BrokerChannel, command: RemotingCommand
) -> RemotingCommand:
    request = PutKvConfig.from_command(command)
    state.kv_config.put(request.namespace, request.key, request.value)
    return await _saved(state.kv_file, command)


async def delete_kv_config(
    state: NameServerState, _: BrokerChannel, command: RemotingCommand
) -> RemotingCommand:
    request = DeleteKvConfig.from_command(command)
    state.kv_config.delete(request.namespace, request.key)
    return await _saved(state.kv_file, command)


def get_kv_config(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    request = GetKvConfig.from_command(command)
    value = state.kv_config.get(request.namespace, request.key)
    if value is None:
        remark = f"No config item, Namespace: {request.namespace} Key: {request.key}"
        return command.reply(ResponseCode.QUERY_NOT_FOUND, remark)
    return command.reply(fields=KvReply(value=value).to_fields())


def get_kv_list(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    request = GetKvListByNamespace.from_command(command)
    table = state.kv_config.table(request.namespace)
    if table is None:
        remark = f"No config item, Namespace: {request.namespace}"
        return command.reply(ResponseCode.QUERY_NOT_FOUND, remark)
    return command.reply(body=encode_body(KVTable(table=dict(table))))


async def _saved(file: SavedFile[Any], command: RemotingCommand) -> RemotingCommand:
    """Reply when the change is on disk. If the write fails, the change lasts until the server stops."""
    try:
        await file.save()
    except OSError as error:
        log.error("file not written file=%s reason=%s", file.path, error)  # noqa: TRY400 (the disk, not us)
        return command.reply(ResponseCode.SYSTEM_ERROR, f"changed, but not written: {error}")
    return command.reply()


# --- The server's own configuration ---


def get_config(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    """The settings; and, for `skylark doctor`, what is wrong with the security of the server."""
    more = write_properties(state.security_faults())
    return command.reply(body=(shown_properties(state.settings) + more).encode())


async def update_config(
    state: NameServerState, _: BrokerChannel, command: RemotingCommand
) -> RemotingCommand:
    """Make all changes or none: only live settings may change."""
    request = UpdateNamesrvConfig.from_command(command)
    text = str(request.body, "utf-8", "replace")
    changes = {key: value for key, value, _ in read_properties(text)}
    if not CONFIG_BLACK_LIST.isdisjoint(changes):
        return command.reply(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    update = plan_update(state.settings, changes)
    if refused := [*update.fixed, *update.unknown]:
        remark = f"cannot be changed while the name server runs: {', '.join(refused)}"
        return command.reply(ResponseCode.NO_PERMISSION, remark)
    state.settings = update.settings
    return await _saved(state.config_file, command) if state.config_file else command.reply()


# --- Users and ACLs ---


async def change_users(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    reply = state.users.reply(command)
    for file in state.user_files:
        reply = await _saved(file, command)
        if reply.code != ResponseCode.SUCCESS:
            break
    return reply


def read_users(state: NameServerState, _: BrokerChannel, command: RemotingCommand) -> RemotingCommand:
    return state.users.reply(command)


USER_CODES = frozenset({*USER_CHANGES, *USER_READS})
"""Not served without access control: administrators tell by that which name servers have users."""
ROUTES: Mapping[RequestCode, Handler] = {
    **dict.fromkeys(USER_CHANGES, change_users),
    **dict.fromkeys(USER_READS, read_users),
    RequestCode.PUT_KV_CONFIG: put_kv_config,
    RequestCode.GET_KV_CONFIG: get_kv_config,
    RequestCode.DELETE_KV_CONFIG: delete_kv_config,
    RequestCode.GET_KVLIST_BY_NAMESPACE: get_kv_list,
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.BROKER_HEARTBEAT: broker_heartbeat,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.GET_BROKER_CLUSTER_INFO: get_cluster_info,
    RequestCode.GET_BROKER_MEMBER_GROUP: get_broker_member_group,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_perm,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_perm,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: _get_topics_with_flags(UNIT_FLAG),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _get_topics_with_flags(UNIT_SUB_FLAG),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _get_topics_with_flags(UNIT_SUB_FLAG, UNIT_FLAG),
    RequestCode.UPDATE_NAMESRV_CONFIG: update_config,
    RequestCode.GET_NAMESRV_CONFIG: get_config,
}
