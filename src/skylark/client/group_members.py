"""Questions about a group to one broker of a topic, to another one if that does not answer."""

from __future__ import annotations

import random
from typing import TypeVar

from skylark.client.routing import MASTER_ID, TopicRoute
from skylark.client.session import Session
from skylark.client.subscription import Subscription
from skylark.errors import RocketMQError
from skylark.protocol.bodies import ClientConfig
from skylark.protocol.request import Request
from skylark.protocol.requests.heartbeat import CheckClientConfig, GetConsumerListByGroup

T = TypeVar("T")


async def group_members(session: Session, group: str, route: TopicRoute) -> list[str]:
    """Return the client ids; none if no broker is there. Raises the last one's error if none answers."""
    found = await _ask_one(session, route, GetConsumerListByGroup(group))
    return [] if found is None else found.consumer_id_list


async def check_expression(session: Session, group: str, wanted: Subscription) -> None:
    """Have a broker read an SQL92 expression.

    Raises BrokerError 23 for one that it does not understand, NoRoute.
    """
    if not wanted.is_tag_type:
        config = ClientConfig(group, wanted.data(), session.client_id)
        await _ask_one(session, await session.find_route(wanted.topic), CheckClientConfig(config))


async def _ask_one(session: Session, route: TopicRoute, request: Request[T]) -> T | None:
    brokers = [broker.broker_addrs for broker in route.data.broker_datas if broker.broker_addrs]
    failure: RocketMQError | None = None
    for addresses in random.sample(brokers, len(brokers)):
        address = addresses.get(MASTER_ID) or next(iter(addresses.values()))
        try:
            return await session.call(address, request)
        except RocketMQError as error:
            failure = error
    if failure is not None:
        raise failure
    return None
