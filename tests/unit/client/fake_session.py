"""A session without sockets and routes that never change; tests say what servers reply."""

from __future__ import annotations

from typing import Any

from skylark.client.session.routes import FoundBroker, TopicRoute
from skylark.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData
from skylark.settings.client import ClientSettings

ADDRESS = "10.0.0.1:10911"
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]


class FakeSession:
    """`asked` are the calls, `told` the one-way requests; `answer` returns the replies."""

    client_id = "me"
    settings = ClientSettings()

    def __init__(self) -> None:
        data = TopicRouteData(
            broker_datas=[BrokerData("broker-a", "c", {0: ADDRESS})],
            queue_datas=[QueueData("broker-a", len(QUEUES), len(QUEUES), 6)],
        )
        self.route = TopicRoute.of("T", data)
        self.routes = self
        self.asked: list[Any] = []
        self.told: list[Any] = []

    def readable(self, broker_name: str, broker_id: int = 0) -> FoundBroker:
        return FoundBroker(ADDRESS, is_slave=False)

    async def find_route(self, topic: str) -> TopicRoute:
        return self.route

    async def call(self, address: str, request: Any, **_: object) -> Any:
        self.asked.append(request)
        return await self.answer(request)

    async def notify(self, address: str, request: Any) -> None:
        self.told.append(request)

    async def answer(self, request: Any) -> Any:
        raise NotImplementedError
