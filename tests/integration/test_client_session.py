"""The session that members of a client id share: routes, name servers, heartbeats, and what brokers ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from skylark.client.session import session as sharing
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import (
    ADMIN,
    CONSUMER,
    PRODUCER,
    BrokerHandler,
    Session,
    client_id_of,
    join,
)
from skylark.errors import (
    BrokerError,
    ClientClosed,
    ConnectFailed,
    GroupInUse,
    NoRoute,
    RequestTimeout,
)
from skylark.protocol.bodies import ConsumerData, ProducerData, TopicRouteData
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.client import GetConsumerRunningInfo, NotifyConsumerIdsChanged
from skylark.protocol.requests.offset import GetMaxOffset
from skylark.settings.client import ClientSettings
from tests.support.broker import BrokerClient, consumer, subscription, until
from tests.support.client_rig import QUICK, Cluster, cluster

TOPIC = "orders"
Sessions = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Session]]
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
HEARTBEAT = RequestCode.HEART_BEAT


class Someone:
    """A member that keeps what it hears."""

    def __init__(self, group: str = "PG", kind: str = PRODUCER, topics: Iterable[str] = ()) -> None:
        self.group = group
        self.kind = kind
        self.wanted = list(topics)
        self.routes: list[TopicRoute] = []
        self.connected: list[str] = []
        self.asked: list[RemotingCommand] = []
        self.answer: Any = None

    def heartbeat_data(self) -> ProducerData | ConsumerData | None:
        if self.kind == PRODUCER:
            return ProducerData(self.group)
        return consumer(self.group, self.wanted) if self.kind == CONSUMER else None

    def topics(self) -> Iterable[str]:
        return self.wanted

    def on_route_change(self, route: TopicRoute) -> None:
        self.routes.append(route)

    def on_connected(self, address: str) -> None:
        self.connected.append(address)

    def handlers(self) -> Mapping[int, BrokerHandler]:
        def keep(command: RemotingCommand, address: str) -> RemotingCommand | None:
            self.asked.append(command)
            if isinstance(self.answer, Exception):
                raise self.answer
            return command.reply(body=self.answer) if self.answer is not None else None

        return dict.fromkeys((40, 220, 221, 307, 309), keep)


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path) as rig:
        await rig.create_topic(TOPIC)
        yield rig


async def joined(rig: Cluster, member: Someone, client: ClientSettings = QUICK) -> Session:
    return await join(member, client, (rig.namesrv,))


async def test_members_of_one_name_share_a_session_and_the_last_one_ends_it(one: Cluster) -> None:
    shared = replace(QUICK, instance_name="shop")
    first, second = Someone("A"), Someone("B")
    session = await joined(one, first, shared)
    assert await joined(one, second, shared) is session
    third = Someone("C")
    assert await join(third, shared, ("127.0.0.1:1",)) is not session, "another cluster"
    with pytest.raises(GroupInUse):
        await joined(one, Someone("A"), shared)
    assert (await joined(one, Someone("A", CONSUMER), shared)) is session, "of another kind"
    await session.find_route(TOPIC)
    await session.leave(first)
    await session.leave(first)
    await session.leave(second)
    assert (await session.find_route(TOPIC)).topic == TOPIC
    member = session.member(CONSUMER, "A")
    assert member is not None
    await session.leave(member)
    with pytest.raises(ClientClosed):
        await session.refresh_route(TOPIC)
    again = await joined(one, first, shared)
    assert again is not session
    await again.leave(first)
    other = await join(Someone("D"), shared, ("127.0.0.1:1",))
    for each in (third, other.member(PRODUCER, "D")):
        assert each is not None
        await other.leave(each)


def test_client_ids() -> None:
    named = ClientSettings(client_ip="10.0.0.1", instance_name="shop", unit_name="u")
    assert client_id_of(named) == "10.0.0.1@shop@u"
    assert client_id_of(named, is_stream=True) == "10.0.0.1@shop@u@STREAM"
    unnamed = ClientSettings(client_ip="10.0.0.1")
    assert client_id_of(unnamed, keep_default_name=True) == "10.0.0.1@DEFAULT"
    assert client_id_of(unnamed) != client_id_of(unnamed)


async def test_several_who_ask_at_once_ask_once_and_all_members_hear(one: Cluster) -> None:
    member, other = Someone("A"), Someone("B")
    shared = replace(QUICK, instance_name="shop", route_refresh_interval_ms=60_000)
    session = await joined(one, member, shared)
    await joined(one, other, shared)
    asking = [asyncio.ensure_future(session.refresh_route(TOPIC)) for _ in range(20)]
    await asyncio.sleep(0)
    asking[0].cancel()
    routes = await asyncio.gather(*asking[1:])
    assert len(one.names.asked(ROUTE)) == 1
    assert all(route is routes[0] for route in routes)
    assert member.routes == other.routes == [routes[0]]
    await session.refresh_route(TOPIC)
    assert len(member.routes) == 1, "no news"
    with pytest.raises(NoRoute):
        await session.refresh_route("unheard-of")
    await session.leave(member)
    await session.leave(other)


async def test_wanted_topics_are_refreshed_again_and_again(one: Cluster) -> None:
    member = Someone(topics=[TOPIC, "unheard-of"])
    session = await joined(one, member)
    await until(lambda: len(one.names.asked(ROUTE)) >= 6)
    assert [route.topic for route in member.routes] == [TOPIC]
    await session.leave(member)


async def test_the_next_name_server_is_asked_when_one_is_away_and_again_when_it_is_back(
    one: Cluster, tmp_path: Path
) -> None:
    member = Someone()
    client = replace(QUICK, request_timeout_ms=5000)
    session = await join(member, client, (one.namesrv, "127.0.0.1:1"))
    for _ in range(4):
        await session.refresh_route(TOPIC)
    one.names.cut()
    await session.refresh_route(TOPIC)
    one.names.shut()
    with pytest.raises(ConnectFailed):
        await session.refresh_route(TOPIC)
    assert (await session.find_route(TOPIC)).topic == TOPIC, "what was heard is still known"
    await session.leave(member)


async def test_a_new_connection_brings_a_heartbeat_at_once_and_members_hear_of_it(one: Cluster) -> None:
    member = Someone("CG", CONSUMER, [TOPIC])
    client = replace(QUICK, heartbeat_interval_ms=60_000, route_refresh_interval_ms=60_000)
    session = await joined(one, member, client)
    await session.refresh_route(TOPIC)
    proxy = one.proxies["broker-a"]
    assert await session.heartbeat()
    assert (len(proxy.asked(HEARTBEAT)), member.connected) == (1, []), "it was no news"
    for number in (1, 2):
        proxy.cut()
        await until(lambda: session.pool.open_connection(proxy.address) is None)
        await session.call(proxy.address, GetMaxOffset(TOPIC, 0))
        await until(lambda number=number: len(member.connected) == number)  # type: ignore[misc]
    assert member.connected == [proxy.address] * 2
    assert session.routes.readable("broker-a").version == 479
    await session.leave(member)
    assert [each.fields["consumerGroup"] for each in proxy.asked(RequestCode.UNREGISTER_CLIENT)] == ["CG"]


async def test_an_admin_alone_sends_no_heartbeats(one: Cluster) -> None:
    member = Someone("admin", ADMIN)
    session = await joined(one, member)
    await session.refresh_route(TOPIC)
    assert not await session.heartbeat()
    await session.call(one.proxies["broker-a"].address, GetMaxOffset(TOPIC, 0))
    await session.leave(member)
    assert one.proxies["broker-a"].asked(HEARTBEAT) == []
    assert one.proxies["broker-a"].asked(RequestCode.UNREGISTER_CLIENT) == []


async def test_a_broker_that_no_route_names_is_forgotten(one: Cluster) -> None:
    member = Someone(topics=[TOPIC])
    session = await joined(one, member)
    await session.refresh_route(TOPIC)
    address = one.proxies["broker-a"].address
    await session.heartbeat()
    assert session.pool.open_connection(address) is not None
    member.wanted.clear()
    session.routes.update(TOPIC, TopicRouteData())
    await until(lambda: session.routes.brokers() == {})
    assert session.pool.open_connection(address) is None
    await session.leave(member)


async def test_what_brokers_ask_reaches_the_member_it_is_for(one: Cluster) -> None:
    members = [Someone("CG1", CONSUMER, [TOPIC]), Someone("CG2", CONSUMER, [TOPIC])]
    shared = replace(QUICK, instance_name="shop")
    for member in members:
        session = await joined(one, member, shared)
    await session.refresh_route(TOPIC)
    await session.heartbeat()
    async with BrokerClient(one.brokers["broker-a"].address, "another@1") as other:
        await other.heartbeat(consumer("CG1", [TOPIC]))
        await until(lambda: any(each.code == NotifyConsumerIdsChanged.code for each in members[0].asked))
        members[1].asked.clear()
        members[1].answer = b'{"properties":{"PROP_CLIENT_VERSION":"me"}}'
        info = await other.ask(GetConsumerRunningInfo("CG2", session.client_id))
        assert info.properties["PROP_CLIENT_VERSION"] == "me"
        assert [each.code for each in members[1].asked] == [307]
        members[1].answer = BrokerError(ResponseCode.SYSTEM_BUSY, "not now")
        with pytest.raises(BrokerError, match="not now"):
            await other.ask(GetConsumerRunningInfo("CG2", session.client_id))
        await session.leave(members[1])
        assert members[0].asked
    await session.leave(members[0])


async def test_different_subscriptions_in_a_group_are_logged_once(
    one: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    member = Someone("CG1", CONSUMER, [TOPIC])
    session = await joined(one, member, replace(QUICK, heartbeat_interval_ms=60_000))
    await session.refresh_route(TOPIC)
    async with BrokerClient(one.brokers["broker-a"].address, "another@1") as other:
        await other.heartbeat(consumer("CG1", [subscription(TOPIC, "paid")]))
        for _ in range(3):
            assert await session.heartbeat()
    [line] = [line for line in caplog.messages if "give all members" in line]
    assert f"group CG1: {TOPIC}: * ({session.client_id}); {TOPIC}: paid (another@1)" in line
    await session.leave(member)


async def test_a_connection_that_has_fallen_silent_is_closed(one: Cluster) -> None:
    member = Someone()
    session = await joined(one, member, replace(QUICK, heartbeat_interval_ms=60_000))
    await session.refresh_route(TOPIC)
    proxy = one.proxies["broker-a"]
    await session.call(proxy.address, GetMaxOffset(TOPIC, 0))
    proxy.is_silent = True
    with pytest.raises(RequestTimeout):
        await session.call(proxy.address, GetMaxOffset(TOPIC, 0), timeout_ms=50)
    await until(lambda: session.pool.open_connection(proxy.address) is None)
    proxy.is_silent = False
    assert await session.call(proxy.address, GetMaxOffset(TOPIC, 0)) == 0
    assert proxy.connections == 2
    await session.leave(member)


async def test_the_end_of_a_session_does_not_look_at_those_of_other_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other threads may add loops to the table, or take them out, at any moment."""

    class Changing(Sessions):
        def values(self) -> Any:
            raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(sharing, "_sessions", Changing())
    for _ in range(2):
        someone = Someone()
        session = await join(someone, QUICK, ("127.0.0.1:1",))
        await session.leave(someone)
        with pytest.raises(ClientClosed):
            await session.call("127.0.0.1:1", GetMaxOffset(TOPIC, 0))
    assert not any(dict(sharing._sessions).values())
