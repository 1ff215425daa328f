"""Requests of Spark drivers and workers to name servers and brokers, over blocking connections, with retries.

A process keeps one client per list of name servers across tasks, as Spark reuses its workers. Connections
reopen on demand, also after a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar

import msgspec

from skylark.client import retry
from skylark.client.session.routes import TopicRoute
from skylark.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    NoRoute,
    NotANameServer,
    RocketMQError,
    SubscriptionGroupNotExist,
    TopicNotExist,
)
from skylark.model.names import LAKE_NAMESPACE, reply_topic
from skylark.model.record import decode_all
from skylark.protocol.bodies import (
    MASTER_ID,
    ClusterInfo,
    MessageQueue,
    SubscriptionGroupConfig,
    TopicRouteData,
)
from skylark.protocol.codes import ResponseCode
from skylark.protocol.request import Request
from skylark.protocol.requests.group import GetSubscriptionGroupConfig, UpdateAndCreateSubscriptionGroup
from skylark.protocol.requests.name_server import (
    GetAllTopicListFromNameServer,
    GetBrokerClusterInfo,
    GetKvListByNamespace,
    GetRouteInfoByTopic,
    GetSystemTopicListFromNs,
    PutKvConfig,
)
from skylark.protocol.requests.offset import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from skylark.protocol.requests.pull import (
    PLAIN_MESSAGES,
    PullMessage,
    PullResult,
    QueryConsumeQueue,
    QueryMessage,
    ViewMessageById,
)
from skylark.protocol.requests.topic import GetAllTopicConfig
from skylark.protocol.signature import Signer
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.settings.credentials import Credentials
from skylark.settings.tls import ClientTlsSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_TIMEOUT_S = 10.0
RETRY_TIMEOUT_S = 120.0
ROUTE_AGE_MAX_S = 5.0
QUESTIONS_IN_FLIGHT_MAX = 256
"""Requests per round."""
SAMPLE_UNITS = 32
BULK_MESSAGES = 2048
BULK_BYTES = 1 << 20


class ClusterClient:
    """Name servers and their brokers. Not thread-safe.

    Requests are retried until `retry_timeout_s` has passed if the network fails or the server is busy or
    shutting down. All methods raise RocketMQError.
    """

    def __init__(
        self,
        name_servers: str,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        credentials: Credentials | None = None,
        tls: ClientTlsSettings | None = None,
    ) -> None:
        """`name_servers`: `host:port`, several separated by `;` or `,`. Raises SettingsError."""
        self._tls = None
        if tls is not None:
            from skylark.remoting.tls_client import ClientTls  # noqa: PLC0415  slow to import

            self._tls = ClientTls(tls)
        self._signer = None if credentials is None else Signer(credentials)
        self.name_servers = [
            item.strip() for item in name_servers.replace(",", ";").split(";") if item.strip()
        ]
        self.request_timeout_s = request_timeout_s
        self.retry_timeout_s = retry_timeout_s
        self._connections: dict[str, BlockingConnection] = {}
        self._routes: dict[str, tuple[float, TopicRouteData]] = {}

    # --- Connections ---

    def connection(self, address: str) -> BlockingConnection:
        """The connection of this process to a server."""
        if address not in self._connections:
            self._connections[address] = BlockingConnection(address, signer=self._signer, tls=self._tls)
        return self._connections[address]

    def retried(self, ask: Callable[[], T], *, retry_timeout_s: float | None = None) -> T:
        """Retry transient failures until the timeout."""
        limit_s = self.retry_timeout_s if retry_timeout_s is None else retry_timeout_s
        deadline, failures = time.monotonic() + limit_s, 0
        while True:
            try:
                return ask()
            except RocketMQError as error:
                failures += 1
                pause_s = retry.pause_s(failures, has_other_broker=False)
                if not retry.is_transient(error) or time.monotonic() + pause_s > deadline:
                    raise
                log.warning("retrying pause_s=%.2f error=%s", pause_s, error)
            time.sleep(pause_s)

    def _ask_name_server(self, request: Request[T]) -> T:
        """Try the name servers in order until one answers."""
        failure: RocketMQError | None = None
        for address in self.name_servers:
            try:
                return self.connection(address).call(request, timeout_s=self.request_timeout_s)
            except BrokerError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise NotANameServer(address, request.code.name) from None
                raise
            except ConnectFailed as error:
                failure = replace(error, is_name_server=True)
            except RocketMQError as error:
                failure = error
        assert failure is not None
        raise failure

    def ask_broker(self, queue: MessageQueue, request: Request[T]) -> T:
        """Send a request to the queue's current master."""
        return self.ask_all([(queue, request)])[0]

    def ask_all(self, questions: Sequence[tuple[MessageQueue, Request[T]]]) -> list[T]:
        """Send many requests concurrently; replies are in request order."""
        answers: list[T] = []
        while len(answers) < len(questions):
            part = questions[len(answers) : len(answers) + QUESTIONS_IN_FLIGHT_MAX]
            answers += self.retried(lambda part=part: self._ask_round(part))  # type: ignore[misc]
        return answers

    def _ask_round(self, questions: Sequence[tuple[MessageQueue, Request[T]]]) -> list[T]:
        try:
            places = [self.connection(self.address(queue)) for queue, _ in questions]
            asked = [
                place.ask(request, timeout_s=self.request_timeout_s)
                for place, (_, request) in zip(places, questions, strict=True)
            ]
            return [place.answer(item) for place, item in zip(places, asked, strict=True)]
        except RocketMQError as error:
            for queue, _ in questions:
                self.forget_route(queue.topic)  # the master may have moved
            if isinstance(error, ConnectFailed) and not error.is_name_server:
                raise replace(error, broker=self._broker_at(error.address)) from None
            raise

    def _broker_at(self, address: str) -> str:
        """Return the name of the broker with this address in the known routes, empty if none has it."""
        known = (masters(route) for _, route in self._routes.values())
        return next((name for names in known for name, its in names.items() if its == address), "")

    # --- Topics and routes ---

    def topics(self) -> list[str]:
        """The topics that the name servers know, without those that are made for clusters and brokers."""
        names = self.retried(lambda: self._ask_name_server(GetAllTopicListFromNameServer())).topic_list
        owners = self.retried(lambda: self._ask_name_server(GetSystemTopicListFromNs())).topic_list
        built_in = {*owners, *(reply_topic(owner) for owner in owners)}
        return [name for name in names if name not in built_in]

    def masters(self) -> list[str]:
        """The addresses of all masters, by broker name."""
        brokers = sorted(self.cluster_info().broker_addr_table.items())
        return [data.broker_addrs[MASTER_ID] for _, data in brokers if MASTER_ID in data.broker_addrs]

    def ask_at(self, address: str, request: Request[T]) -> T:
        """Send a request to a server."""
        ask = partial(self.connection(address).call, request, timeout_s=self.request_timeout_s)
        return self.retried(ask)

    def topic_attributes(self, name: str) -> dict[str, str]:
        """The value of an attribute for each topic that has it; where brokers differ, the first one's."""
        found: dict[str, str] = {}
        for address in reversed(self.masters()):
            for topic, config in self.ask_at(address, GetAllTopicConfig()).topic_config_table.items():
                if (value := config.attributes.get(name)) is not None:
                    found[topic] = value
        return found

    def group_config(self, address: str, group: str) -> SubscriptionGroupConfig | None:
        """A group as a broker knows it; None if it does not exist. Some brokers create it."""
        try:
            return self.ask_at(address, GetSubscriptionGroupConfig(group))
        except SubscriptionGroupNotExist:
            return None

    def set_group_attribute(
        self, address: str, config: SubscriptionGroupConfig, name: str, value: str
    ) -> None:
        """Change one attribute of a group at a broker; creates the group if there is none."""
        changed = msgspec.structs.replace(config, attributes={f"+{name}": value})
        self.ask_at(address, UpdateAndCreateSubscriptionGroup(changed))

    def publish_tables(self, tables: Mapping[str, str]) -> None:
        """Write into each name server where topics are archived, by topic, unless it has that already."""
        for address in self.name_servers:
            place = self.connection(address)
            try:
                request = GetKvListByNamespace(LAKE_NAMESPACE)
                known = place.call(request, timeout_s=self.request_timeout_s).table
            except BrokerError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                known = {}
            for topic, table in tables.items():
                if known.get(topic) != table:
                    place.call(PutKvConfig(LAKE_NAMESPACE, topic, table), timeout_s=self.request_timeout_s)

    def cluster_info(self) -> ClusterInfo:
        return self.retried(lambda: self._ask_name_server(GetBrokerClusterInfo()))

    def route(self, topic: str, *, refresh: bool = False) -> TopicRouteData:
        """The route of a topic, at most 5 s old. Raises NoRoute."""
        if refresh:
            self.forget_route(topic)
        return self.retried(lambda: self._route(topic))

    def _route(self, topic: str) -> TopicRouteData:
        now = time.monotonic()
        fetched_at, known = self._routes.get(topic, (0.0, None))
        if known is not None and now - fetched_at < ROUTE_AGE_MAX_S:
            return known
        try:
            route = self._ask_name_server(GetRouteInfoByTopic(topic))
        except TopicNotExist:
            raise NoRoute(topic) from None
        except RocketMQError:
            if known is None:
                raise
            route = known  # brokers may be reachable while name servers are not
        self._routes[topic] = (now, route)
        return route

    def forget_route(self, topic: str) -> None:
        """Look the route up again on next use; the old one is kept as a fallback."""
        if topic in self._routes:
            self._routes[topic] = (-ROUTE_AGE_MAX_S, self._routes[topic][1])

    def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """Readable queues of a topic on brokers that have a master."""
        route = self.route(topic, refresh=refresh)
        addresses = masters(route)
        return sorted(
            queue for queue in TopicRoute.of(topic, route).read_queues if queue.broker_name in addresses
        )

    def address(self, queue: MessageQueue) -> str:
        """Address of the queue's master. Raises ConnectionLost, which is retried, if no route has it."""
        with contextlib.suppress(NoRoute):
            address = masters(self._route(queue.topic)).get(queue.broker_name)
            if address is not None:
                return address
        raise ConnectionLost(queue.broker_name, f"no route to it for topic {queue.topic}")

    # --- Offsets ---

    def min_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """The first retained offset of each queue."""
        return self._offsets(queues, lambda queue: GetMinOffset(queue.topic, queue.queue_id))

    def max_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """The offset after the last message of each queue."""
        return self._offsets(queues, lambda queue: GetMaxOffset(queue.topic, queue.queue_id))

    def offsets_by_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        """The first offset stored at or after a time; the maximum offset if there is none."""
        found = self._offsets(
            queues, lambda queue: SearchOffsetByTimestamp(queue.topic, queue.queue_id, timestamp_ms, "LOWER")
        )
        # For a time after the last message Apache returns that message: check its time.
        latest = self.max_offsets(queues)
        last = [queue for queue in queues if found[queue] == latest[queue] - 1]
        times = {queue: self._stored_ms(queue, found[queue]) for queue in last}
        for queue, stored_ms in times.items():
            if stored_ms is not None and stored_ms < timestamp_ms:
                found[queue] = latest[queue]
        return found

    def _offsets(
        self, queues: Sequence[MessageQueue], request: Callable[[MessageQueue], Request[int]]
    ) -> dict[MessageQueue, int]:
        answers = self.ask_all([(queue, request(queue)) for queue in queues])
        return dict(zip(queues, answers, strict=True))

    def _stored_ms(self, queue: MessageQueue, queue_offset: int) -> int | None:
        result = self.pull(queue, queue_offset, messages_max=1)
        return next((message.store_timestamp for message in decode_all(result.records)), None)

    def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """A group's committed offset; None if there is none."""
        request = QueryConsumerOffset(group, queue.topic, queue.queue_id, set_zero_if_not_found=False)
        try:
            return self.ask_broker(queue, request)
        except SubscriptionGroupNotExist:
            return None
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    def commit_offsets(self, group: str, offsets: dict[MessageQueue, int]) -> None:
        """Commit a group's offsets; creates the group where brokers allow it."""
        commits = [
            (queue, UpdateConsumerOffset(group, queue.topic, queue.queue_id, queue_offset))
            for queue, queue_offset in offsets.items()
        ]
        try:
            self.ask_all(commits)
        except SubscriptionGroupNotExist:
            for queue in {queue.broker_name: queue for queue in offsets}.values():
                self.ask_broker(queue, PullMessage.plain(queue, offsets[queue], messages_max=1, group=group))
            self.ask_all(commits)

    def advance_offsets(self, group: str, offsets: dict[MessageQueue, int]) -> None:
        """Commit a group's offsets where they are ahead of the committed ones."""
        ahead = {
            queue: queue_offset
            for queue, queue_offset in offsets.items()
            if queue_offset > (self.group_offset(group, queue) or 0)
        }
        self.commit_offsets(group, ahead)

    # --- Messages ---

    def pull(
        self, queue: MessageQueue, queue_offset: int, *, messages_max: int = PLAIN_MESSAGES
    ) -> PullResult:
        """Records from an offset, as many as the broker returns."""
        return self.ask_broker(queue, PullMessage.plain(queue, queue_offset, messages_max=messages_max))

    def record_bytes(self, places: Sequence[tuple[MessageQueue, int]]) -> list[list[int]]:
        """Sizes of up to 32 records from each offset, from the consume queues."""
        questions = [
            (queue, QueryConsumeQueue(queue.topic, queue.queue_id, queue_offset, SAMPLE_UNITS))
            for queue, queue_offset in places
        ]
        return [[unit.physic_size for unit in answer.queue_data] for answer in self.ask_all(questions)]

    def by_key(self, queue: MessageQueue, key: str, *, maximum: int, unique: bool) -> bytes:
        """Records with a key, from all queues of the topic on the queue's broker."""
        request = QueryMessage(queue.topic, key, maximum, 0, (1 << 62), unique_key=unique or None)
        try:
            return bytes(self.ask_broker(queue, request))
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return b""
            raise

    def record_at(self, queue: MessageQueue, physical_offset: int) -> bytes:
        """The record at a physical offset of the queue's broker."""
        return bytes(self.ask_broker(queue, ViewMessageById(physical_offset, queue.topic)))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def masters(route: TopicRouteData) -> dict[str, str]:
    """The addresses of the masters, by broker name. Pure."""
    return {
        data.broker_name: data.broker_addrs[MASTER_ID]
        for data in route.broker_datas
        if MASTER_ID in data.broker_addrs
    }


@cache
def shared_client(
    name_servers: str,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    retry_timeout_s: float = RETRY_TIMEOUT_S,
    credentials: Credentials | None = None,
    tls: ClientTlsSettings | None = None,
) -> ClusterClient:
    """The client of this process for these name servers and user; it lives as long as the process."""
    made = ClusterClient(
        name_servers,
        request_timeout_s=request_timeout_s,
        retry_timeout_s=retry_timeout_s,
        credentials=credentials,
        tls=tls,
    )
    # Close sockets before the interpreter shuts down, which would warn.
    atexit.register(made.close)
    return made
