"""The handler of each request code, per port, and the codes that a broker does not serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skylark.broker.error_replies import not_supported
from skylark.broker.handlers.auth import AuthHandlers
from skylark.broker.handlers.broker_admin import BrokerAdminHandlers
from skylark.broker.handlers.clients import ClientHandlers
from skylark.broker.handlers.groups import GroupHandlers
from skylark.broker.handlers.lite import LiteHandlers
from skylark.broker.handlers.message_queries import MessageQueryHandlers
from skylark.broker.handlers.offsets import OffsetHandlers
from skylark.broker.handlers.pop import PopHandlers
from skylark.broker.handlers.pull import PullPath
from skylark.broker.handlers.relay import RelayHandlers
from skylark.broker.handlers.replica_group import ReplicaGroupHandlers
from skylark.broker.handlers.reply import ReplyHandlers
from skylark.broker.handlers.send import SendPath
from skylark.broker.handlers.send_back import SendBackHandlers
from skylark.broker.handlers.served_requests import codes_of, routes_of
from skylark.broker.handlers.stats import StatsHandlers
from skylark.broker.handlers.timers import TimerHandlers
from skylark.broker.handlers.topics import TopicHandlers
from skylark.broker.handlers.transactions import TransactionHandlers
from skylark.broker.replication.role import Role
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.connection import header_start
from skylark.remoting.link import Answer, Handler
from skylark.remoting.server import BatchRoute, Peer, Routes

_NEVER_SERVED: dict[str, tuple[RequestCode, ...]] = {
    "RocketMQ has reserved the number and never used it": (
        RequestCode.QUERY_BROKER_OFFSET,
        RequestCode.GET_TOPIC_CONFIG_LIST,
        RequestCode.GET_TOPIC_NAME_LIST,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.GET_CLIENT_CONFIG,
        RequestCode.SUSPEND_CONSUMER,
        RequestCode.RESUME_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
        RequestCode.ADJUST_CONSUMER_THREAD_POOL,
        RequestCode.WHO_CONSUME_THE_MESSAGE,
        RequestCode.ACK_LITE_MESSAGE,
    ),
    "filter servers are gone since RocketMQ 5": (
        RequestCode.REGISTER_FILTER_SERVER,
        RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
    ),
    "access control of RocketMQ 4 is gone since 5.3.3": (
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    ),
    "a broker sends it to clients": (
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
    ),
    "it is for name servers": (
        RequestCode.PUT_KV_CONFIG,
        RequestCode.GET_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.BROKER_HEARTBEAT,
    ),
    "it is for controllers": (
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.UPDATE_CONTROLLER_CONFIG,
        RequestCode.GET_CONTROLLER_CONFIG,
        RequestCode.CLEAN_BROKER_DATA,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        RequestCode.BROKER_CLOSE_CHANNEL,
        RequestCode.CHECK_NOT_ACTIVE_BROKER,
        RequestCode.GET_BROKER_LIVE_INFO,
        RequestCode.GET_SYNC_STATE_DATA,
        RequestCode.RAFT_BROKER_HEART_BEAT_EVENT,
    ),
}

_NOT_SERVED_HERE: dict[str, tuple[RequestCode, ...]] = {
    "static topics are not served": (RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,),
    "slaves do not act as masters": (RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,),
    "there is no container of several brokers": (RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER),
}


def _by_code(codes_by_reason: dict[str, tuple[RequestCode, ...]]) -> dict[RequestCode, str]:
    return {code: reason for reason, codes in codes_by_reason.items() for code in codes}


NOT_SERVED_HERE = _by_code(_NOT_SERVED_HERE)
REASONS = _by_code(_NEVER_SERVED) | NOT_SERVED_HERE
UNSUPPORTED = frozenset(REASONS)

BATCHES_AT_ONCE = 8
"""Client batches that are appended with one write: more would not cost less each, and be answered later."""
PULLS_AT_ONCE = 16
"""Replies to pulls are large: back-pressure is checked after this many."""

FAMILIES: tuple[type, ...] = (
    ClientHandlers,
    OffsetHandlers,
    PopHandlers,
    LiteHandlers,
    MessageQueryHandlers,
    SendBackHandlers,
    TransactionHandlers,
    ReplyHandlers,
    TimerHandlers,
    TopicHandlers,
    GroupHandlers,
    StatsHandlers,
    RelayHandlers,
    BrokerAdminHandlers,
    AuthHandlers,
    ReplicaGroupHandlers,
)
SERVED = frozenset(codes_of(*FAMILIES))
"""All codes but the hot ones (10, 310, 320, 11, 361, 15), which are served as batches."""

# RocketMQ's processors, which have a queue each, and the requests that can be in flight there and here.
PROCESSORS: dict[str, frozenset[RequestCode]] = {
    "send": frozenset({RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.RECALL_MESSAGE}),
    "async_put": frozenset(),
    "pull": frozenset({RequestCode.PEEK_MESSAGE}),
    "ack": frozenset(),
    "query_message": frozenset({RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}),
    "client_manager": frozenset({RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG}),
    "heartbeat": frozenset({RequestCode.HEART_BEAT}),
    "lite_pull": frozenset(),
    "transaction": frozenset({RequestCode.END_TRANSACTION}),
    "consumer_manager": frozenset(
        {RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_CONSUMER_OFFSET}
    ),
    "admin": frozenset(),
    "reply": frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}),
}
_PROCESSOR_OF = {code: name for name, codes in PROCESSORS.items() for code in codes}


def watermarks(at_work: Mapping[int, int], *, sends: int, pulls: int) -> dict[str, int]:
    """Count requests in flight per processor: coroutines, sends waiting for disk or slaves, cold pulls."""
    marks = {**dict.fromkeys(PROCESSORS, 0), "send": sends, "pull": pulls}
    for code, count in at_work.items():
        marks[_PROCESSOR_OF.get(RequestCode(code), "admin")] += count
    return marks


def main_routes(
    handlers: Sequence[object], sends: SendPath, pulls: PullPath, offsets: OffsetHandlers, role: Role
) -> Routes:
    """Build the routes of the main port. `handlers` has one object of each class in `FAMILIES`."""
    batch = BatchRoute(pulls.pull, PULLS_AT_ONCE)
    return {
        **fast_routes(handlers, sends, offsets, role),
        RequestCode.PULL_MESSAGE: batch,
        RequestCode.LITE_PULL_MESSAGE: batch,
    }


def fast_routes(handlers: Sequence[object], sends: SendPath, offsets: OffsetHandlers, role: Role) -> Routes:
    """Build the routes of the fast port: all but pulls."""
    routes: dict[int, Handler | BatchRoute] = dict.fromkeys(NOT_SERVED_HERE, _refuse)
    for each in handlers:
        routes |= routes_of(each, role)
    ends = next(each for each in handlers if isinstance(each, TransactionHandlers))
    takers = {header_start(RequestCode.END_TRANSACTION): ends.take_ends}
    if sends.takes_plain:
        codes = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        takers |= dict.fromkeys(map(header_start, codes), sends.take_plain)
    single = BatchRoute(sends.send, take_frames=takers)
    return {
        **routes,
        RequestCode.SEND_MESSAGE: single,
        RequestCode.SEND_MESSAGE_V2: single,
        RequestCode.SEND_BATCH_MESSAGE: BatchRoute(sends.send_batch, BATCHES_AT_ONCE),
        RequestCode.UPDATE_CONSUMER_OFFSET: BatchRoute(offsets.update_offsets),
    }


def _refuse(_: Peer, command: RemotingCommand) -> Answer:
    raise not_supported(command.code, NOT_SERVED_HERE[RequestCode(command.code)])
