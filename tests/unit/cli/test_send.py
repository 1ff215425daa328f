"""From what a person typed to messages."""

from __future__ import annotations

import base64
import io
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.cli.errors import UsageError
from skylark.cli.send import SendArguments, messages
from skylark.model.message import Message

NOW_MS = 1_700_000_000_000


def made(standard_input: bytes = b"", **wanted: Any) -> list[Message]:
    return list(messages(SendArguments("orders", **wanted), io.BytesIO(standard_input), now_ms=NOW_MS))


def test_a_message_with_everything() -> None:
    [message] = made(
        body="hello",
        tags="created",
        keys=["42", "43"],
        properties=["a=1", "b=x=y"],
        order_by="customer-7",
        delay="5m",
    )
    assert message == Message(
        "orders",
        b"hello",
        tags="created",
        keys=("42", "43"),
        properties={"a": "1", "b": "x=y"},
        sharding_key="customer-7",
        deliver_after=timedelta(minutes=5),
    )


def test_the_number_is_put_into_each_of_several() -> None:
    assert [item.body for item in made(body="order {n}", count=3)] == [b"order 1", b"order 2", b"order 3"]
    assert [item.body for item in made(body='{"a": {n}}')] == [b'{"a": {n}}']  # of one it is left alone


def test_standard_input_is_the_body_or_a_message_to_a_line() -> None:
    assert [item.body for item in made(b"a\nb\n", body="-")] == [b"a\nb\n"]
    assert [item.body for item in made(b"\xff\x00")] == [b"\xff\x00"]
    assert [item.body for item in made(b"a\r\nb\n\nc", lines=True)] == [b"a", b"b", b"", b"c"]


def test_a_time_is_told_with_its_zone() -> None:
    [message] = made(body="x", at=str(NOW_MS + 60_000))
    assert message.deliver_at is not None
    assert message.deliver_at.timestamp() * 1000 == NOW_MS + 60_000


@given(
    body=st.binary(max_size=50),
    tags=st.none() | st.sampled_from(["a", "b"]),
    keys=st.lists(st.sampled_from(["k1", "k2"]), max_size=2),
    properties=st.dictionaries(st.sampled_from(["p", "q"]), st.text("xyz", min_size=1), max_size=2),
)
def test_what_tail_prints_can_be_sent(
    body: bytes, tags: str | None, keys: list[str], properties: dict[str, str]
) -> None:
    line: dict[str, object] = {
        "topic": "elsewhere",
        "queue": 3,
        "tags": tags,
        "keys": keys,
        "properties": {**properties, "UNIQ_KEY": "its own", "WAIT": "true", "CLUSTER": "c"},
    }
    try:
        line["body"] = body.decode()
    except UnicodeDecodeError:
        line["body_base64"] = base64.b64encode(body).decode()
    [message] = made(msgspec.json.encode(line) + b"\n\n", from_json=True)
    assert message == Message("orders", body, tags=tags, keys=tuple(keys), properties=properties)


def test_options_count_more_than_the_line() -> None:
    [message] = made(b'{"body": "x", "tags": "old", "keys": ["k"]}', from_json=True, tags="new")
    assert (message.tags, list(message.keys)) == ("new", ["k"])


@pytest.mark.parametrize(
    ("wanted", "standard_input", "words"),
    [
        (
            {"body": "x", "delay": "5m", "delay_level": 3},
            b"",
            "pass only one of --delay, --delay-level and --at",
        ),
        ({"body": "x", "delay": "soon"}, b"", "--delay: invalid duration 'soon'"),
        ({"body": "x", "at": "2001-01-01"}, b"", "--at 2001-01-01 is in the past"),
        ({"body": "x", "properties": ["a"]}, b"", "invalid --property 'a'; write KEY=VALUE"),
        ({"body": "x", "lines": True}, b"", "read standard input: omit the body"),
        ({"lines": True, "count": 3}, b"a", "--count repeats one body"),
        ({"from_json": True, "count": 3}, b"{}", "--count repeats one body"),
        ({"from_json": True}, b'{"body": "x"}\n{"body"', "line 2: invalid message JSON"),
        ({"from_json": True}, b'{"tags": "x"}', "line 1: neither body nor body_base64"),
        (
            {"from_json": True},
            b'{"body": "x", "body_error": "bad CRC"}',
            "line 1: the body is damaged: bad CRC",
        ),
        ({"from_json": True}, b'{"body_base64": "!"}', "line 1: invalid message JSON"),
    ],
)
def test_mistakes_are_said(wanted: dict[str, Any], standard_input: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        made(standard_input, **wanted)


def test_nothing_to_send_is_said() -> None:
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

    with pytest.raises(UsageError, match="nothing to send: pass a body"):
        list(messages(SendArguments("orders"), Terminal(), now_ms=NOW_MS))
