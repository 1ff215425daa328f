"""Headers: the specification's vectors, the liberties of other clients, and what must be refused."""

import json
from typing import Any

import pytest

from skylark.errors import LocalProtocolError, MalformedFrame
from skylark.protocol.codes import LanguageCode, ResponseCode
from skylark.protocol.command import (
    Encoding,
    RemotingCommand,
    TypedCommand,
    decode_header,
    encode,
    prefix,
)
from skylark.protocol.connection import Command, Connection, Limits
from skylark.protocol.requests.pull import PullMessage
from skylark.protocol.requests.send import SendMessage, SendMessageV2

ROUTE_JSON = (
    b'\x00\x00\x00\x87\x00\x00\x00\x83{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA",'
    b'"opaque":1,"serializeTypeCurrentRPC":"JSON","version":479}'
)
ROUTE_BINARY = bytes.fromhex(
    "0000002d0100002900690001df000000010000000000000000000000140005746f70696300000009546f70696354657374"
)
REFUSED_BINARY = bytes.fromhex(
    "0000004f0100004b00110001df0000000100000001000000364e6f20746f70696320726f75746520696e666f20696e206e61"
    "6d652073657276657220666f722074686520746f7069633a204e6f706500000000"
)


def one(frame: bytes, *, typed: bool = False) -> Command:
    connection: Connection[None] = Connection(typed=typed)
    commands = connection.receive(frame)
    assert connection.failure is None, connection.failure
    [command] = commands
    return command


def json_frame(header: dict[str, Any] | bytes, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return prefix(len(text), len(body)) + text + body


@pytest.mark.parametrize(
    ("frame", "encoding"), [(ROUTE_JSON, Encoding.JSON), (ROUTE_BINARY, Encoding.ROCKETMQ)]
)
def test_vectors_of_a_request(frame: bytes, encoding: Encoding) -> None:
    command = one(frame)
    assert command == RemotingCommand(
        code=105, opaque=1, version=479, language="JAVA", fields={"topic": "TopicTest"}
    )
    assert b"".join(encode(command, encoding)) == frame


def test_vector_of_a_binary_response_with_a_remark() -> None:
    command = one(REFUSED_BINARY)
    assert isinstance(command, RemotingCommand)
    assert command.code == ResponseCode.TOPIC_NOT_EXIST
    assert command.is_response
    assert not command.is_oneway
    assert command.remark == "No topic route info in name server for the topic: Nope"
    assert b"".join(encode(command, Encoding.ROCKETMQ)) == REFUSED_BINARY


def test_a_reply_carries_the_opaque_and_speaks_as_a_server() -> None:
    reply = one(ROUTE_JSON).reply(ResponseCode.TOPIC_NOT_EXIST, "no", fields={"a": "b"}, body=b"xyz")
    frame = b"".join(encode(reply))
    assert frame.endswith(
        b'{"code":17,"extFields":{"a":"b"},"flag":1,"language":"JAVA","opaque":1,"remark":"no",'
        b'"serializeTypeCurrentRPC":"JSON","version":479}xyz'
    )
    assert one(frame) == reply


def test_the_body_is_not_copied() -> None:
    body = bytearray(b"0123456789")
    parts = encode(RemotingCommand(code=1, body=memoryview(body)))
    body[0:1] = b"x"
    assert bytes(parts[1]) == b"x123456789"
    frame = b"".join(parts)
    command = one(frame)
    assert isinstance(command.body, memoryview)
    assert command.body.obj is frame


# --- Liberties of other clients ---

SEND_FIELDS = {
    "producerGroup": "g", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "1", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "properties": "A\x01b\x02",
}  # fmt: skip
SENT = SendMessage("g", "t", "TBW102", 4, 1, 0, 1700000000000, 0, "A\x01b\x02")


@pytest.mark.parametrize("typed", [True, False])
def test_node_sends_numbers_and_booleans_as_fields(typed: bool) -> None:
    fields = {
        "a": "g", "b": "t", "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 1700000000000, "h": 0,
        "i": "A\x01b\x02", "j": 0, "k": False,
    }  # fmt: skip
    header = {"code": 310, "language": "JAVA", "version": 121, "opaque": 1, "flag": 0, "extFields": fields}
    command = one(json_frame(header), typed=typed)
    expected = SendMessageV2("g", "t", "TBW102", 4, 1, 0, 1700000000000, 0, "A\x01b\x02")
    if typed:
        assert isinstance(command, TypedCommand)
        assert command.request == expected
    else:
        assert isinstance(command, RemotingCommand)
        assert command.fields["d"] == "4"
        assert command.fields["k"] == "false"
        assert SendMessageV2.from_command(command) == expected


def test_cpp_mixes_numbers_and_text_and_ends_with_a_newline() -> None:
    fields = {
        "consumerGroup": "g", "topic": "t", "queueId": 0, "queueOffset": "0", "maxMsgNums": 32, "sysFlag": 6,
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "0",
        "AccessKey": "", "OnsChannel": "ALIYUN", "Signature": "abc=",
    }  # fmt: skip
    header = {"code": 11, "extFields": fields, "flag": 0, "language": "CPP", "opaque": 5, "version": 63}
    command = one(json_frame(json.dumps(header).encode() + b"\n"), typed=True)
    assert isinstance(command, TypedCommand)
    assert command.request == PullMessage("g", "t", 0, 0, 32, 6, 0, 15000, 0, "*")
    assert command.language == "CPP"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("true", "True", "1", True, 1)),
        *((text, False) for text in ("false", "False", "0", False, "", "yes")),
    ],
)
@pytest.mark.parametrize("name", ["batch", "unitMode"])
def test_booleans_have_many_spellings(name: str, text: object, value: bool) -> None:
    """C++ marks a batch with "1"; Apache's broker takes only "true", and stores the batch as one message."""
    header = {"code": 10, "extFields": SEND_FIELDS | {name: text}, "opaque": 1}
    command = one(json_frame(header), typed=True)
    assert isinstance(command, TypedCommand)
    assert (command.request.batch if name == "batch" else command.request.unit_mode) is value


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"extFields": {}},
        {"extFields": None},
        {"remark": None},
        {"remark": ""},
        {"flag": None, "language": None, "version": None},
        {"language": "COBOL"},
        {"language": 3},
        {"serializeTypeCurrentRPC": "JSON", "somethingNew": [1, {"a": None}]},
    ],
)
def test_members_may_be_missing_null_or_unknown(members: dict[str, Any]) -> None:
    command = one(json_frame({"code": 34, "opaque": 7} | members))
    assert isinstance(command, RemotingCommand)
    assert (command.code, command.opaque, command.flag) == (34, 7, 0)
    assert command.fields == {}
    assert not command.remark
    assert command.language == members.get("language", "OTHER") or command.language == "OTHER"


def test_members_may_come_in_any_order() -> None:
    header = {
        "extFields": SEND_FIELDS,
        "opaque": 9,
        "version": 474,
        "language": "RUST",
        "remark": None,
        "code": 10,
    }
    command = one(json_frame(header), typed=True)
    assert isinstance(command, TypedCommand)
    assert command.request == SENT


def test_dotnet_leaves_control_characters_raw_in_strings() -> None:
    text = json.dumps({"code": 10, "extFields": SEND_FIELDS, "opaque": 3, "remark": "SEND"})
    raw = text.replace("\\u0001", "\x01").replace("\\u0002", "\x02").encode()
    assert b"\x01" in raw
    command = one(json_frame(raw), typed=True)
    assert isinstance(command, TypedCommand)
    assert command.request == SENT


def test_null_fields_are_not_there() -> None:
    header = {"code": 10, "extFields": SEND_FIELDS | {"maxReconsumeTimes": None, "reconsumeTimes": None}}
    command = one(json_frame(header), typed=True)
    assert isinstance(command, TypedCommand)
    assert command.request == SENT


def test_the_version_may_be_any_number() -> None:
    command = one(json_frame({"code": 34, "version": 99_999}))
    assert command.version == 99_999


def test_an_unknown_language_number_is_other() -> None:
    frame = bytearray(ROUTE_BINARY)
    frame[10] = 200
    assert one(bytes(frame)).language == LanguageCode.OTHER.name


def test_an_empty_value_in_a_binary_header_is_none() -> None:
    command = RemotingCommand(code=1, fields={"a": "", "b": "x"})
    again = one(b"".join(encode(command, Encoding.ROCKETMQ)))
    assert isinstance(again, RemotingCommand)
    assert again.fields == {"b": "x"}


# --- What must be refused ---


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b'"code"',
        b"5",
        b"{}",
        b'{"code":"x"}',
        b'{"code":105',
        b'{"code":105}}',
        b'{"code":105,}',
        b'{"code":NaN}',
        b'{"code":105,"opaque":NaN}',
        b'{"code":105,"opaque":Infinity}',
        b'{"code":99999999999}',
        b'{"code":105,"opaque":2147483648}',
        b'{"code":105,"opaque":-2147483649}',
        b'{"code":105,"flag":%b}' % (b"9" * 5000),
        b'{"code":105,"extFields":{"a":%b}}' % (b"9" * 5000),
        b'{"code":105,"extFields":{"a":1e999}}',
        b'{"code":105,"remark":5}',
        b'{"code":105,"remark":"\\ud800"}',
        b'{"code":105,"extFields":{"a":"\\ud800x"}}',
        b'{"code":105,"remark":"\xff\xfe"}',
        b'{"code":105,"extFields":{"\xc3":"x"}}',
        b'{"code":105,"extFields":[]}',
        b'{"code":105,"extFields":"x"}',
        b'{"code":105,"extFields":7}',
        b'{"code":105,"extFields":{"a":[]}}',
        b'{"code":105,"extFields":{"a":{"b":"c"}}}',
        b'{"code":105,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"code":105,"extFields":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"code":310,"extFields":{"a":"g","b":[1]}}',
        b"\x00\x01\x02",
        b'{"code":105}\x00',
    ],
)
@pytest.mark.parametrize("typed", [True, False])
def test_json_that_is_no_header(text: bytes, typed: bool) -> None:
    connection: Connection[None] = Connection(Limits(header_bytes_max=1 << 20), typed=typed)
    assert connection.receive(ROUTE_JSON + json_frame(text) + ROUTE_JSON) == [one(ROUTE_JSON)]
    assert isinstance(connection.failure, MalformedFrame)
    assert connection.receive(ROUTE_JSON) == []


def test_duplicate_keys_cannot_confuse_the_hot_decoder() -> None:
    """The last of two codes counts, as in Java, and the first one's type is not used for it."""
    fields = json.dumps(SEND_FIELDS)
    text = f'{{"code":10,"extFields":{fields},"code":105}}'.encode()
    command = one(json_frame(text), typed=True)
    assert isinstance(command, RemotingCommand)
    assert command.code == 105
    assert command.fields == SEND_FIELDS


def test_a_response_that_looks_like_a_hot_request_stays_a_response() -> None:
    header = {"code": 10, "extFields": SEND_FIELDS, "flag": 1, "opaque": 4}
    command = one(json_frame(header), typed=True)
    assert isinstance(command, RemotingCommand)
    assert command.is_response


FIXED = bytes.fromhex("0069 00 01df 00000001 00000000")  # code, language, version, opaque, flag


@pytest.mark.parametrize(
    "header",
    [
        b"",
        FIXED,
        FIXED + bytes.fromhex("00000000"),  # no length of the fields
        FIXED + bytes.fromhex("00000001 00000000"),  # remark past the end
        FIXED + bytes.fromhex("ffffffff 00000000"),  # negative remark
        FIXED + bytes.fromhex("7fffffff 00000000"),
        FIXED + bytes.fromhex("00000000 00000001"),  # fields past the end
        FIXED + bytes.fromhex("00000000 ffffffff"),
        FIXED + bytes.fromhex("00000000 80000000"),
        FIXED + bytes.fromhex("00000000 00000001 00"),  # half a key length
        FIXED + bytes.fromhex("00000000 00000003 0001 61"),  # no value
        FIXED + bytes.fromhex("00000000 00000003 0005 61"),  # key past the end
        FIXED + bytes.fromhex("00000000 00000003 ffff 61"),  # negative key
        FIXED + bytes.fromhex("00000000 00000008 0001 61 00000005 62"),  # value past the end
        FIXED + bytes.fromhex("00000000 00000008 0001 61 ffffffff 62"),  # negative value
        FIXED
        + bytes.fromhex("00000000 00000007 0001 61 00000001 62"),  # value past the block, not the header
        FIXED + bytes.fromhex("00000000 00000008 0001 ff 00000001 62"),  # not UTF-8
        FIXED + bytes.fromhex("00000001 80 00000000"),
    ],
)
def test_binary_headers_with_lying_lengths(header: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_header(Encoding.ROCKETMQ, memoryview(header))


@pytest.mark.parametrize("encoding", [2, 7, 0x16, 255])
def test_unknown_encodings(encoding: int) -> None:
    with pytest.raises(MalformedFrame, match="unknown header encoding"):
        decode_header(encoding, memoryview(b"{}"))
    header = json.dumps({"code": 10, "extFields": SEND_FIELDS}, separators=(",", ":")).encode()
    connection: Connection[None] = Connection(typed=True)
    assert connection.receive(prefix(len(header), 0, encoding) + header) == []
    assert connection.failure is not None


def test_what_cannot_be_encoded() -> None:
    with pytest.raises(LocalProtocolError):
        encode(RemotingCommand(code=200050), Encoding.ROCKETMQ)  # the pop family needs JSON
    with pytest.raises(LocalProtocolError):
        encode(RemotingCommand(code=1, fields={"k" * 40_000: "v"}), Encoding.ROCKETMQ)
    for encoding in Encoding:
        with pytest.raises(LocalProtocolError):
            encode(RemotingCommand(code=1, remark="\ud800"), encoding)
    with pytest.raises(LocalProtocolError):
        encode(RemotingCommand(code=1, remark="x" * (1 << 24)))


def test_codes_above_16_bits_survive_in_json_only() -> None:
    assert one(b"".join(encode(RemotingCommand(code=200050)))).code == 200050
