"""An operator who knows `mqadmin` types its commands, and resets a group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skylark import Admin, Message, Producer
from skylark.testing import EmbeddedServers
from tests.support.terminal import Terminal

TOPIC = "orders"


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with EmbeddedServers() as servers:
        with Admin(namesrv=servers.namesrv) as admin, Producer("shop", namesrv=servers.namesrv) as producer:
            admin.topics.create(TOPIC, queues=2)
            for queue in producer.queues(TOPIC):
                producer.send_batch([Message(TOPIC, b"order")] * 3, queue=queue)
            admin.groups.create("billing")
            admin.offsets.reset("billing", TOPIC, 0)
        yield servers.namesrv


def committed(namesrv: str) -> list[int | None]:
    with Admin(namesrv=namesrv) as admin:
        return list(admin.offsets.committed("billing", TOPIC).values())


@pytest.mark.parametrize("columns", [80, 120])
def test_an_old_command_runs_the_new_one(namesrv: str, columns: int) -> None:
    with Terminal(["topicRoute", "-t", TOPIC, "-n", namesrv], {}, columns=columns) as terminal:
        assert terminal.end() == 0, terminal.text
    first, *rest = terminal.text.splitlines()
    assert first == f"skylark: mqadmin's topicRoute is `skylark topic route {TOPIC} --namesrv {namesrv}`"
    assert any(line.startswith("broker-a") for line in rest)


def test_an_option_without_an_equivalent_changes_nothing(namesrv: str) -> None:
    words = ["updateTopic", "-t", "payments", "-c", "DefaultCluster", "-u", "true", "-n", namesrv]
    with Terminal(words, {}, columns=80) as terminal:
        assert terminal.end() == 2
    assert "`skylark topic create TOPIC" in terminal.text
    assert "nothing was done: no equivalent of -u" in terminal.text
    with Admin(namesrv=namesrv) as admin:
        assert "payments" not in admin.topics.names()


@pytest.mark.parametrize("columns", [80, 120])
def test_a_reset_shows_what_it_would_do_and_asks(namesrv: str, columns: int) -> None:
    with Admin(namesrv=namesrv) as admin:
        admin.offsets.reset("billing", TOPIC, 0)
    words = ["resetOffsetByTime", "-g", "billing", "-t", TOPIC, "-s", "now", "-n", namesrv]
    with Terminal([*words, "--json"], {}, columns=columns) as terminal:
        terminal.until("Reset group billing to now? [y/N]:")
        assert [line.split() for line in terminal.text.splitlines() if line.startswith("broker-a")] == [
            ["broker-a", "0", "0", "3", "3"],
            ["broker-a", "1", "0", "3", "3"],
        ]
        assert committed(namesrv) == [0, 0]
        terminal.write("y\n")
        assert terminal.end() == 0
    assert committed(namesrv) == [3, 3]
    words = ["offset", "reset", "billing", TOPIC, "--to", "begin", "--dry-run"]
    with Terminal(words, {"NAMESRV_ADDR": namesrv}, columns=columns) as terminal:
        assert terminal.end() == 0
    assert "again    6" in terminal.text
    assert terminal.text.rstrip().endswith("nothing was changed")
    assert committed(namesrv) == [3, 3]
