"""Rebalancing by the broker: 400. A consumer asks which queues are its own, and is told to pull them."""

from __future__ import annotations

from collections.abc import Iterable

from skylark.broker.clients import BROADCASTING
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.protocol.bodies import (
    AssignmentRequest,
    Assignments,
    MessageQueue,
    QueueAssignment,
    TopicRouteData,
    encode_body,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.queue_allocation import averagely, averagely_by_circle, read_queues
from skylark.protocol.requests.client import QueryAssignment
from skylark.remoting.server import Peer

STRATEGIES = {"AVG": averagely, "AVG_BY_CIRCLE": averagely_by_circle}


async def query_assignment(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """The queues of one member; without a list it keeps what it has."""
    asked = QueryAssignment.from_command(command).body
    route = await broker.find_route(asked.topic)
    found = None if route is None else _assigned(broker, asked, route)
    assignments = None if found is None else [QueueAssignment(message_queue=queue) for queue in found]
    return command.reply(body=encode_body(Assignments(message_queue_assignments=assignments)))


def _assigned(
    broker: BrokerState, asked: AssignmentRequest, route: TopicRouteData
) -> Iterable[MessageQueue] | None:
    queues = sorted(read_queues(asked.topic, route))
    if asked.message_model.upper() == BROADCASTING or not broker.live.current.divide_queues:
        return queues
    strategy = STRATEGIES.get(asked.strategy_name)
    members = sorted(client.client_id for client in broker.consumers.clients(asked.consumer_group))
    if strategy is None or not members or not queues:
        return None
    if asked.client_id not in members:
        return []  # it has left, or is not known yet
    return strategy(asked.client_id, queues, members)


ROUTES: dict[RequestCode, BrokerHandler] = {RequestCode.QUERY_ASSIGNMENT: query_assignment}
