"""Which request is answered by what: one table for each port, and the list of what is not served."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial

from skylark.broker.handlers import (
    admin,
    assignments,
    clients,
    offsets,
    queries,
    reply,
    send_back,
    timers,
    transactions,
)
from skylark.broker.handlers.pull import PullPath
from skylark.broker.handlers.send import SendPath
from skylark.broker.refusals import not_supported, system_error
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.broker.unsupported import NOT_SERVED_HERE
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.remoting.link import Answer, Handler
from skylark.remoting.server import Batch, Peer, Routes

BATCHES_AT_ONCE = 8
"""Client batches that are appended with one write: more would not cost less each, and be answered later."""
PULLS_AT_ONCE = 16
"""Answers to pulls are large: the peer's pace is looked at after so many."""

ROUTES: dict[RequestCode, BrokerHandler] = {
    **clients.ROUTES,
    **assignments.ROUTES,
    **offsets.ROUTES,
    **queries.ROUTES,
    **send_back.ROUTES,
    **transactions.ROUTES,
    **reply.ROUTES,
    **timers.ROUTES,
    **admin.ROUTES,
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
    batch = Batch(pulls.pull, PULLS_AT_ONCE)
    return {**fast_routes(broker, sends, pulls), **dict.fromkeys(PULLS, batch)}


def fast_routes(broker: BrokerState, sends: SendPath, _: PullPath) -> Routes:
    """The fast port's: everything but pulls."""
    routes: dict[int, Handler | Batch] = {code: partial(handler, broker) for code, handler in ROUTES.items()}
    routes |= {code: partial(_on_master, ROUTES[code], broker) for code in OF_MASTERS}
    routes |= {code: partial(_if_shown, ROUTES[code], broker) for code in OF_READERS}
    routes |= dict.fromkeys(NOT_SERVED_HERE, _refuse)
    single = Batch(sends.send)
    hot: dict[int, Batch] = {
        RequestCode.SEND_MESSAGE: single,
        RequestCode.SEND_MESSAGE_V2: single,
        RequestCode.SEND_BATCH_MESSAGE: Batch(sends.send_batch, BATCHES_AT_ONCE),
        RequestCode.UPDATE_CONSUMER_OFFSET: Batch(partial(offsets.update_offsets, broker)),
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
