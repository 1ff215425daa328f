"""The command line as a person sees it: in a terminal of 100 columns, compared as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from skylark import Admin, Message, Producer
from skylark.testing import EmbeddedServers
from tests.support.names import fresh_name
from tests.support.terminal import Terminal

TOPIC = "orders"
MASKS = (
    (
        re.compile(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(\.\d{3})?"),
        lambda found: "<time>".ljust(len(found[0]), "_"),
    ),
    (re.compile(r"127\.0\.0\.1:\d{4,5}"), lambda found: "<address>".ljust(len(found[0]), "_")),
    (re.compile(r"[0-9A-F]{32}"), lambda found: "<id>".ljust(32, "_")),
)


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with EmbeddedServers() as servers:
        with Admin(namesrv=servers.namesrv) as admin:
            admin.topics.create(TOPIC, queues=2)
            admin.groups.create("billing")
            with Producer("shop", namesrv=servers.namesrv) as producer:
                queues = producer.queues(TOPIC)
                producer.send(
                    Message(TOPIC, b'{"id":42,"lines":[1,2]}', tags="created", keys=["42"]), queue=queues[0]
                )
                producer.send(Message(TOPIC, b"plain \x1b[2J text\nof two lines"), queue=queues[1])
            admin.offsets.reset("billing", TOPIC, 0)
        yield servers.namesrv


def shown(namesrv: str, *words: str, code: int = 0) -> str:
    with Terminal(words, {"NAMESRV_ADDR": namesrv}) as terminal:
        assert terminal.end() == code, terminal.text
        return masked(terminal.text)


def masked(text: str) -> str:
    for pattern, mask in MASKS:
        text = pattern.sub(mask, text)
    return text.strip("\n")


TOPIC_STATUS = """\
topic     orders
messages  2
in/s      0.0

broker    queue  begin  end  messages  last stored
───────────────────────────────────────────────────
broker-a      0      0    1         1  <time>______
broker-a      1      0    1         1  <time>______"""

GROUP_LIST = """\
                                            dead
group    members  topics  lag  retrying  letters  out/s
───────────────────────────────────────────────────────
billing        0  orders    2         0        0    0.0"""

TAIL = """\
<time>______  broker-a:0@0  created  42
{
  "id": 42,
  "lines": [
    1,
    2
  ]
}
<time>______  broker-a:1@0
plain ·[2J text
of two lines"""

NO_ROUTE = (
    "skylark: No route info of this topic: nothing"
    " (no name server has a route; create the topic or enable automatic topic creation)\n"
    "  hint: `skylark topic list` lists topics; `skylark topic create nothing` creates it"
)


def test_a_status_is_a_table(namesrv: str) -> None:
    text = re.sub(r"in/s      [\d.]+", "in/s      0.0", shown(namesrv, "topic", "status", TOPIC))
    assert text == TOPIC_STATUS


def test_groups_are_a_table(namesrv: str) -> None:
    assert shown(namesrv, "group", "list") == GROUP_LIST


def test_brokers_fit_into_a_hundred_columns(namesrv: str) -> None:
    lines = shown(namesrv, "cluster", "list").splitlines()
    assert len(lines) == 4, "two lines of headings, a rule, a broker"
    assert re.match(r"DefaultCluster  broker-a   0  <address>", lines[-1])
    assert lines[1].endswith("message")


def test_an_empty_table_says_so(namesrv: str) -> None:
    assert shown(namesrv, "dlq", "list").endswith("\nnone")


def test_tail_lays_json_out_and_lets_nothing_steer_the_terminal(namesrv: str) -> None:
    assert shown(namesrv, "tail", TOPIC, "--no-follow") == TAIL


def test_an_error_is_a_sentence_and_a_hint(namesrv: str) -> None:
    assert shown(namesrv, "topic", "status", "nothing", code=2) == NO_ROUTE


def test_colours_are_for_terminals_and_not_if_they_are_not_wanted(namesrv: str) -> None:
    with Terminal(["group", "list"], {"NAMESRV_ADDR": namesrv}) as terminal:
        terminal.end()
        assert b"\x1b[1m" in terminal.raw
    with Terminal(["group", "list"], {"NAMESRV_ADDR": namesrv, "NO_COLOR": "1"}) as terminal:
        terminal.end()
        assert b"\x1b[3" not in terminal.raw


def test_tail_follows_until_it_is_interrupted(namesrv: str) -> None:
    topic = fresh_name("followed")
    with Producer("shop", namesrv=namesrv) as producer:
        producer.send(Message(topic, b"an old one"))
        with Terminal(["tail", topic, "-n", "1"], {"NAMESRV_ADDR": namesrv}) as terminal:
            terminal.until("an old one")
            producer.send(Message("other", b"not this"))
            producer.send(Message(topic, b"a new one", tags="new"))
            terminal.until("a new one")
            terminal.interrupt()
            assert terminal.end() == 0
            assert "not this" not in terminal.text


@pytest.mark.parametrize(
    ("words", "repeated"),
    [
        (("group", "status", "billing", "--watch", "--every", "0.2"), "out/s  0.0"),
        (("topic", "status", TOPIC, "--watch", "--every", "0.2"), "in/s  0.0"),
        (("top", "--every", "0.2"), "skylark top"),
    ],
    ids=" ".join,
)
def test_a_live_view_goes_on_until_it_is_interrupted(
    namesrv: str, words: tuple[str, ...], repeated: str
) -> None:
    with Terminal(words, {"NAMESRV_ADDR": namesrv}) as terminal:
        terminal.until(repeated, count=2)
        terminal.interrupt()
        assert terminal.end() == 0
        assert "Traceback" not in terminal.text


def test_a_live_view_of_nobody_is_a_sentence_and_a_hint() -> None:
    with Terminal(("top",), {"NAMESRV_ADDR": "127.0.0.1:1"}) as terminal:
        assert terminal.end() == 2
        assert "skylark: cannot connect to name server 127.0.0.1:1" in terminal.text


def test_what_cannot_be_undone_is_asked(namesrv: str) -> None:
    topic = fresh_name("doomed")
    with Admin(namesrv=namesrv) as admin:
        admin.topics.create(topic)
    for answer, code in (("n", 1), ("y", 0)):
        with Terminal(["topic", "delete", topic], {"NAMESRV_ADDR": namesrv}) as terminal:
            terminal.until(f"Delete topic {topic} and all its messages? [y/N]:")
            terminal.write(f"{answer}\n")
            assert terminal.end() == code
    assert f"topic {topic} deleted" in terminal.text


def test_many_messages_are_counted(namesrv: str) -> None:
    text = shown(namesrv, "send", "many", "order {n}", "--count", "20")
    assert re.fullmatch(r"sent 20 messages in [\d.]+ s \([\d,]+/s\)", text)
    one = shown(namesrv, "send", "many", "x", "--queue", "broker-a:1")
    assert re.fullmatch(r"sent <id>_+ to broker-a:1, offset \d+", one)


def test_the_doctor_says_what_to_do() -> None:
    with Terminal(["doctor", "--namesrv", "127.0.0.1:1"], {}) as terminal:
        assert terminal.end() == 1
    assert "FAULT  name servers" in terminal.text
    assert "-> start one with `skylark serve`, or pass --namesrv HOST:PORT" in terminal.text
