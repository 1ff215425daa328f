"""A user tests a program against a real broker: the fixtures are there once Skylark is installed."""

import subprocess
import sys
from pathlib import Path

SHOP = """
from skylark import Message, Producer


def announce(producer: Producer, topic: str, order: int) -> None:
    producer.send(Message.json(topic, {"id": order}, tags="created"))
"""
TESTS = """
from datetime import timedelta

import pytest
import skylark
from shop import announce


def test_an_order_is_announced(skylark_namesrv, skylark_topic, skylark_group):
    with skylark.Producer("shop", namesrv=skylark_namesrv) as producer:
        announce(producer, skylark_topic, 42)
    with skylark.PullConsumer(skylark_group, namesrv=skylark_namesrv) as consumer:
        [queue, *_] = [each for each in consumer.queues(skylark_topic) if consumer_has(consumer, each)]
        [message] = consumer.pull(queue, "*", 0, 32).messages
    assert message.json() == {"id": 42}
    assert message.tags == "created"


def consumer_has(consumer, queue):
    return bool(consumer.pull(queue, "*", 0, 1).messages)


def test_no_broker_is_an_error(skylark_manual_servers):
    skylark_manual_servers.create_topic("orders")
    with skylark.Producer("shop", namesrv=skylark_manual_servers.namesrv) as producer:
        announce(producer, "orders", 1)
        skylark_manual_servers.stop_broker()
        with pytest.raises(skylark.SendFailed, match="cannot connect to broker"):
            announce(producer, "orders", 2)
        skylark_manual_servers.start_broker()
        announce(producer, "orders", 3)
    assert skylark_manual_servers.message_count("orders") == 2
"""


def test_fixtures_and_errors_need_no_set_up(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
