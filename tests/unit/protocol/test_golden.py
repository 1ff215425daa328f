"""Every captured frame decodes, and encodes again to the same bytes or the same meaning.

JSON headers: the same bytes, except that an empty `extFields` is left out. Binary headers: the same bytes,
except that a field sent twice (by signed requests) is sent once, and one without a value is not sent.
"""

from typing import Any

import pytest

from skylark.errors import BrokerError, RemoteProtocolError
from skylark.model import java
from skylark.protocol.bodies import TopicRouteData, encode_body, encode_standard_body
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import Encoding, RemotingCommand, TypedCommand, encode
from skylark.protocol.connection import HOT_REQUESTS, Connection
from skylark.protocol.requests import REQUESTS
from tests.unit.protocol.golden_frames import Captured, captured, lines

# Fields that any request may carry, for brokers of static topics, for access control, for vendors.
COMMON_FIELDS = {"bname", "ReqT", "AccessKey", "Signature"}
HOT_CODES = {request.code.value for request in HOT_REQUESTS}


def decode(frame: Captured) -> RemotingCommand:
    connection: Connection[None] = Connection()
    [command] = connection.receive(frame.frame)
    assert connection.failure is None
    assert connection.buffered_bytes == 0
    assert isinstance(command, RemotingCommand)
    return command


def meaning(frame: Captured) -> dict[str, str]:
    """Return the fields as sent, a binary field without a value being none."""
    fields = frame.header.get("extFields", {})
    return {name: value for name, value in fields.items() if value or frame.encoding == "JSON"}


def test_there_are_frames_of_both_encodings() -> None:
    frames = captured()
    assert len(frames) == 2643
    assert {frame.encoding for frame in frames} == {"JSON", "ROCKETMQ"}


def test_every_frame_decodes() -> None:
    for frame in captured():
        command = decode(frame)
        assert command.code == frame.code
        assert command.opaque == frame.header["opaque"]
        assert command.flag == frame.header["flag"]
        assert command.language == frame.header["language"]
        assert command.version == frame.header["version"]
        assert command.remark == frame.header.get("remark")
        assert command.fields == meaning(frame)
        assert bytes(command.body) == frame.body


def test_every_frame_encodes_again() -> None:
    other_bytes = []
    for frame in captured():
        command = decode(frame)
        again = b"".join(encode(command, Encoding[frame.encoding]))
        if again != frame.frame:
            other_bytes.append(frame)
            [same] = Connection[None]().receive(again)
            assert same == command
    without_fields = [frame for frame in other_bytes if frame.header.get("extFields") == {}]
    others = [(f.scenario, f.encoding, f.code) for f in other_bytes if f.header.get("extFields") != {}]
    assert len(without_fields) == 279
    assert others == [
        ("binary-client-admin", "ROCKETMQ", 17),  # attributes without a value
        ("binary-producer-acl", "ROCKETMQ", 310),  # signed: every field twice
        ("probe-pull", "JSON", 12),  # written by a script that escapes all but ASCII
    ]


def test_hot_requests_come_out_typed() -> None:
    seen = set()
    refused = []
    for frame in captured():
        if frame.kind == "response" or frame.code not in HOT_CODES:
            continue
        connection: Connection[None] = Connection(typed=True)
        [command] = connection.receive(frame.frame)
        plain = decode(frame)
        if not isinstance(command, TypedCommand):
            refused.append(meaning(frame))
            continue
        seen.add((frame.code, frame.encoding))
        assert command.request == REQUESTS[RequestCode(frame.code)].from_fields(plain.fields)
        assert (command.code, command.opaque, command.flag) == (plain.code, plain.opaque, plain.flag)
        assert (command.version, command.language) == (plain.version, plain.language)
        assert bytes(command.body) == frame.body
    assert {code for code, _ in seen} == HOT_CODES
    assert {encoding for _, encoding in seen} == {"JSON", "ROCKETMQ"}
    # The four that the real broker, too, answered with SYSTEM_ERROR.
    assert [(fields.get("b"), fields.get("f"), fields.get("queueOffset")) for fields in refused] == [
        (None, None, None),
        (None, "0", None),
        ("TopicTest", None, None),
        ("TopicTest", "abc", None),
    ]


def test_responses_never_come_out_typed() -> None:
    for frame in captured():
        if frame.kind == "response":
            [command] = Connection[None](typed=True).receive(frame.frame)
            assert isinstance(command, RemotingCommand)


def test_every_request_keeps_its_fields_and_body_through_its_type() -> None:
    seen = set()
    for frame in captured():
        if frame.kind == "response" or frame.code not in REQUESTS:
            continue
        command = decode(frame)
        try:
            again = REQUESTS[RequestCode(frame.code)].from_command(command).to_command()
        except RemoteProtocolError:
            assert frame.scenario in ("probe-send", "probe-pull")
            continue
        seen.add(frame.code)
        for name in command.fields.keys() - COMMON_FIELDS:
            assert again.fields[name] == command.fields[name], (frame.scenario, frame.code, name)
        if not frame.scenario.startswith("probe-"):  # a probe may leave out what has a default
            assert not again.fields.keys() - command.fields.keys()
            assert same_json(bytes(again.body), frame.body)
    assert len(seen) > 85


def same_json(left: bytes, right: bytes) -> bool:
    return left == right or java.loads(left) == java.loads(right)


def test_every_answer_is_understood() -> None:
    bodies = errors = 0
    for frame in captured():
        if frame.kind != "response" or frame.asked is None or frame.asked.code not in REQUESTS:
            continue
        kind = REQUESTS[RequestCode(frame.asked.code)]
        try:
            asked = kind.from_command(decode(frame.asked))
        except RemoteProtocolError:
            continue
        try:
            result: Any = asked.result(decode(frame))
        except BrokerError as error:
            errors += 1
            assert (error.code, error.remark) == (frame.code, frame.header.get("remark", ""))
            continue
        if frame.body and kind.answer is not None and frame.asked.code != RequestCode.REGISTER_BROKER:
            bodies += 1
            write = encode_standard_body if isinstance(result, TopicRouteData) else encode_body
            if b'"brokerAddrs":{0:' in frame.body:
                write = encode_body
            assert same_json(write(result), frame.body), frame.asked.code
    assert bodies > 350
    assert errors > 200


@pytest.mark.parametrize("line", list(lines("illegal")), ids=lambda line: line["case"])
def test_illegal_first_bytes_close_where_the_real_broker_closed(line: dict[str, Any]) -> None:
    connection: Connection[None] = Connection()
    connection.receive(bytes.fromhex(line["bytes_hex"]))
    # The real broker waits for twelve bytes before it looks at any; eleven that are nonsense need not wait.
    expected = line["closed"] or line["case"] == "fewer than 12 bytes"
    assert (connection.failure is not None) == expected
