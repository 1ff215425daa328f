"""What users test with: servers in their own process, quick to start, gone without a trace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import skylark
import skylark.testing
from skylark import ClientSettings, ConsumeFrom, Message, Producer, PullConsumer, PullConsumerSettings
from skylark.errors import ClientClosed, RemotingError, SettingsError
from skylark.remoting.address import split_address
from skylark.testing import EmbeddedServers, ManualClock
from skylark.testing.embedded_servers import BROKER

FROM_FIRST = PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
CLIENT = ClientSettings(client_ip="127.0.0.1")


def read(namesrv: str, topic: str, count: int) -> list[bytes]:
    with PullConsumer("reader", namesrv=namesrv, settings=FROM_FIRST, client=CLIENT) as consumer:
        consumer.subscribe(topic)
        bodies: list[bytes] = []
        while len(bodies) < count:
            bodies += [message.body for message in consumer.poll(20_000)]
        return bodies


def is_open(address: str) -> bool:
    try:
        socket.create_connection(split_address(address), timeout=5).close()
    except ConnectionError:
        return False
    return True


def test_a_message_goes_round_in_an_embedded_broker() -> None:
    with skylark.testing.broker() as namesrv:
        with Producer("writer", namesrv=namesrv, client=CLIENT) as producer:
            producer.send(Message("orders", b"hello"))
        assert read(namesrv, "orders", 1) == [b"hello"]
    assert not is_open(namesrv)


def test_servers_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    threads = set(threading.enumerate())
    with EmbeddedServers() as servers:
        servers.create_topic("orders")
        assert list(tmp_path.iterdir())
        broker = servers.broker_address
    assert list(tmp_path.iterdir()) == []
    assert not is_open(broker)
    servers.stop()  # twice is once
    assert {thread for thread in threading.enumerate() if thread.name == "skylark-test-servers"} <= threads
    with pytest.raises(ClientClosed):
        servers.create_topic("orders")


def test_two_of_them_do_not_meet() -> None:
    with EmbeddedServers() as one, EmbeddedServers() as other:
        one.create_topic("orders")
        with Producer("writer", namesrv=one.namesrv, client=CLIENT) as producer:
            producer.send(Message("orders", b"hello"))
        assert one.message_count("orders") == 1
        assert other.message_count("orders") == 0


def test_a_broker_goes_and_comes_back_with_its_messages() -> None:
    with EmbeddedServers() as servers:
        servers.create_topic("orders", queues=1)
        with Producer("writer", namesrv=servers.namesrv, client=CLIENT) as producer:
            producer.send(Message("orders", b"before"))
            address = servers.broker_address
            servers.stop_broker()
            with pytest.raises(ClientClosed):
                _ = servers.broker_address
            assert not is_open(address)
            servers.start_broker()
            assert servers.broker_address == address
        assert read(servers.namesrv, "orders", 1) == [b"before"]


def test_delays_pass_when_the_test_says_so() -> None:
    clock = ManualClock()
    with EmbeddedServers(clock=clock) as servers:
        servers.create_topic("orders", queues=1)
        with Producer("writer", namesrv=servers.namesrv, client=CLIENT) as producer:
            producer.send(Message("orders", b"in two hours", delay_level=18))
        assert servers.message_count("orders") == 0
        clock.advance(7_200_000)
        assert read(servers.namesrv, "orders", 1) == [b"in two hours"]


def test_settings_are_those_of_a_broker() -> None:
    with EmbeddedServers(
        settings={"auto_create_topics": False}, store={"message_bytes_max": 8192}
    ) as servers:
        with skylark.Admin(namesrv=servers.namesrv, client=CLIENT) as admin:
            config = admin.brokers.config("broker-a")
        assert (config["autoCreateTopicEnable"], config["maxMessageSize"]) == ("false", "8192")
    with pytest.raises(SettingsError):
        EmbeddedServers(settings={"port": -1})


def test_a_start_that_fails_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            EmbeddedServers(settings={**BROKER, "port": port}).start()
    assert list(tmp_path.iterdir()) == []


PLUGIN_TEST = """
import skylark
from skylark import Message, Producer, PullConsumer


def test_fixtures(skylark_namesrv, skylark_topic, skylark_group, skylark_servers):
    with Producer(skylark_group, namesrv=skylark_namesrv) as producer:
        producer.send(Message(skylark_topic, b"hello"))
    assert skylark_servers.message_count(skylark_topic) == 1


def test_names_are_of_one_test(skylark_topic, skylark_group, skylark_servers):
    assert skylark_servers.message_count(skylark_topic) == 0
    assert "test_names_are_of_one_test" in skylark_topic
    assert skylark_topic != skylark_group


def test_time(skylark_manual_servers):
    servers = skylark_manual_servers
    servers.create_topic("orders")
    with Producer("shop", namesrv=servers.namesrv) as producer:
        producer.send(Message("orders", b"later", delay_level=3))
    servers.clock.advance(10_000)
"""


def test_the_pytest_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(PLUGIN_TEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "skylark.testing.plugin",
        "-W",
        "error",
        str(tmp_path),
    ]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env, check=False
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_is_registered_and_costs_others_nothing() -> None:
    code = """
import importlib.metadata, sys
[entry] = [e for e in importlib.metadata.entry_points(group="pytest11") if e.name == "skylark"]
entry.load()
print(sorted(name for name in sys.modules if name.startswith("skylark")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (
        done.stdout.strip() == "['skylark', 'skylark._version', 'skylark.testing', 'skylark.testing.plugin']"
    )


def test_a_client_of_a_broker_that_is_away_hears_so() -> None:
    with EmbeddedServers() as servers:
        servers.create_topic("orders")
        servers.stop_broker()
        with (
            skylark.Admin(namesrv=servers.namesrv, client=CLIENT, timeout_ms=500) as admin,
            pytest.raises((RemotingError, skylark.errors.ClientError)),
        ):
            admin.topics.stats("orders")


def test_what_the_package_offers() -> None:
    assert set(skylark.testing.__all__) <= set(dir(skylark.testing)) | {
        "EmbeddedServers",
        "ManualClock",
        "broker",
    }
    with pytest.raises(AttributeError):
        _ = skylark.testing.unheard_of  # type: ignore[attr-defined]
