"""Pure. Topic routes: writable and readable queues, and broker addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from skylark.errors import BrokerUnknown
from skylark.protocol.bodies import MASTER_ID, PERM_WRITE, BrokerData, MessageQueue, QueueData, TopicRouteData
from skylark.protocol.queue_allocation import read_queues


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's route with its writable and readable queues, in round-robin order."""

    topic: str
    data: TopicRouteData
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    is_ordered: bool = False
    masterless: str | None = None
    """A broker with writable queues that has replicas but no master now: one is being elected."""

    @classmethod
    def of(cls, topic: str, data: TopicRouteData) -> TopicRoute:
        ordered = bool(data.order_topic_conf)
        return cls(
            topic,
            data,
            tuple(_write_queues(topic, data)),
            tuple(read_queues(topic, data)),
            is_ordered=ordered,
            masterless=_masterless(data),
        )


def _write_queues(topic: str, data: TopicRouteData) -> Iterator[MessageQueue]:
    """Yield the writable queues. An ordered topic keeps the queues of an absent broker, to keep the order."""
    if data.order_topic_conf:
        for part in data.order_topic_conf.split(";"):
            broker, _, number = part.partition(":")
            if number.isdecimal():
                yield from (MessageQueue(topic, broker, queue_id) for queue_id in range(int(number)))
        return
    masters = {broker.broker_name for broker in data.broker_datas if MASTER_ID in broker.broker_addrs}
    for queues in sorted(data.queue_datas, key=_broker_name):
        if queues.perm & PERM_WRITE and queues.broker_name in masters:
            for queue_id in range(queues.write_queue_nums):
                yield MessageQueue(topic, queues.broker_name, queue_id)


def _masterless(data: TopicRouteData) -> str | None:
    writable = {queues.broker_name for queues in data.queue_datas if queues.perm & PERM_WRITE}
    for broker in data.broker_datas:
        if broker.broker_name in writable and broker.broker_addrs and MASTER_ID not in broker.broker_addrs:
            return broker.broker_name
    return None


def _broker_name(entry: QueueData | BrokerData) -> str:
    return entry.broker_name


def limited(data: TopicRouteData, queues_max: int) -> TopicRouteData:
    """Return the route of an auto-created topic: the default topic's, with at most `queues_max` queues."""
    queues = [
        QueueData(
            each.broker_name,
            min(queues_max, each.read_queue_nums),
            min(queues_max, each.read_queue_nums),
            each.perm,
            each.topic_sys_flag,
        )
        for each in data.queue_datas
    ]
    return TopicRouteData(broker_datas=data.broker_datas, queue_datas=queues)


def same_route(one: TopicRouteData, other: TopicRouteData) -> bool:
    """Compare two routes, ignoring the order of entries."""
    return (
        sorted(one.queue_datas, key=_broker_name) == sorted(other.queue_datas, key=_broker_name)
        and sorted(one.broker_datas, key=_broker_name) == sorted(other.broker_datas, key=_broker_name)
        and one.order_topic_conf == other.order_topic_conf
        and one.filter_server_table == other.filter_server_table
    )


@dataclass(frozen=True, slots=True)
class FoundBroker:
    """A replica to read from; `version` is 0 while unknown."""

    address: str
    is_slave: bool
    version: int = 0


class RouteCache:
    """Cached routes of a client, and the addresses of their brokers."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        self._addresses: dict[str, dict[int, str]] = {}
        self._names: dict[str, str] = {}
        self._versions: dict[str, int] = {}

    def get(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    def update(self, topic: str, data: TopicRouteData) -> TopicRoute | None:
        """Store a route from a name server; return it if it changed, else None."""
        for broker in data.broker_datas:
            self._addresses[broker.broker_name] = dict(broker.broker_addrs)
            self._names.update(dict.fromkeys(broker.broker_addrs.values(), broker.broker_name))
        known = self._routes.get(topic)
        if known is not None and same_route(known.data, data):
            return None
        route = self._routes[topic] = TopicRoute.of(topic, data)
        return route

    def clean(self) -> list[str]:
        """Remove the addresses that are in no route any more, and return them."""
        named = {
            address
            for route in self._routes.values()
            for broker in route.data.broker_datas
            for address in broker.broker_addrs.values()
        }
        # Including old addresses of brokers that moved: only `_names` still has them.
        gone = [address for address in self._names if address not in named]
        for broker, addresses in list(self._addresses.items()):
            kept = {broker_id: address for broker_id, address in addresses.items() if address in named}
            if kept:
                self._addresses[broker] = kept
            else:
                del self._addresses[broker]
        for address in gone:
            del self._names[address]
            self._versions.pop(address, None)
        return gone

    def brokers(self) -> dict[str, dict[int, str]]:
        """Return addresses by broker name and broker id."""
        return self._addresses

    def broker_of(self, address: str) -> str | None:
        """Return the name of the broker at this address, None if unknown."""
        return self._names.get(address)

    def note_version(self, address: str, version: int) -> None:
        self._versions[address] = version

    def awaits_master(self, broker: str) -> bool:
        """Return whether a broker has replicas but no master: one is being elected."""
        addresses = self._addresses.get(broker, {})
        return bool(addresses) and MASTER_ID not in addresses

    def topics_of(self, broker: str) -> list[str]:
        """Return the topics that a broker has, as far as they are known."""
        return [
            topic
            for topic, route in self._routes.items()
            if any(each.broker_name == broker for each in route.data.broker_datas)
        ]

    def master(self, broker: str) -> str:
        """Return the address of a broker's master. Raises BrokerUnknown."""
        address = self._addresses.get(broker, {}).get(MASTER_ID)
        if address is None:
            raise BrokerUnknown(broker)
        return address

    def readable(self, broker: str, broker_id: int = MASTER_ID, *, only_this: bool = False) -> FoundBroker:
        """Return a replica to read from: this one, else the next, else (unless `only_this`) any.

        Raises BrokerUnknown.
        """
        addresses = self._addresses.get(broker, {})
        found = broker_id if broker_id in addresses else None
        if found is None and broker_id != MASTER_ID and broker_id + 1 in addresses:
            found = broker_id + 1
        if found is None and not only_this:
            found = next(iter(addresses), None)
        if found is None:
            raise BrokerUnknown(broker)
        address = addresses[found]
        return FoundBroker(address, found != MASTER_ID, self._versions.get(address, 0))
