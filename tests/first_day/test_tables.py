"""An operator looks for a message, at 80 and at 120 columns, and copies its id."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from skylark import Admin, Message, Producer
from skylark.testing import EmbeddedServers
from tests.support.terminal import Terminal

TOPIC = "payments_of_the_european_branch"
BODY = json.dumps({"customer": "ACME GmbH & Co", "amount": 12.5, "lines": list(range(30))})


@pytest.fixture(scope="module")
def sent() -> Iterator[tuple[str, str]]:
    """The name server, and the id of a message."""
    with EmbeddedServers() as servers:
        with Admin(namesrv=servers.namesrv) as admin, Producer("shop", namesrv=servers.namesrv) as producer:
            admin.topics.create(TOPIC, queues=2)
            receipt = producer.send(Message(TOPIC, BODY.encode(), tags="paid", keys=["order-4200"]))
            admin.groups.create("billing")
            admin.offsets.reset("billing", TOPIC, 0)
        yield servers.namesrv, receipt.message_id


def shown(namesrv: str, columns: int, *words: str) -> list[str]:
    with Terminal(words, {"NAMESRV_ADDR": namesrv}, columns=columns) as terminal:
        assert terminal.end() == 0, terminal.text
        return terminal.text.splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_an_id_is_one_word_that_finds_its_message(sent: tuple[str, str], columns: int) -> None:
    namesrv, message_id = sent
    lines = shown(namesrv, columns, "message", "list", TOPIC)
    assert max(map(len, lines)) <= columns
    [row] = [line for line in lines if message_id in line.split()]
    assert row[:12].count(":") == 2, "a time of today, without the date"
    [body] = [line for line in lines if '{"customer": ' in line]
    assert body.endswith("…"), "bodies shrink"
    assert any("order-4200" in line for line in lines)
    copied = next(word for word in row.split() if len(word) == 32)
    assert any(
        BODY[:20] in line for line in shown(namesrv, columns, "message", "key", TOPIC, copied, "--unique")
    )


@pytest.mark.parametrize("columns", [80, 120])
def test_wide_shows_everything_on_one_line(sent: tuple[str, str], columns: int) -> None:
    namesrv, message_id = sent
    [row] = [
        line for line in shown(namesrv, columns, "message", "list", TOPIC, "--wide") if message_id in line
    ]
    assert row.startswith("20"), "the full date"
    assert row.endswith(BODY)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "words", [("cluster", "list"), ("group", "status", "billing"), ("topic", "route", TOPIC)]
)
def test_names_addresses_and_offsets_are_whole(
    sent: tuple[str, str], columns: int, words: tuple[str, ...]
) -> None:
    lines = shown(sent[0], columns, *words)
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    assert "broker-a" in text
    if words[0] != "group":
        assert "127.0.0.1:" in text
    else:
        assert TOPIC in text
