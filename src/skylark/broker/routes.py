"""Which request is answered by what: one table for each port, and the list of what is not served."""

from __future__ import annotations

from functools import partial

from skylark.broker.handlers import admin, clients, offsets, queries, reply, send_back, timers, transactions
from skylark.broker.handlers.pull import PullPath
from skylark.broker.handlers.send import SendPath
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.protocol.codes import RequestCode
from skylark.remoting.link import Handler
from skylark.remoting.server import Batch, Routes

PULLS_AT_ONCE = 8
"""Answers to pulls are large: the peer's pace is looked at after so many."""

ROUTES: dict[RequestCode, BrokerHandler] = {
    **clients.ROUTES,
    **offsets.ROUTES,
    **queries.ROUTES,
    **send_back.ROUTES,
    **transactions.ROUTES,
    **reply.ROUTES,
    **timers.ROUTES,
    **admin.ROUTES,
}
"""All but the hot requests (10, 310, 320, 11, 361, 15), which `main_routes` adds as batches."""

# What only the main port serves.
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def main_routes(broker: BrokerState, sends: SendPath, pulls: PullPath) -> Routes:
    batch = Batch(pulls.pull, PULLS_AT_ONCE)
    return {**fast_routes(broker, sends, pulls), **dict.fromkeys(PULLS, batch)}


def fast_routes(broker: BrokerState, sends: SendPath, _: PullPath) -> Routes:
    """The fast port's: everything but pulls."""
    routes: dict[int, Handler | Batch] = {code: partial(handler, broker) for code, handler in ROUTES.items()}
    single = Batch(sends.send)
    hot: dict[int, Batch] = {
        RequestCode.SEND_MESSAGE: single,
        RequestCode.SEND_MESSAGE_V2: single,
        RequestCode.SEND_BATCH_MESSAGE: Batch(sends.send_batch),
        RequestCode.UPDATE_CONSUMER_OFFSET: Batch(partial(offsets.update_offsets, broker)),
    }
    return {**routes, **hot}
