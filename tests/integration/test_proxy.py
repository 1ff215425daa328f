"""The gRPC proxy in front of our broker: routes, settings, sends, transactions, the port itself."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpclib import GRPCError, Status
from grpclib.client import UnaryUnaryMethod

from skylark.broker.broker import Broker
from skylark.errors import BrokerError
from skylark.model.lite_topic import light_queue_of
from skylark.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from skylark.protocol.requests.group import GetConsumerConnectionList, GetProducerConnectionList
from skylark.protocol.requests.offset import UpdateConsumerOffset
from skylark.proxy.header_blocks import encode_headers
from skylark.proxy.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame
from skylark.proxy.proxy import GrpcProxy
from skylark.proxy.schema import (
    SERVICE,
    ClientType,
    Code,
    FilterType,
    MessageType,
    QueuePermission,
    TransactionResolution,
    TransactionSource,
    v2,
)
from skylark.remoting.address import split_address
from skylark.settings.broker import TransactionSettings
from tests.support.broker import BrokerClient, running_cluster, until
from tests.support.grpc_client import (
    GrpcTestClient,
    consumer_settings,
    new_message,
    producer_settings,
    resource,
    running_proxy,
)


class Rig:
    """A cluster with a proxy, and a client of each kind."""

    def __init__(
        self, broker: Broker, proxy: GrpcProxy, client: GrpcTestClient, remoting: BrokerClient
    ) -> None:
        self.broker = broker
        self.proxy = proxy
        self.client = client
        self.remoting = remoting

    async def topic(self, name: str, kind: str = "", queues: int = 2) -> str:
        """Make a topic that takes this kind of messages."""
        attributes = {"+message.type": kind} if kind else {}
        config = TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, attributes=attributes
        )
        self.broker.topics.update(config, now_ms=self.broker.clock.now_ms())
        await self.broker.registration.settle()
        return name

    async def knows_producer(self, group: str) -> bool:
        """Whether the broker lists the client in this group."""
        try:
            shown = await self.remoting.ask(GetProducerConnectionList(group))
        except BrokerError:
            return False
        return [(each.client_id, each.language) for each in shown.connection_set] == [
            (self.client.client_id, "JAVA")
        ]

    async def first_position(self, topic: str, group: str, queues: int = 2) -> None:
        """Let a group begin with the first message: by itself it would begin with the next."""
        config = SubscriptionGroupConfig(group_name=group)
        self.broker.groups.update(config, now_ms=self.broker.clock.now_ms())
        for queue_id in range(queues):
            await self.remoting.ask(UpdateConsumerOffset(group, topic, queue_id, 0))

    async def stored(self, topic: str, queues: int = 2) -> list[Any]:
        """All messages of a topic."""
        found = [await self.remoting.pull_all(topic, queue_id) for queue_id in range(queues)]
        return [message for part in found for message in part]


@contextlib.asynccontextmanager
async def running_rig(
    directory: Path,
    proxy_changes: dict[str, Any] | None = None,
    *,
    is_nearby: bool = True,
    **changes: Any,
) -> AsyncIterator[Rig]:
    """With `is_nearby` the proxy reaches the broker as in `skylark serve`, else over a socket."""
    async with (
        running_cluster(directory, **changes) as (name_server, broker),
        running_proxy(
            name_server.address,
            nearby=broker.nearby() if is_nearby else None,
            **(proxy_changes or {}),
        ) as proxy,
        GrpcTestClient(proxy.address) as client,
        BrokerClient(broker.address) as remoting,
    ):
        yield Rig(broker, proxy, client, remoting)


@pytest.fixture(params=["nearby", pytest.param("remote", marks=pytest.mark.nightly)])
async def rig(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with running_rig(tmp_path, is_nearby=request.param == "nearby") as made:
        yield made


def send_request(*messages: Any) -> Any:
    return v2.SendMessageRequest(messages=messages)


# --- Routes ---


async def test_route_names_the_endpoints_of_the_request(rig: Rig) -> None:
    topic = await rig.topic("T", "FIFO")
    request = v2.QueryRouteRequest(topic=resource(topic))
    request.endpoints.addresses.add(host="proxy.example", port=9999)
    reply = await rig.client.ok("QueryRoute", request)
    assert [queue.id for queue in reply.message_queues] == [0, 1]
    queue = reply.message_queues[0]
    assert queue.permission == QueuePermission.READ_WRITE
    assert queue.broker.name == "broker-a" and queue.broker.id == 0
    assert queue.broker.endpoints == request.endpoints
    assert list(queue.accept_message_types) == [MessageType.FIFO]


async def test_unknown_topic_has_no_route_and_is_not_created(rig: Rig) -> None:
    code, text = await rig.client.code("QueryRoute", v2.QueryRouteRequest(topic=resource("absent")))
    assert (code, "absent" in text) == (Code.TOPIC_NOT_FOUND, True)
    assert await rig.client.code("SendMessage", send_request(new_message("absent"))) == (
        Code.TOPIC_NOT_FOUND, text,
    )  # fmt: skip
    assert rig.broker.topics.get("absent") is None


async def test_illegal_topic_names(rig: Rig) -> None:
    for name in ("", "a b", "x" * 128, "TBW102", "rmq_sys_REVIVE_LOG_c"):
        code, _ = await rig.client.code("QueryRoute", v2.QueryRouteRequest(topic=resource(name)))
        assert code is Code.ILLEGAL_TOPIC, name


async def test_assignment_is_one_per_broker_or_per_queue_of_an_ordered_group(rig: Rig) -> None:
    topic = await rig.topic("T")
    request = v2.QueryAssignmentRequest(topic=resource(topic), group=resource("G"))
    reply = await rig.client.ok("QueryAssignment", request)
    assert [each.message_queue.id for each in reply.assignments] == [-1]
    rig.broker.groups.update(
        SubscriptionGroupConfig(group_name="O", consume_message_orderly=True),
        now_ms=rig.broker.clock.now_ms(),
    )
    request.group.name = "O"
    reply = await rig.client.ok("QueryAssignment", request)
    assert [each.message_queue.id for each in reply.assignments] == [0, 1]


async def test_client_id_is_required(rig: Rig) -> None:
    del rig.client.metadata["x-mq-client-id"]
    code, text = await rig.client.code("QueryRoute", v2.QueryRouteRequest(topic=resource("T")))
    assert (code, text) == (Code.CLIENT_ID_REQUIRED, "client id cannot be empty")


# --- Settings and registration ---


async def test_producer_settings_are_completed(rig: Rig) -> None:
    topic = await rig.topic("T")
    async with rig.client.telemetry(producer_settings(topic)) as stream:
        settings = stream.settings
        assert settings.publishing.max_body_size == 4 << 20
        assert settings.publishing.validate_message_type
        policy = settings.backoff_policy
        assert (policy.max_attempts, policy.exponential_backoff.multiplier) == (3, 2.0)
        await until(lambda: rig.knows_producer(topic))


async def test_consumer_settings_come_from_the_group(rig: Rig) -> None:
    topic = await rig.topic("T")
    rig.broker.groups.update(
        SubscriptionGroupConfig(group_name="O", consume_message_orderly=True, retry_max_times=3),
        now_ms=rig.broker.clock.now_ms(),
    )
    async with rig.client.telemetry(consumer_settings("O", topic)) as stream:
        settings = stream.settings
        assert settings.subscription.fifo and settings.subscription.receive_batch_size == 32
        assert settings.subscription.long_polling_timeout.seconds == 20
        assert settings.backoff_policy.max_attempts == 4
        assert [each.seconds for each in settings.backoff_policy.customized_backoff.next][:3] == [1, 5, 10]
        await until(lambda: rig.broker.consumers.group("O") is not None)
        shown = await rig.remoting.ask(GetConsumerConnectionList("O"))
        assert [each.client_id for each in shown.connection_set] == [rig.client.client_id]
        assert shown.consume_type == "CONSUME_ACTIVELY"
        heartbeat = v2.HeartbeatRequest(group=resource("O"), client_type=ClientType.SIMPLE_CONSUMER)
        await rig.client.ok("Heartbeat", heartbeat)
        await rig.client.ok("NotifyClientTermination", v2.NotifyClientTerminationRequest(group=resource("O")))
        assert rig.broker.consumers.group("O") is None
        assert (await rig.client.code("Heartbeat", heartbeat))[0] is Code.UNRECOGNIZED_CLIENT_TYPE


async def test_the_broker_of_the_process_knows_the_addresses_of_clients(tmp_path: Path) -> None:
    async with running_rig(tmp_path, is_nearby=True) as rig:
        topic = await rig.topic("T")
        async with rig.client.telemetry(consumer_settings("G", topic)):
            await until(lambda: rig.broker.consumers.group("G") is not None)
            shown = await rig.remoting.ask(GetConsumerConnectionList("G"))
            (connection,) = rig.proxy._server.connections
            assert [each.client_addr for each in shown.connection_set] == [
                f"{connection.host}:{connection.port}"
            ]


async def test_client_without_heartbeats_expires(rig: Rig) -> None:
    topic = await rig.topic("T")
    async with rig.client.telemetry(consumer_settings("G", topic)):
        await until(lambda: rig.broker.consumers.group("G") is not None)
        now = asyncio.get_running_loop().time()
        rig.proxy.clients.expire(now + rig.proxy.settings.client_expiry_ms / 2000)
        assert rig.proxy.clients.get(rig.client.client_id) is not None
        rig.proxy.clients.expire(now + 2 * rig.proxy.settings.client_expiry_ms / 1000)
        await until(lambda: rig.broker.consumers.group("G") is None)
        assert rig.proxy.clients.get(rig.client.client_id) is None


async def test_brokers_that_missed_a_client_are_told_again(rig: Rig) -> None:
    """As a client that starts before its topic: it sends nothing more than its settings."""
    async with rig.client.telemetry(producer_settings("late")):
        client = rig.proxy.clients.get(rig.client.client_id)
        assert client is not None and client.registration is not None
        await asyncio.wait([client.registration], timeout=0.2)
        assert not client.registration.done()
        await rig.topic("late")
        await until(lambda: rig.knows_producer("late"))


async def test_bad_settings_end_the_stream(rig: Rig) -> None:
    with pytest.raises(GRPCError) as caught:
        async with rig.client.telemetry(v2.Settings(client_type=ClientType.PRODUCER)):
            pass
    assert caught.value.status is Status.INVALID_ARGUMENT
    assert "no publishing or subscription" in (caught.value.message or "")


# --- Sends ---


async def test_send_stores_what_remoting_clients_read(rig: Rig) -> None:
    topic = await rig.topic("T")
    message = new_message(topic, b"hello", tag="created", keys=["k1", "k2"], trace_context="trace")
    message.user_properties["colour"] = "red"
    reply = await rig.client.send(message)
    assert reply.status.code == Code.OK
    (entry,) = reply.entries
    assert entry.message_id == message.system_properties.message_id
    (stored,) = await rig.stored(topic)
    assert (stored.body, stored.tags, stored.keys) == (b"hello", "created", ["k1", "k2"])
    expected = {
        "colour": "red", "PGROUP": topic, "UNIQ_KEY": entry.message_id, "__BORNHOST": "test-host",
        "TRACE_CONTEXT": "trace", "RECONSUME_TIME": "0",
    }  # fmt: skip
    assert expected.items() <= stored.properties.items()


async def test_every_message_of_a_batch_has_an_entry(rig: Rig) -> None:
    topic = await rig.topic("T")
    reply = await rig.client.send(*(new_message(topic, b"%d" % n) for n in range(5)))
    assert [entry.status.code for entry in reply.entries] == [Code.OK] * 5
    assert {message.body for message in await rig.stored(topic)} == {b"0", b"1", b"2", b"3", b"4"}


async def test_messages_of_a_group_keep_their_order_in_one_queue(rig: Rig) -> None:
    topic = await rig.topic("F", "FIFO", queues=4)
    for number in range(6):
        message = new_message(topic, b"%d" % number, message_type=MessageType.FIFO, message_group="order-1")
        assert (await rig.client.send(message)).status.code == Code.OK
    parts = [await rig.remoting.pull_all(topic, queue_id) for queue_id in range(4)]
    (part,) = filter(None, parts)
    assert [message.body for message in part] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def _with_properties(count: int) -> Any:
    message = new_message("T")
    for number in range(count):
        message.user_properties[f"p{number}"] = "v"
    return message


def _with_property(name: str, value: str) -> Any:
    message = new_message("T")
    message.user_properties[name] = value
    return message


async def test_limits_of_a_message(rig: Rig) -> None:
    await rig.topic("T")
    later = round(time.time() * 1000) + 86_400_000
    cases = [
        ("one too many properties", _with_properties(129), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ("as many properties as allowed", _with_properties(128), Code.OK),
        ("reserved property", _with_property("KEYS", "v"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("control character", _with_property("p", "a\x01b"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("large properties", _with_property("p", "v" * (16 << 10)), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ("largest properties", _with_property("p", "v" * ((16 << 10) - 1)), Code.OK),
        ("blank tag", new_message("T", tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        ("tag with bar", new_message("T", tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        ("blank key", new_message("T", keys=["a", " "]), Code.ILLEGAL_MESSAGE_KEY),
        ("no id", new_message("T", message_id=" "), Code.ILLEGAL_MESSAGE_ID),
        ("empty body", new_message("T", b""), Code.MESSAGE_BODY_EMPTY),
        ("body too large", new_message("T", bytes((4 << 20) + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        ("blank group", new_message("T", message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
        ("long group", new_message("T", message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
        ("too far ahead", new_message("T", delivery_ms=later + 60_000), Code.ILLEGAL_DELIVERY_TIME),
        ("wrong kind", new_message("T", message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ]
    found = {name: await rig.client.code("SendMessage", send_request(message)) for name, message, _ in cases}
    assert {name: code for name, (code, _) in found.items()} == {name: code for name, _, code in cases}
    assert found["wrong kind"][1] == (
        "TopicMessageType validate failed, the expected type is NORMAL, but actual type is FIFO"
    )


async def test_messages_with_a_priority(rig: Rig) -> None:
    topic = await rig.topic("P", "PRIORITY", queues=4)
    await rig.first_position(topic, "G", queues=4)
    for priority in (1, 3, 0, 9):
        message = new_message(topic, b"%d" % priority, message_type=MessageType.PRIORITY, priority=priority)
        assert (await rig.client.send(message)).status.code == Code.OK
    received = []
    for _ in range(4):
        _, [found] = await rig.client.receive(topic, "G", batch=1)
        system = found.system_properties
        received.append((found.body, system.priority, system.message_type, system.queue_id))
    assert received == [
        (b"3", 3, MessageType.PRIORITY, 3),
        (b"9", 9, MessageType.PRIORITY, 3),
        (b"1", 1, MessageType.PRIORITY, 1),
        (b"0", 0, MessageType.PRIORITY, 0),
    ]
    refused = new_message(topic, priority=-1)
    assert (await rig.client.code("SendMessage", send_request(refused)))[0] is Code.BAD_REQUEST
    plain = await rig.client.code("SendMessage", send_request(new_message(topic)))
    assert plain[0] is Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_nothing_and_two_topics_are_corrupt(rig: Rig) -> None:
    await rig.topic("T")
    await rig.topic("U")
    assert (await rig.client.code("SendMessage", send_request()))[0] is Code.MESSAGE_CORRUPTED
    both = send_request(new_message("T"), new_message("U"))
    assert (await rig.client.code("SendMessage", both))[0] is Code.MESSAGE_CORRUPTED


async def test_delayed_message_can_be_recalled(rig: Rig) -> None:
    topic = await rig.topic("D", "DELAY")
    later = round(time.time() * 1000) + 3_600_000
    message = new_message(topic, message_type=MessageType.DELAY, delivery_ms=later)
    (entry,) = (await rig.client.send(message)).entries
    assert entry.recall_handle
    recall = v2.RecallMessageRequest(topic=resource(topic), recall_handle=entry.recall_handle)
    reply = await rig.client.ok("RecallMessage", recall)
    assert reply.message_id == entry.message_id
    recall.recall_handle = "no handle"
    assert (await rig.client.code("RecallMessage", recall))[0] is Code.INTERNAL_SERVER_ERROR


# --- Transactions ---


async def _half(rig: Rig, topic: str) -> Any:
    message = new_message(topic, b"half", message_type=MessageType.TRANSACTION)
    (entry,) = (await rig.client.send(message)).entries
    assert entry.transaction_id
    return entry


def _end(topic: str, entry: Any, resolution: TransactionResolution) -> Any:
    return v2.EndTransactionRequest(
        topic=resource(topic),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=resolution,
        source=TransactionSource.SOURCE_CLIENT,
    )


async def test_transactions_commit_and_roll_back(rig: Rig) -> None:
    topic = await rig.topic("X", "TRANSACTION")
    rolled_back, committed = await _half(rig, topic), await _half(rig, topic)
    assert await rig.stored(topic) == []
    await rig.client.ok("EndTransaction", _end(topic, rolled_back, TransactionResolution.ROLLBACK))
    await rig.client.ok("EndTransaction", _end(topic, committed, TransactionResolution.COMMIT))
    await until(lambda: rig.broker.store.max_offset(topic, 0) + rig.broker.store.max_offset(topic, 1) > 0)
    (stored,) = await rig.stored(topic)
    assert stored.unique_key == committed.message_id
    for bad in ("", "no id"):
        committed.transaction_id = bad
        code, _ = await rig.client.code(
            "EndTransaction", _end(topic, committed, TransactionResolution.COMMIT)
        )
        assert code is Code.INVALID_TRANSACTION_ID


async def test_broker_checks_an_open_transaction_on_the_stream(tmp_path: Path) -> None:
    quick = TransactionSettings(timeout_ms=0, check_interval_ms=50)
    async with running_rig(tmp_path, transactions=quick) as rig:
        topic = await rig.topic("X", "TRANSACTION")
        async with rig.client.telemetry(producer_settings(topic)) as stream:
            await until(lambda: rig.knows_producer(topic))
            entry = await _half(rig, topic)
            command = (await stream.receive()).recover_orphaned_transaction_command
            assert (command.message.topic.name, command.message.body) == (topic, b"half")
            assert command.message.system_properties.message_id == entry.message_id
            entry.transaction_id = command.transaction_id
            request = _end(topic, entry, TransactionResolution.COMMIT)
            request.source = TransactionSource.SOURCE_SERVER_CHECK
            await rig.client.ok("EndTransaction", request)
            await until(
                lambda: rig.broker.store.max_offset(topic, 0) + rig.broker.store.max_offset(topic, 1) > 0
            )


# --- The port ---


async def test_unknown_methods_are_unimplemented(rig: Rig) -> None:
    method = UnaryUnaryMethod(
        rig.client.channel, f"/{SERVICE}/PullMessage", v2.HeartbeatRequest, v2.HeartbeatResponse
    )
    with pytest.raises(GRPCError) as caught:
        await method(v2.HeartbeatRequest(), metadata=rig.client.metadata)
    assert caught.value.status is Status.UNIMPLEMENTED


async def test_garbage_closes_the_connection_and_nothing_else(rig: Rig) -> None:
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(range(1, 200)),
        b"PROXY TCP4 ",
        b"\x16\x03garbage",
    ):
        reader, writer = await asyncio.open_connection(*split_address(rig.proxy.address))
        writer.write(data + bytes(64))
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(30):
                await reader.read()
        writer.close()
    topic = await rig.topic("T")
    await rig.client.ok("QueryRoute", v2.QueryRouteRequest(topic=resource(topic)))


# --- Receiving ---


async def _bodies(client: GrpcTestClient, topic: str, group: str, count: int) -> list[bytes]:
    """Receive and acknowledge this many messages."""
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            _, messages = await client.receive(topic, group)
            found += messages
            if messages:
                assert (await client.ack(topic, group, *messages)).status.code == Code.OK
    return sorted(message.body for message in found)


async def test_receive_and_acknowledge(rig: Rig) -> None:
    topic = await rig.topic("T")
    await rig.first_position(topic, "G")
    message = new_message(topic, b"hello", tag="created", keys=["k1", "k2"])
    message.user_properties["colour"] = "red"
    await rig.client.send(message)
    status, (received,) = await rig.client.receive(topic, "G")
    assert status.code == Code.OK
    system = received.system_properties
    assert (received.topic.name, received.body, dict(received.user_properties)) == (
        topic, b"hello", {"colour": "red"},
    )  # fmt: skip
    assert (system.tag, list(system.keys), system.message_type) == (
        "created",
        ["k1", "k2"],
        MessageType.NORMAL,
    )
    assert system.message_id == message.system_properties.message_id
    assert system.body_digest.checksum == hashlib.md5(b"hello", usedforsecurity=False).hexdigest().upper()
    assert (system.delivery_attempt, system.born_host) == (1, "test-host")
    reply = await rig.client.ack(topic, "G", received)
    assert [entry.status.code for entry in reply.entries] == [Code.OK]
    bad = v2.AckMessageRequest(group=resource("G"), topic=resource(topic))
    bad.entries.add(message_id="x", receipt_handle="no handle")
    bad.entries.add(message_id="y", receipt_handle=f"0 1000 1000 0 0 broker-a 0 0 {1 << 20}")
    reply = await rig.client.call("AckMessage", bad)
    assert [entry.status.code for entry in reply.entries] == [Code.INVALID_RECEIPT_HANDLE] * 2


async def test_receive_waits_for_a_message(rig: Rig) -> None:
    topic = await rig.topic("T")
    await rig.first_position(topic, "G")
    receiving = asyncio.create_task(rig.client.receive(topic, "G", poll_ms=20_000))
    await until(lambda: rig.broker.held_pops.count > 0)
    await rig.client.send(new_message(topic, b"awaited"))
    status, (received,) = await receiving
    assert (status.code, received.body) == (Code.OK, b"awaited")


async def test_only_wanted_tags_are_received(rig: Rig) -> None:
    topic = await rig.topic("T")
    await rig.first_position(topic, "G")
    for tag in ("a", "b", "Aa", "BB"):  # the last two have the same hash in Java
        await rig.client.send(new_message(topic, tag.encode(), tag=tag))
    found: set[bytes] = set()
    async with asyncio.timeout(60):
        while len(found) < 2:
            _, messages = await rig.client.receive(topic, "G", expression="b || Aa")
            found |= {message.body for message in messages}
    assert found == {b"b", b"Aa"}


async def test_changed_invisible_time_brings_the_message_again(rig: Rig) -> None:
    topic = await rig.topic("T")
    await rig.first_position(topic, "G")
    await rig.client.send(new_message(topic, b"first"), new_message(topic, b"second"))
    _, messages = await rig.client.receive(topic, "G", invisible_s=60)
    while len(messages) < 2:
        messages += (await rig.client.receive(topic, "G", invisible_s=60))[1]
    handles = []
    for message in messages:  # also for one that is not the first of its pop
        system = message.system_properties
        request = v2.ChangeInvisibleDurationRequest(
            group=resource("G"),
            topic=resource(topic),
            receipt_handle=system.receipt_handle,
            message_id=system.message_id,
        )
        request.invisible_duration.FromSeconds(60)
        handles.append((await rig.client.ok("ChangeInvisibleDuration", request)).receipt_handle)
    request.receipt_handle = handles[0]
    request.invisible_duration.FromMilliseconds(100)
    await rig.client.ok("ChangeInvisibleDuration", request)
    messages[1].system_properties.receipt_handle = handles[1]
    assert (await rig.client.ack(topic, "G", messages[1])).status.code == Code.OK
    async with asyncio.timeout(60):
        while not (again := (await rig.client.receive(topic, "G"))[1]):
            pass
    assert [message.body for message in again] == [messages[0].body]
    assert again[0].system_properties.delivery_attempt == 2


async def test_forwarded_message_is_a_dead_letter(rig: Rig) -> None:
    topic = await rig.topic("T")
    await rig.first_position(topic, "G")
    await rig.client.send(new_message(topic, b"poison"))
    _, (received,) = await rig.client.receive(topic, "G")
    system = received.system_properties
    request = v2.ForwardMessageToDeadLetterQueueRequest(
        group=resource("G"), topic=resource(topic), receipt_handle=system.receipt_handle,
        message_id=system.message_id,
    )  # fmt: skip
    await rig.client.ok("ForwardMessageToDeadLetterQueue", request)
    (letter,) = await rig.remoting.pull_all("%DLQ%G")
    assert (letter.body, letter.unique_key) == (b"poison", system.message_id)


async def test_renewed_message_stays_invisible_until_its_client_leaves(tmp_path: Path) -> None:
    quick = {"invisible_ms": 2000, "renew_ahead_ms": 1500, "released_ms": 10}
    async with running_rig(tmp_path, quick) as rig:
        topic = await rig.topic("T")
        await rig.first_position(topic, "G")
        push = consumer_settings("G", topic, client_type=ClientType.PUSH_CONSUMER)
        async with rig.client.telemetry(push):
            sent = await rig.client.send(new_message(topic, b"slow"))
            assert sent.status.code == Code.OK, sent
            status, messages = await rig.client.receive(topic, "G", auto_renew=True)
            assert len(messages) == 1, status
            (received,) = messages
            (kept,) = rig.proxy.renewals._kept[rig.client.client_id].values()
            await until(lambda: kept.renewals > 0)
            assert rig.proxy.renewals.count == 1
            await rig.client.ok("NotifyClientTermination", v2.NotifyClientTerminationRequest())
            assert rig.proxy.renewals.count == 0
            async with asyncio.timeout(60):
                while not (again := (await rig.client.receive(topic, "G"))[1]):
                    pass
            assert again[0].system_properties.message_id == received.system_properties.message_id


async def test_messages_of_a_client_that_leaves_before_it_has_them_come_again_soon(rig: Rig) -> None:
    topic = await rig.topic("T", queues=1)
    await rig.first_position(topic, "G", queues=1)
    bodies = [bytes([number]) * 60_000 for number in range(4)]  # more than the window of a new stream
    for body in bodies:
        await rig.client.send(new_message(topic, body))
    request = v2.ReceiveMessageRequest(group=resource("G"), batch_size=32)
    request.message_queue.topic.name = topic
    request.invisible_duration.FromSeconds(600)
    data = request.SerializeToString()
    headers = {
        ":method": "POST", ":scheme": "http", ":path": f"/{SERVICE}/ReceiveMessage", ":authority": "proxy",
        "content-type": "application/grpc", **rig.client.metadata,
    }  # fmt: skip
    _, writer = await asyncio.open_connection(*split_address(rig.proxy.address))
    writer.write(PREFACE + frame(SETTINGS, 0, 0))
    writer.write(frame(HEADERS, END_HEADERS, 1, encode_headers(list(headers.items()))))
    writer.write(frame(DATA, END_STREAM, 1, b"\0" + len(data).to_bytes(4) + data))
    await until(lambda: rig.broker.pops.batches.in_flight[topic, "G"] == len(bodies))
    writer.close()
    assert await _bodies(rig.client, topic, "G", len(bodies)) == bodies


async def test_receive_refuses_what_it_cannot_do(rig: Rig) -> None:
    topic = await rig.topic("T")
    cases: list[tuple[dict[str, Any], Code]] = [
        ({"invisible_s": 9}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_s": 12 * 3600 + 1}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"filter_type": FilterType.SQL, "expression": "a >"}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"timeout_s": 4.0}, Code.ILLEGAL_POLLING_TIME),
    ]
    for changes, code in cases:
        status, messages = await rig.client.receive(topic, "G", **changes)
        assert (status.code, messages) == (code, []), changes
    status, _ = await rig.client.receive("absent", "G")
    assert status.code == Code.TOPIC_NOT_FOUND


# --- Lite topics ---


async def lite_names(rig: Rig, **attributes: str) -> tuple[str, str]:
    """Make a parent topic and a group for its lite topics."""
    topic = await rig.topic("parent", "LITE")
    named = {f"+{name.replace('_', '.')}": value for name, value in attributes.items()}
    config = SubscriptionGroupConfig(group_name="LG", attributes={"+lite.bind.topic": topic, **named})
    rig.broker.groups.update(config, now_ms=rig.broker.clock.now_ms())
    return topic, config.group_name


def lite_request(topic: str, group: str, *lite_topics: str, **members: Any) -> Any:
    return v2.SyncLiteSubscriptionRequest(
        topic=resource(topic), group=resource(group), lite_topic_set=lite_topics, **members
    )


async def received_lite(client: GrpcTestClient, topic: str, group: str, count: int) -> list[Any]:
    """Receive so many messages, renewed as for a push consumer."""
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += (await client.receive(topic, group, auto_renew=True))[1]
    return found


async def test_lite_topics_are_subscribed_received_and_acknowledged(rig: Rig) -> None:
    topic, group = await lite_names(rig, lite_sub_client_quota="5")
    settings = consumer_settings(group, topic, client_type=ClientType.LITE_PUSH_CONSUMER)
    async with rig.client.telemetry(settings) as stream:
        subscription = stream.settings.subscription
        assert (subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (5, 64)
        await rig.client.ok("SyncLiteSubscription", lite_request(topic, group, "one"))
        heartbeat = v2.HeartbeatRequest(group=resource(group), client_type=ClientType.LITE_PUSH_CONSUMER)
        await rig.client.ok("Heartbeat", heartbeat)
        for lite_topic, body in (("one", b"1a"), ("two", b"2a"), ("one", b"1b")):
            message = new_message(topic, body, message_type=MessageType.LITE, lite_topic=lite_topic)
            assert (await rig.client.send(message)).status.code == Code.OK
        first, second = await received_lite(rig.client, topic, group, 2)
        assert [each.body for each in (first, second)] == [b"1a", b"1b"]
        system = second.system_properties
        assert (system.lite_topic, system.message_type, system.queue_offset) == ("one", MessageType.LITE, 1)
        assert dict(second.user_properties) == {}
        # Java's client names the lite topic when it acknowledges, and not when it gives back.
        change = v2.ChangeInvisibleDurationRequest(
            group=resource(group), topic=resource(topic), receipt_handle=system.receipt_handle
        )
        change.invisible_duration.FromMilliseconds(100)
        await rig.client.ok("ChangeInvisibleDuration", change)
        done = v2.AckMessageRequest(group=resource(group), topic=resource(topic))
        done.entries.add(receipt_handle=first.system_properties.receipt_handle, lite_topic="one")
        await rig.client.ok("AckMessage", done)
        (again,) = await received_lite(rig.client, topic, group, 1)
        assert (again.body, again.system_properties.delivery_attempt) == (b"1b", 2)
        name = light_queue_of(topic, "one")
        assert rig.broker.offsets.query(name, group, 0) == 1
        (connection,) = (await rig.remoting.ask(GetConsumerConnectionList(group))).connection_set
        assert connection.client_id == rig.client.client_id
        await rig.client.ok("NotifyClientTermination", v2.NotifyClientTerminationRequest())
        await until(lambda: not rig.broker.lite_pops.subscriptions.clients)


async def test_a_lite_topic_that_another_client_takes_is_unsubscribed(rig: Rig) -> None:
    topic, group = await lite_names(rig, lite_sub_model="Exclusive")
    settings = consumer_settings(group, topic, client_type=ClientType.LITE_PUSH_CONSUMER)
    async with (
        rig.client.telemetry(settings) as stream,
        GrpcTestClient(rig.proxy.address) as other,
        other.telemetry(settings),
    ):
        await rig.client.ok("SyncLiteSubscription", lite_request(topic, group, "mine"))
        await other.ok("SyncLiteSubscription", lite_request(topic, group, "mine"))
        command = await stream.receive()
        assert command.notify_unsubscribe_lite_command.lite_topic == "mine"


async def test_lite_topics_that_cannot_be_are_refused(rig: Rig) -> None:
    topic, group = await lite_names(rig)
    sync = "SyncLiteSubscription"
    unknown, _ = await rig.client.code(sync, lite_request(topic, group, "one"))
    assert unknown is Code.UNRECOGNIZED_CLIENT_TYPE
    settings = consumer_settings(group, topic, client_type=ClientType.LITE_PUSH_CONSUMER)
    async with rig.client.telemetry(settings):
        for lite_topic in ("a b", "a$b", "x" * 65, " "):
            code, _ = await rig.client.code(sync, lite_request(topic, group, lite_topic))
            assert code is Code.ILLEGAL_LITE_TOPIC, lite_topic
            message = new_message(topic, message_type=MessageType.LITE, lite_topic=lite_topic)
            assert (await rig.client.send(message)).status.code == Code.ILLEGAL_LITE_TOPIC
        normal = await rig.topic("T")
        for wrong in (new_message(topic), new_message(normal, lite_topic="one")):
            code = (await rig.client.send(wrong)).status.code
            assert code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


# --- As Apache's proxy ---


async def test_settings_are_completed_as_by_apaches_proxy(rig: Rig, golden: Path) -> None:
    compared = 0
    for name in ("java-normal", "java-transaction", "java-lite-exclusive", "python-normal"):
        lines = gzip.decompress((golden / "grpc" / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()
        recorded = [json.loads(line) for line in lines]
        asked: dict[int, Any] = {}
        for line in recorded:
            if line["method"] != "Telemetry" or "settings" not in line["message"]:
                continue
            command = v2.TelemetryCommand.FromString(bytes.fromhex(line["hex"]))
            if line["side"] == "client":
                asked[line["call"]] = command.settings
            elif (settings := asked.pop(line["call"], None)) is not None:
                async with GrpcTestClient(rig.proxy.address) as client, client.telemetry(settings) as stream:
                    for each in (stream.settings, command.settings):
                        if each.HasField("subscription"):  # Apache leaves that of a new group as it is
                            each.subscription.ClearField("long_polling_timeout")
                    assert str(stream.settings).splitlines() == str(command.settings).splitlines()
                compared += 1
    assert compared >= 6
