"""The blocking push consumer: the same consumer, used by threads that have no loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from skylark import Admin, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage
from skylark.errors import AlreadyStarted, ClientClosed, SettingsError
from skylark.testing import EmbeddedServers
from tests.support.consumer import fast
from tests.support.names import fresh_name

Messages = Sequence[ReceivedMessage]


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers(store={"delay_levels": " ".join(["0s"] * 18)}) as running:
        yield running


@pytest.fixture
def topic(servers: EmbeddedServers, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[:80]
    return servers.create_topic(fresh_name(name))


def wait_for(condition: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


def send(servers: EmbeddedServers, topic: str, *bodies: bytes, **members: Any) -> None:
    with Producer("P", namesrv=servers.namesrv) as producer:
        for body in bodies:
            producer.send(Message(topic, body, **members))


@pytest.fixture
def group() -> str:
    return fresh_name("blocking")


def consumer_of(servers: EmbeddedServers, group: str, **settings: Any) -> PushConsumer:
    return PushConsumer(group, namesrv=servers.namesrv, settings=fast(**settings))


def test_the_quick_start(servers: EmbeddedServers, topic: str, group: str) -> None:
    consumer = consumer_of(servers, group)
    seen: list[tuple[bytes, int, str]] = []

    @consumer.subscribe(topic, "created || paid")
    def handle(messages: Messages) -> ConsumeResult | None:
        [message] = messages
        seen.append((message.body, message.reconsume_times, threading.current_thread().name))
        return ConsumeResult.LATER if message.body == b"one" and not message.reconsume_times else None

    with consumer:
        send(servers, topic, b"one", b"two", tags="paid")
        send(servers, topic, b"not for us", tags="lost")
        wait_for(lambda: len(seen) == 3)
    assert sorted(body for body, _, _ in seen) == [b"one", b"one", b"two"]
    assert all(name.startswith(f"consume-{group}") for _, _, name in seen)
    with pytest.raises(AlreadyStarted):
        consumer.start()
    with pytest.raises(ClientClosed):
        consumer.queues()


def test_everything_else_from_another_thread(servers: EmbeddedServers, topic: str, group: str) -> None:
    servers.create_topic(f"{topic}2")
    consumer = consumer_of(servers, group)
    got: list[ReceivedMessage] = []
    changes: list[str] = []
    consumer.on_queues_changed(lambda name, every, mine: changes.append(name))
    calls: list[str] = []

    @consumer.use
    def counted(handle: Any) -> Any:
        def around(messages: Messages, context: Any) -> Any:
            calls.append(context.group)
            return handle(messages, context)

        return around

    @consumer.listen
    def handle(messages: Messages) -> None:
        got.extend(messages)

    consumer.subscribe(topic)
    with consumer:
        wait_for(lambda: topic in changes)
        assert consumer.client_id in servers_clients(servers, group)
        send(servers, topic, b"one")
        wait_for(lambda: len(got) == 1)
        consumer.suspend()
        time.sleep(0.05)
        consumer.resume()
        consumer.subscribe(f"{topic}2")
        wait_for(lambda: {queue.topic for queue in consumer.queues()} >= {topic, f"{topic}2"})
        send(servers, f"{topic}2", b"two")
        wait_for(lambda: len(got) == 2)
        assert consumer.running_info().properties["consumerGroup"] == group
        consumer.reset_to_time(0)
        wait_for(lambda: len(got) == 4)
        [queue] = {message.queue for message in got if message.body == b"one"}
        consumer.reset_offsets(topic, {queue: 0})
        wait_for(lambda: len(got) == 5)
        consumer.unsubscribe(topic)
        wait_for(lambda: topic not in {queue.topic for queue in consumer.queues()})
        with pytest.raises(SettingsError):
            consumer.subscribe("not a topic!")
    assert set(calls) == {group}
    assert len(calls) == 5


def servers_clients(servers: EmbeddedServers, group: str) -> list[str]:
    with Admin(namesrv=servers.namesrv) as admin:
        return [client.client_id for client in admin.clients.consumers(group).clients]


def test_run_ends_with_a_stop_from_elsewhere(servers: EmbeddedServers, topic: str, group: str) -> None:
    consumer = consumer_of(servers, group)
    consumer.subscribe(topic, "*", lambda messages: None)

    def stop_when_it_runs() -> None:
        wait_for(lambda: is_running(consumer))
        consumer.stop()

    stopping = threading.Thread(target=stop_when_it_runs)
    stopping.start()
    consumer.run()
    stopping.join()
    with pytest.raises(ClientClosed):
        consumer.suspend()


def is_running(consumer: PushConsumer) -> bool:
    try:
        return bool(consumer.queues())
    except ClientClosed:
        return False


def test_coroutines_are_welcome(servers: EmbeddedServers, topic: str, group: str) -> None:
    consumer = consumer_of(servers, group)
    got: list[bytes] = []

    @consumer.subscribe(topic)
    async def handle(messages: Messages) -> None:
        await asyncio.sleep(0.001)
        got.extend(message.body for message in messages)

    with consumer:
        send(servers, topic, b"x")
        wait_for(lambda: got == [b"x"])


def test_several_consumers_share_one_loop(servers: EmbeddedServers, topic: str, group: str) -> None:
    got: list[tuple[int, bytes]] = []
    with ExitStack() as stack:
        for number in range(5):
            consumer = consumer_of(servers, f"{group}-{number}")
            consumer.subscribe(
                topic, "*", lambda messages, number=number: got.extend((number, m.body) for m in messages)
            )
            stack.enter_context(consumer)
        loops = [thread for thread in threading.enumerate() if thread.name == "skylark-client"]
        assert len(loops) == 1
        send(servers, topic, b"x")
        wait_for(lambda: sorted(got) == [(number, b"x") for number in range(5)])


def test_a_listener_that_hangs_does_not_keep_a_program(
    servers: EmbeddedServers, topic: str, group: str
) -> None:
    send(servers, topic, b"x")
    program = f"""
import threading
from skylark import PushConsumer
from tests.support.consumer import fast
from tests.support.names import fresh_name
consumer = PushConsumer({group!r}, namesrv={servers.namesrv!r}, settings=fast(stop_wait_ms=100))
begun = threading.Event()
@consumer.subscribe({topic!r})
def handle(messages):
    begun.set()
    threading.Event().wait()
with consumer:
    begun.wait(60)
print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False, cwd="."
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ended"), done.stderr
