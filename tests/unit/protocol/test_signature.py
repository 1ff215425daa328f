"""Signatures of requests: RocketMQ's vectors, laws, and the frames of our clients."""

import base64
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand, TypedCommand, encode
from skylark.protocol.connection import Connection
from skylark.protocol.frame_templates import SendTemplate
from skylark.protocol.requests.pull import PullMessage
from skylark.protocol.signature import (
    SIGNATURE,
    SignedSend,
    Signer,
    SigningKey,
    are_signed,
    is_signed,
    signed_text,
)
from skylark.settings.credentials import Credentials

SECRET = "12345678"
SEND = {
    "a": "PG_demo",
    "b": "TopicTest",
    "c": "TBW102",
    "d": "8",
    "e": "1",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "KEYS\x01k1\x02UNIQ_KEY\x01C0A8010A123418B4AAC247B760000000\x02WAIT\x01true\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
    "AccessKey": "rocketmq",
}
QUERY = {
    "topic": "TopicTest",
    "key": "k",
    "maxNum": "32",
    "beginTimestamp": "0",
    "endTimestamp": "9",
    "_UNIQUE_KEY_QUERY": "true",
    "AccessKey": "rocketmq",
}


@pytest.mark.parametrize(
    ("fields", "body", "secret", "signature"),
    [
        (SEND, b"hello", SECRET, "YmaOboqZ7sPZUT6n/nxEA3qtndk="),
        ({**SEND, "SecurityToken": "tok1"}, b"hello", SECRET, "lTJH4L8JX/FHWq0RUO8hANGGtOw="),
        (
            {"topic": "TopicTest", "queueId": "0", "AccessKey": "RocketMQ"},
            b"hello",
            SECRET,
            "/u+oQUi9gv7W/z1uifpc34q6njk=",
        ),
        ({"AccessKey": "rocketmq", "topic": "TopicTest"}, b"", SECRET, "ayu7NKYdYIN7Dpv6MbQQFj1qv24="),
        (QUERY, b"", SECRET, "kIDGtTSP4vM9vWLQ0MMDEbL7ATg="),
        ({"AccessKey": "rocketmq", "remark": "中"}, b"", "秘密secret", "qYP1/nO6vWkJYhoONBZCVXkegoo="),
    ],
)
def test_the_signatures_are_those_of_rocketmq(
    fields: dict[str, str], body: bytes, secret: str, signature: str
) -> None:
    key = SigningKey(secret)
    assert key.signature(signed_text(fields), body).decode() == signature
    assert is_signed({**fields, SIGNATURE: signature}, body, key, version=479)


def test_clients_up_to_4_9_3_do_not_sign_the_kind_of_a_query() -> None:
    fields = {**QUERY, SIGNATURE: "L2GbYorVJZ8/Zx3a/TOAxKxekFk="}
    assert is_signed(fields, b"", SigningKey(SECRET), version=399)
    assert not is_signed(fields, b"", SigningKey(SECRET), version=400)


NAMES = st.text(st.sampled_from("ABZabz_019é中\U0001f600\uffee"), min_size=1, max_size=6)
FIELDS = st.dictionaries(NAMES, st.text(max_size=20), max_size=12)


@given(fields=FIELDS, body=st.binary(max_size=200), secret=st.text(min_size=1, max_size=80))
def test_what_is_signed_is_verified(fields: dict[str, str], body: bytes, secret: str) -> None:
    command = RemotingCommand(code=310, fields=fields, body=body)
    Signer(Credentials("user", secret)).sign(command)
    assert is_signed(command.fields, body, SigningKey(secret), version=479)
    assert not is_signed(command.fields, body, SigningKey(secret + "x"), version=479)
    assert not is_signed(command.fields, body + b"x", SigningKey(secret), version=479)
    names = sorted(set(command.fields) - {SIGNATURE}, key=lambda name: name.encode("utf-16-be"))
    content = "".join(command.fields[name] for name in names).encode() + body
    expected = base64.b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()
    assert command.fields[SIGNATURE] == expected


@given(data=st.data(), fields=FIELDS.filter(lambda fields: any(fields.values())), body=st.binary(max_size=50))
def test_one_changed_character_is_found(data: st.DataObject, fields: dict[str, str], body: bytes) -> None:
    command = RemotingCommand(code=310, fields=fields, body=body)
    Signer(Credentials("user", SECRET)).sign(command)
    name = data.draw(st.sampled_from(sorted(name for name, value in command.fields.items() if value)))
    value = command.fields[name]
    position = data.draw(st.integers(0, len(value) - 1))
    changed = value[:position] + ("x" if value[position] != "x" else "y") + value[position + 1 :]
    assert not is_signed({**command.fields, name: changed}, body, SigningKey(SECRET), version=479)


@pytest.mark.parametrize("signature", ["", "é", "YmaOboqZ7sPZUT6n/nxEA3qtndk"])
def test_a_signature_that_is_none_is_refused(signature: str) -> None:
    assert not is_signed({**SEND, SIGNATURE: signature}, b"hello", SigningKey(SECRET), version=479)


def received(*parts: Any) -> RemotingCommand:
    (command,) = Connection[Any]().receive(b"".join(parts))
    assert isinstance(command, RemotingCommand)
    return command


TEMPLATE: dict[str, Any] = {
    "group": "PG_demo",
    "topic": "Topic%Test",
    "broker": "broker-a",
    "queue_id": 1,
    "default_topic": "TBW102",
    "default_queues": 8,
}


@pytest.mark.parametrize("token", ["", 'tok"1'])
@given(
    properties=st.text(st.characters(codec="utf-8"), max_size=40),
    max_times=st.none() | st.integers(0, 99),
    is_batch=st.booleans(),
    is_oneway=st.booleans(),
    body=st.binary(max_size=100),
)
def test_signed_sends_differ_from_others_in_user_and_signature_only(
    token: str, properties: str, max_times: int | None, is_batch: bool, is_oneway: bool, body: bytes
) -> None:
    given: dict[str, Any] = {
        "properties": properties,
        "sys_flag": 4,
        "born_ms": 1_700_000_000_000,
        "reconsume_times": 3,
        "max_reconsume_times": max_times,
        "is_batch": is_batch,
        "is_oneway": is_oneway,
    }
    signer = Signer(Credentials("rocket%mq", SECRET, token))
    open_send = received(*SendTemplate(**TEMPLATE).frame(7, body, **given))
    signed = received(*SendTemplate(**TEMPLATE, signer=signer).frame(7, body, **given))
    assert is_signed(signed.fields, signed.body, SigningKey(SECRET), version=signed.version)
    assert len(signed.fields.pop(SIGNATURE)) == 28
    assert {name: signed.fields.pop(name) for name in signer.fields} == signer.fields
    assert signed == open_send


# --- Sends that a server decodes into their type ---


def admitted(frame: bytes, key: SigningKey) -> bool:
    """Whether a server recognises the signature without the ext fields; if not, it gets all of them."""
    connection = Connection[Any]()
    seen: list[TypedCommand[SignedSend]] = []

    def admits(commands: list[TypedCommand[SignedSend]]) -> list[bool]:
        seen.extend(commands)
        return are_signed(commands, [key] * len(commands))

    connection.admits = admits
    (command,) = connection.receive(frame)
    assert connection.has_undecided is not isinstance(command, TypedCommand)
    if isinstance(command, TypedCommand):
        assert command is seen[0]
        return True
    assert bytes(command.body) == bytes(received(frame).body)
    assert command == received(frame)
    return False


@given(
    properties=st.text(st.characters(codec="utf-8"), max_size=40),
    max_times=st.none() | st.integers(0, 99),
    is_batch=st.booleans(),
    token=st.sampled_from(["", "tok"]),
    body=st.binary(max_size=100),
    change=st.integers(0, 1000),
)
def test_a_typed_send_is_recognised_by_its_signature(
    properties: str, max_times: int | None, is_batch: bool, token: str, body: bytes, change: int
) -> None:
    template = SendTemplate(**TEMPLATE, signer=Signer(Credentials("user", SECRET, token)))
    frame = b"".join(
        template.frame(
            7,
            body,
            properties=properties,
            sys_flag=0,
            born_ms=1_700_000_000_000,
            max_reconsume_times=max_times,
            is_batch=is_batch,
        )
    )
    assert admitted(frame, SigningKey(SECRET))
    assert not admitted(frame, SigningKey(SECRET + "x"))
    if body:
        at = len(frame) - 1 - change % len(body)
        assert not admitted(frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :], SigningKey(SECRET))


@given(kinds=st.lists(st.sampled_from(["good", "wrong", "unsigned", "other code", "foreign"]), max_size=12))
def test_each_send_of_a_read_is_decided_for_itself(kinds: list[str]) -> None:
    """Those that are not recognised have all their ext fields, and all stay in order with their bodies."""
    key, frames = SigningKey(SECRET), []
    for number, kind in enumerate(kinds):
        fields = {**SEND, **({"z": "1"} if kind == "foreign" else {})}
        code = 11 if kind == "other code" else 310
        command = RemotingCommand(code=code, opaque=number, fields=fields, body=b"%d" % number)
        if kind != "unsigned":
            Signer(Credentials("rocketmq", SECRET + ("x" if kind == "wrong" else ""))).sign(command)
        frames.append(b"".join(encode(command)))
    connection = Connection[Any]()
    connection.admits = lambda commands: are_signed(commands, [key] * len(commands))
    found = connection.receive(b"".join(frames))
    assert [each.opaque for each in found] == list(range(len(kinds)))
    assert connection.has_undecided is any(kind != "good" for kind in kinds)
    for each, kind, frame in zip(found, kinds, frames, strict=True):
        assert bytes(each.body) == b"%d" % each.opaque
        assert isinstance(each, TypedCommand) is (kind == "good")
        assert kind == "good" or each == received(frame)


def test_sends_before_an_invalid_frame_are_decided() -> None:
    command = RemotingCommand(code=310, fields=dict(SEND), body=b"hello")
    Signer(Credentials("rocketmq", SECRET + "x")).sign(command)
    connection = Connection[Any]()
    connection.admits = lambda commands: are_signed(commands, [SigningKey(SECRET)] * len(commands))
    (found,) = connection.receive(b"".join(encode(command)) + bytes(8))
    assert connection.failure is not None
    assert isinstance(found, RemotingCommand)


@pytest.mark.parametrize("name", [name for name in SEND if name not in ("k", "m")])
def test_a_changed_value_of_a_typed_send_is_found(name: str) -> None:
    def frame(**changes: str) -> bytes:
        command = RemotingCommand(code=310, fields=dict(SEND), body=b"hello")
        Signer(Credentials("rocketmq", SECRET)).sign(command)
        command.fields.update(changes)
        return b"".join(encode(command))

    assert admitted(frame(), SigningKey(SECRET))
    assert not admitted(frame(**{name: SEND[name] + "1"}), SigningKey(SECRET))
    assert not admitted(frame(k="true"), SigningKey(SECRET))
    assert not admitted(frame(l="3"), SigningKey(SECRET))
    assert not admitted(frame(other="1"), SigningKey(SECRET))  # a field that a typed send does not have


def test_a_send_without_defaults_is_signed_though_not_recognised() -> None:
    fields = {name: value for name, value in SEND.items() if name not in ("j", "k", "m", "n")}
    command = RemotingCommand(code=310, fields=fields, body=b"hello")
    Signer(Credentials("rocketmq", SECRET)).sign(command)
    assert not admitted(b"".join(encode(command)), SigningKey(SECRET))
    assert is_signed(command.fields, b"hello", SigningKey(SECRET), version=479)


def test_an_encoded_pull_is_signed() -> None:
    pull = PullMessage("G", "T", 0, 5, 32, 4, 0, 15_000, 1)
    signed = received(*Signer(Credentials("user", SECRET)).sign_frame(pull.frame(9)))
    assert (signed.code, signed.opaque) == (RequestCode.PULL_MESSAGE, 9)
    assert is_signed(signed.fields, signed.body, SigningKey(SECRET), version=signed.version)
    assert PullMessage.from_fields(signed.fields) == pull
