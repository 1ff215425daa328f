"""The frames that a producer sends, beside those of the Java client that were captured."""

from __future__ import annotations

import pytest

from skylark.client.producer.message_encoder import EncodedBatch, EncodedMessage, MessageEncoder
from skylark.client.producer.send_policy import PendingSend, SendPolicy
from skylark.model.message import Message, decode_properties
from skylark.model.record import split_batch
from skylark.protocol.bodies import HeartbeatData, MessageQueue, ProducerData, encode_body
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.connection import Connection
from skylark.protocol.requests.client import UnregisterClient
from skylark.protocol.requests.name_server import GetRouteInfoByTopic
from skylark.settings.client import Compression, ProducerSettings
from tests.unit.client.keys import GivenKeys
from tests.unit.protocol.golden_frames import Captured, captured

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
SCENARIOS = (
    "producer-sync",
    "producer-async",
    "producer-oneway",
    "producer-orderly",
    "producer-delay",
    "producer-batch",
    "producer-compressed",
    "transaction",
)
CODECS = {0x100: Compression.LZ4, 0x200: Compression.ZSTD, 0x300: Compression.ZLIB}
MEMBERS = {"KEYS", "TAGS", "UNIQ_KEY", "WAIT", "DELAY", "TRAN_MSG", "PGROUP"}


def java_sends() -> list[Captured]:
    frames = [frame for scenario in SCENARIOS for frame in captured(scenario)]
    sends = [frame for frame in frames if frame.code in SENDS and frame.kind != "response"]
    # What only Java's own parts send (recalls, timers of its own) is not a user's message.
    return [frame for frame in sends if "TIMER" not in frame.header["extFields"]["i"]]


def as_message(topic: str, body: bytes, properties: dict[str, str], flag: int) -> Message:
    """The message that a Java program must have given its producer."""
    return Message(
        topic,
        body,
        tags=properties.get("TAGS"),
        keys=properties.get("KEYS", ""),
        properties={name: value for name, value in properties.items() if name not in MEMBERS},
        delay_level=int(properties.get("DELAY", 0)),
        flag=flag,
    )


def decoded(frame: tuple[bytes, bytes | memoryview]) -> RemotingCommand:
    connection: Connection[None] = Connection()
    [command] = connection.receive(b"".join(frame))
    assert isinstance(command, RemotingCommand)
    return command


def ours(java: Captured) -> RemotingCommand:
    """The frame that our producer makes for the same message, queue and time."""
    fields = java.header["extFields"]
    properties = decode_properties(fields["i"].encode())
    sys_flag = int(fields["f"])
    settings = ProducerSettings(
        compression=CODECS.get(sys_flag & 0x700, Compression.ZLIB),
        compress_from_bytes=1 if sys_flag & 1 else 1 << 30,
    )
    is_batch = java.code == RequestCode.SEND_BATCH_MESSAGE
    elements = split_batch(memoryview(java.body)) if is_batch else []
    keys = [decode_properties(element.properties)["UNIQ_KEY"] for element in elements]
    unique_key = properties["UNIQ_KEY"]
    given = GivenKeys([*keys, unique_key], len(unique_key))
    encoder = MessageEncoder(settings, "", fields["a"], given)
    encoded: EncodedMessage | EncodedBatch
    if is_batch:
        encoded = encoder.encode_batch(
            [
                as_message(fields["b"], bytes(each.body), decode_properties(each.properties), each.flag)
                for each in elements
            ]
        )
    else:
        message = as_message(fields["b"], java.body, properties, int(fields["h"]))
        encoded = encoder.encode(message, is_half="TRAN_MSG" in properties)
    policy = SendPolicy(fields["a"], "client", "", settings)
    send = PendingSend(encoded, settings, 0)
    policy.begin(send, MessageQueue(fields["b"], fields["n"], int(fields["e"])), "address", 0)
    is_oneway = java.kind == "oneway"
    return decoded(policy.frame(send, java.header["opaque"], int(fields["g"]), is_oneway=is_oneway))


@pytest.mark.parametrize(
    "java", java_sends(), ids=lambda java: f"{java.scenario}-{java.code}-{java.header['opaque']}"
)
def test_a_send_has_the_fields_of_java_s(java: Captured) -> None:
    made = ours(java)
    java_fields = dict(java.header["extFields"])
    fields = dict(made.fields)
    assert decode_properties(fields.pop("i").encode()) == decode_properties(java_fields.pop("i").encode())
    assert fields == java_fields
    header = java.header
    assert (made.code, made.flag, made.opaque, made.version) == (
        header["code"], header["flag"], header["opaque"], header["version"],
    )  # fmt: skip
    assert made.language == "PYTHON"
    if java.code == RequestCode.SEND_BATCH_MESSAGE:
        mine, theirs = split_batch(memoryview(made.body)), split_batch(memoryview(java.body))
        assert [(each.flag, bytes(each.body)) for each in mine] == [
            (each.flag, bytes(each.body)) for each in theirs
        ]
        assert [decode_properties(each.properties) for each in mine] == [
            decode_properties(each.properties) for each in theirs
        ]
    elif not int(java_fields["f"]) & 1:
        assert bytes(made.body) == java.body


def test_there_is_something_to_compare() -> None:
    sends = java_sends()
    assert len(sends) >= 15
    assert {frame.code for frame in sends} == {310, 320}
    assert {int(frame.header["extFields"]["f"]) for frame in sends} >= {0, 4, 0x301}


def java_requests(code: RequestCode) -> list[Captured]:
    frames = [frame for scenario in SCENARIOS for frame in captured(scenario)]
    return [frame for frame in frames if frame.code == code and frame.kind == "request"]


def test_routes_are_asked_for_as_java_does() -> None:
    for java in java_requests(RequestCode.GET_ROUTEINFO_BY_TOPIC):
        fields = java.header["extFields"]
        assert GetRouteInfoByTopic(fields["topic"]).to_command().fields == fields


def test_leaving_is_told_as_java_does() -> None:
    for java in java_requests(RequestCode.UNREGISTER_CLIENT):
        fields = java.header["extFields"]
        request = UnregisterClient(fields["clientID"], producer_group=fields["producerGroup"])
        assert request.to_command().fields == fields


def test_a_producer_s_heartbeat_is_java_s() -> None:
    beats = [java for java in java_requests(RequestCode.HEART_BEAT) if b'"consumerDataSet":[]' in java.body]
    assert beats
    for java in beats:
        text = java.body.decode()
        groups = [part.partition('"')[0] for part in text.split('"groupName":"')[1:]]
        client_id = text.partition('"clientID":"')[2].partition('"')[0]
        assert encode_body(HeartbeatData(client_id, [ProducerData(group) for group in groups])) == java.body
