"""The handler of each request code, per port, and the codes that a broker does not serve."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial

from skylark.broker.error_replies import not_supported, system_error
from skylark.broker.handlers import (
    assignments,
    broker_admin,
    clients,
    message_queries,
    offsets,
    reply,
    send_back,
    timers,
    transactions,
)
from skylark.broker.handlers.pull import PullPath
from skylark.broker.handlers.send import SendPath
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.protocol.codes import RequestCode
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.command import RemotingCommand
from skylark.remoting.link import Answer, Handler
from skylark.remoting.server import BatchRoute, Peer, Routes

_NEVER_SERVED: dict[str, tuple[Code, ...]] = {
    "RocketMQ has reserved the number and never used it": (
        Code.QUERY_BROKER_OFFSET,
        Code.GET_TOPIC_CONFIG_LIST,
        Code.GET_TOPIC_NAME_LIST,
        Code.TRIGGER_DELETE_FILES,
        Code.GET_CLIENT_CONFIG,
        Code.SUSPEND_CONSUMER,
        Code.RESUME_CONSUMER,
        Code.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        Code.RESET_CONSUMER_OFFSET_IN_BROKER,
        Code.ADJUST_CONSUMER_THREAD_POOL,
        Code.WHO_CONSUME_THE_MESSAGE,
    ),
    "filter servers are gone since RocketMQ 5": (
        Code.REGISTER_FILTER_SERVER,
        Code.REGISTER_MESSAGE_FILTER_CLASS,
    ),
    "access control of RocketMQ 4 is gone since 5.3.3": (
        Code.UPDATE_AND_CREATE_ACL_CONFIG,
        Code.DELETE_ACL_CONFIG,
        Code.GET_BROKER_CLUSTER_ACL_INFO,
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        Code.GET_BROKER_CLUSTER_ACL_CONFIG,
    ),
    "a broker sends it to clients": (
        Code.CHECK_TRANSACTION_STATE,
        Code.NOTIFY_CONSUMER_IDS_CHANGED,
        Code.RESET_CONSUMER_CLIENT_OFFSET,
        Code.GET_CONSUMER_STATUS_FROM_CLIENT,
        Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
    ),
    "it is for name servers": (
        Code.PUT_KV_CONFIG,
        Code.GET_KV_CONFIG,
        Code.DELETE_KV_CONFIG,
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.GET_ROUTEINFO_BY_TOPIC,
        Code.GET_BROKER_CLUSTER_INFO,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        Code.GET_UNIT_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        Code.UPDATE_NAMESRV_CONFIG,
        Code.GET_NAMESRV_CONFIG,
        Code.QUERY_DATA_VERSION,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.GET_BROKER_MEMBER_GROUP,
        Code.BROKER_HEARTBEAT,
    ),
    "it is for controllers": (
        Code.CONTROLLER_ALTER_SYNC_STATE_SET,
        Code.CONTROLLER_ELECT_MASTER,
        Code.CONTROLLER_REGISTER_BROKER,
        Code.CONTROLLER_GET_REPLICA_INFO,
        Code.CONTROLLER_GET_METADATA_INFO,
        Code.CONTROLLER_GET_SYNC_STATE_DATA,
        Code.UPDATE_CONTROLLER_CONFIG,
        Code.GET_CONTROLLER_CONFIG,
        Code.CLEAN_BROKER_DATA,
        Code.CONTROLLER_GET_NEXT_BROKER_ID,
        Code.CONTROLLER_APPLY_BROKER_ID,
        Code.BROKER_CLOSE_CHANNEL,
        Code.CHECK_NOT_ACTIVE_BROKER,
        Code.GET_BROKER_LIVE_INFO,
        Code.GET_SYNC_STATE_DATA,
        Code.RAFT_BROKER_HEART_BEAT_EVENT,
    ),
}

_NOT_SERVED_HERE: dict[str, tuple[Code, ...]] = {
    "access control is not served yet": (
        Code.AUTH_CREATE_USER,
        Code.AUTH_UPDATE_USER,
        Code.AUTH_DELETE_USER,
        Code.AUTH_GET_USER,
        Code.AUTH_LIST_USER,
        Code.AUTH_CREATE_ACL,
        Code.AUTH_UPDATE_ACL,
        Code.AUTH_DELETE_ACL,
        Code.AUTH_GET_ACL,
        Code.AUTH_LIST_ACL,
    ),
    "pop consumption is not served yet": (
        Code.POP_MESSAGE,
        Code.ACK_MESSAGE,
        Code.PEEK_MESSAGE,
        Code.CHANGE_MESSAGE_INVISIBLETIME,
        Code.NOTIFICATION,
        Code.POLLING_INFO,
        Code.BATCH_ACK_MESSAGE,
    ),
    "static topics are not served": (Code.UPDATE_AND_CREATE_STATIC_TOPIC,),
    "brokers do not change their role by themselves yet": (
        Code.NOTIFY_MIN_BROKER_ID_CHANGE,
        Code.NOTIFY_BROKER_ROLE_CHANGED,
    ),
    "there is no container of several brokers": (Code.ADD_BROKER, Code.REMOVE_BROKER),
}


def _by_code(codes_by_reason: dict[str, tuple[Code, ...]]) -> dict[Code, str]:
    return {code: reason for reason, codes in codes_by_reason.items() for code in codes}


NOT_SERVED_HERE = _by_code(_NOT_SERVED_HERE)
REASONS = _by_code(_NEVER_SERVED) | NOT_SERVED_HERE
UNSUPPORTED = frozenset(REASONS)

BATCHES_AT_ONCE = 8
"""Client batches that are appended with one write: more would not cost less each, and be answered later."""
PULLS_AT_ONCE = 16
"""Answers to pulls are large: the peer's pace is looked at after so many."""

ROUTES: dict[RequestCode, BrokerHandler] = {
    **clients.ROUTES,
    **assignments.ROUTES,
    **offsets.ROUTES,
    **message_queries.ROUTES,
    **send_back.ROUTES,
    **transactions.ROUTES,
    **reply.ROUTES,
    **timers.ROUTES,
    **broker_admin.ROUTES,
}
"""All but the hot requests (10, 310, 320, 11, 361, 15), which `main_routes` adds as batches."""

OF_MASTERS = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
    }
)
"""Changes that a slave takes from its master: made on the slave, they would be undone a moment later."""

OF_READERS = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
    }
)
"""Questions, besides pulls, whose answers are messages, offsets of messages, or where a group goes on."""

# RocketMQ's processors, each with a queue of its own, and the requests that wait there and here.
PROCESSORS: dict[str, frozenset[RequestCode]] = {
    "send": frozenset({RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.RECALL_MESSAGE}),
    "async_put": frozenset(),
    "pull": frozenset(),
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
    """How many requests wait where: those in coroutines, sends for disk or slaves, pulls for the disk."""
    marks = {**dict.fromkeys(PROCESSORS, 0), "send": sends, "pull": pulls}
    for code, count in at_work.items():
        marks[_PROCESSOR_OF.get(RequestCode(code), "admin")] += count
    return marks


# What only the main port serves.
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def main_routes(broker: BrokerState, sends: SendPath, pulls: PullPath) -> Routes:
    batch = BatchRoute(pulls.pull, PULLS_AT_ONCE)
    return {**fast_routes(broker, sends, pulls), **dict.fromkeys(PULLS, batch)}


def fast_routes(broker: BrokerState, sends: SendPath, _: PullPath) -> Routes:
    """The fast port's: everything but pulls."""
    routes: dict[int, Handler | BatchRoute] = {
        code: partial(handler, broker) for code, handler in ROUTES.items()
    }
    routes |= {code: partial(_on_master, ROUTES[code], broker) for code in OF_MASTERS}
    routes |= {code: partial(_if_shown, ROUTES[code], broker) for code in OF_READERS}
    routes |= dict.fromkeys(NOT_SERVED_HERE, _refuse)
    single = BatchRoute(sends.send)
    hot: dict[int, BatchRoute] = {
        RequestCode.SEND_MESSAGE: single,
        RequestCode.SEND_MESSAGE_V2: single,
        RequestCode.SEND_BATCH_MESSAGE: BatchRoute(sends.send_batch, BATCHES_AT_ONCE),
        RequestCode.UPDATE_CONSUMER_OFFSET: BatchRoute(partial(offsets.update_offsets, broker)),
    }
    return {**routes, **hot}


def _refuse(_: Peer, command: RemotingCommand) -> Answer:
    raise not_supported(command.code, NOT_SERVED_HERE[RequestCode(command.code)])


def _on_master(
    handler: BrokerHandler, broker: BrokerState, peer: Peer, command: RemotingCommand
) -> Answer | Awaitable[Answer]:
    if broker.role.is_slave:
        master = broker.slave_status.master_address or "its master"
        raise system_error(f"a slave takes topics, groups and offsets from its master: ask {master}")
    return handler(broker, peer, command)


def _if_shown(
    handler: BrokerHandler, broker: BrokerState, peer: Peer, command: RemotingCommand
) -> Answer | Awaitable[Answer]:
    broker.check_shown()
    return handler(broker, peer, command)
