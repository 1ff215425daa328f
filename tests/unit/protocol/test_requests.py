"""Requests: one for every code that anybody serves, fields as Java reads them, answers as values."""

import zlib

import pytest

from skylark.errors import BrokerError, RemoteProtocolError, TopicNotExist
from skylark.protocol.bodies import (
    DataVersion,
    HeartbeatData,
    MessageQueue,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicRouteData,
    encode_body,
)
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests import REQUESTS
from skylark.protocol.requests.admin import (
    AuthCreateUser,
    AuthGetUser,
    AuthListUser,
    GetBrokerConfig,
    GetTimerCheckPoint,
)
from skylark.protocol.requests.client import Heartbeat, LockBatchMq
from skylark.protocol.requests.name_server import GetNamesrvConfig, RegisterBroker, RegisterTopicInNamesrv
from skylark.protocol.requests.offset import GetMaxOffset, QueryConsumerOffset, UpdateConsumerOffset
from skylark.protocol.requests.pop import PollingInfo, PopMessage
from skylark.protocol.requests.pull import PullMessage, QueryMessage
from skylark.protocol.requests.send import SendMessageV2
from tests.unit.protocol.golden_frames import captured

# Reserved numbers, access control of 4.x, a jRaft controller's own log, static topics.
WITHOUT_REQUEST = {
    13, 22, 23, 27, 47, 50, 51, 52, 53, 54, 209, 210, 211, 212, 213, 214, 301, 302, 513, 902, 903, 905,
    1014, 1015, 1016, 1017, 1018, 200_072,
}  # fmt: skip


def command(**fields: str) -> RemotingCommand:
    return RemotingCommand(code=0, fields=fields)


def test_every_code_has_a_request_or_a_reason() -> None:
    assert {code for code in RequestCode if code not in REQUESTS} == WITHOUT_REQUEST
    for code, request in REQUESTS.items():
        assert request.code is code


def test_a_request_knows_both_directions() -> None:
    request = GetMaxOffset("orders", 3)
    asked = request.to_command()
    assert (asked.code, asked.flag, asked.language, asked.version) == (30, 0, "PYTHON", 479)
    assert asked.fields == {"topic": "orders", "queueId": "3"}
    assert GetMaxOffset.from_command(asked) == request
    assert request.result(asked.reply(fields={"offset": "12"})) == 12
    assert request.to_command(oneway=True).is_oneway


def test_bad_answers() -> None:
    request = GetMaxOffset("orders", 3)
    asked = request.to_command()
    with pytest.raises(TopicNotExist, match="gone"):
        request.result(asked.reply(ResponseCode.TOPIC_NOT_EXIST, "gone"))
    for fields in ({}, {"offset": "x"}, {"offset": str(1 << 63)}):
        with pytest.raises(RemoteProtocolError):
            request.result(asked.reply(fields=fields))
    with pytest.raises(RemoteProtocolError):
        LockBatchMq.from_command(RemotingCommand(code=41, body=b"nonsense"))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": "t"},
        {"topic": "t", "queueId": "x"},
        {"topic": "t", "queueId": ""},
        {"topic": "t", "queueId": "2147483648"},
        {"topic": "t", "queueId": "1.5"},
        {"topic": "t", "queueId": "9" * 5000},
    ],
)
def test_missing_and_mistyped_fields(fields: dict[str, str]) -> None:
    with pytest.raises(RemoteProtocolError, match="GetMaxOffset"):
        GetMaxOffset.from_fields(fields)


@pytest.mark.parametrize("queue_id", [-1, 1_000_000_000])
def test_numbers_in_range_are_the_handler_s_business(queue_id: int) -> None:
    assert GetMaxOffset.from_fields({"topic": "t", "queueId": str(queue_id)}).queue_id == queue_id


def test_unknown_fields_are_ignored_and_empty_numbers_are_none() -> None:
    fields = {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": "1",
        "commitOffset": "",
        "ReqT": "0",
        "*body": "x",
    }
    assert UpdateConsumerOffset.from_fields(fields) == UpdateConsumerOffset("g", "t", 1)
    assert (
        QueryConsumerOffset.from_fields(fields | {"setZeroIfNotFound": "perhaps"}).set_zero_if_not_found
        is False
    )


def test_codes_that_are_values_are_not_errors() -> None:
    pull = PullMessage("g", "t", 0, 0, 32, 0, 0, 0, 0)
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5"}
    for code in (0, 19, 20, 21):
        result = pull.result(pull.to_command().reply(code, fields=fields, body=b"r"))
        assert (result.code, result.reply.next_begin_offset, result.records) == (code, 5, b"r")
    with pytest.raises(BrokerError):
        pull.result(pull.to_command().reply(16))
    pop = PopMessage("g", "t", -1, 32, 60_000, 15_000)
    assert pop.result(pop.to_command().reply(ResponseCode.POLLING_TIMEOUT)).reply is None
    send = SendMessageV2("g", "t", "TBW102", 4, 0, 0, 0, 0)
    stored = {"msgId": "1", "queueId": "0", "queueOffset": "7"}
    for code in (0, 10, 11, 12):
        assert send.result(send.to_command().reply(code, fields=stored)).code == code
    with pytest.raises(BrokerError):
        send.result(send.to_command().reply(2, fields=stored))


def test_answers_that_are_bytes_text_or_nothing() -> None:
    for request in (QueryMessage("t", "k", 1, 0, 0), GetTimerCheckPoint()):
        assert request.result(request.to_command().reply(body=b"raw")) == b"raw"
    assert GetNamesrvConfig().result(command().reply(body=b"a=b\n")) == "a=b\n"
    config = GetBrokerConfig().result(command().reply(fields={"version": "{}"}, body=b"a=b\n"))
    assert (config.version, config.text) == ("{}", "a=b\n")
    assert PollingInfo("g", "t", 0).result(command().reply(fields={"pollingNum": "3"})) == 3
    assert AuthGetUser("u").result(command().reply()) is None
    assert AuthCreateUser.from_command(command(username="u")) == AuthCreateUser("u")
    assert AuthCreateUser("u").to_command().body == b""
    assert AuthListUser().result(command().reply()) is None


# --- Heartbeats ---


def heartbeat(body: bytes) -> HeartbeatData:
    return Heartbeat.from_command(RemotingCommand(code=34, body=body)).body


def test_heartbeats_of_dotnet_begin_names_with_capitals() -> None:
    body = (
        b'{"ClientID":"10.0.0.1@7","ConsumerDataSet":[{"GroupName":"G","MessageModel":"CLUSTERING",'
        b'"SubscriptionDataSet":[{"Topic":"T","SubString":"*"}]}],"ProducerDataSet":[{"GroupName":"P"}]}'
    )
    data = heartbeat(body)
    assert data.client_id == "10.0.0.1@7"
    assert data.producer_data_set[0].group_name == "P"
    assert data.consumer_data_set[0].subscription_data_set[0].topic == "T"


def test_heartbeats_of_cpp_leave_consumers_out() -> None:
    data = heartbeat(b'{"clientID":"7-10.0.0.1@DEFAULT","producerDataSet":[{"groupName":"P"}]}\n')
    assert data.consumer_data_set == []
    assert (data.heartbeat_fingerprint, data.without_sub) == (0, False)


def test_heartbeats_of_cpp_have_numbers_for_constants_and_text_for_numbers() -> None:
    body = (
        b'{"clientID":"9212-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"GID-x","messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":'
        b'"1794734865968","topic":"%RETRY%GID-x"},{"codeSet":[0,0],"subString":"TagA || TagB","subVersion":'
        b'"1794734865968","tagsSet":["TagA","TagB"],"topic":"T-x"}]}]}\n'
    )
    data = heartbeat(body)
    assert data.client_id == "9212-127.0.0.1@DEFAULT"
    [group] = data.consumer_data_set
    assert (group.consume_type, group.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert group.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    retry, own = group.subscription_data_set
    assert (retry.topic, retry.sub_version) == ("%RETRY%GID-x", 1_794_734_865_968)
    assert (own.sub_string, own.tags_set) == ("TagA || TagB", ["TagA", "TagB"])


def test_heartbeats_of_go_have_their_own_capitals() -> None:
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","messageModel":"BroadCasting"}]}'
    [consumer] = heartbeat(body).consumer_data_set
    assert consumer.message_model == "BROADCASTING"
    assert consumer.consume_type is None


def test_null_members_of_a_heartbeat() -> None:
    data = heartbeat(b'{"clientID":"c","consumerDataSet":null,"producerDataSet":[{"groupName":"P"},]}')
    assert data.consumer_data_set == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"clientID":5', b'{"ClientID":[]}', b'{"clientID":null}', b"\xff", b"[" * 100_000],
)
def test_what_is_no_heartbeat(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        heartbeat(body)


# --- Registration ---

VERSION = DataVersion(state_version=0, timestamp=1700000000000, counter=1)
# The specification's example, before compression: one topic, no filter servers, no mappings.
PLAIN = bytes.fromhex(
    "000000387b22636f756e746572223a312c22737461746556657273696f6e223a302c2274696d657374616d70223a313730303030"
    "303030303030307d000000010000001d546f706963546573742034203420362053494e474c455f544147207b7d000000025b5d"
    "00000000"
)


def register(body: bytes, *, compressed: bool) -> RegisterBroker:
    return RegisterBroker("b", "h:1", "c", "h:2", 0, compressed=compressed, body=body)


def test_a_compressed_registration() -> None:
    body = register(zlib.compress(PLAIN, 9), compressed=True).topics(479)
    table = body.topic_config_serialize_wrapper
    assert table.data_version == VERSION
    assert table.topic_config_table == {
        "TopicTest": TopicConfig("TopicTest", read_queue_nums=4, write_queue_nums=4, perm=6)
    }
    assert body.filter_server_list == []
    # Before 5.0 there is no section of mappings, and no attributes.
    old = PLAIN[:-4].replace(
        b"\x00\x00\x00\x1dTopicTest 4 4 6 SINGLE_TAG {}", b"\x00\x00\x00\x1aTopicTest 4 4 6 SINGLE_TAG"
    )
    table = register(zlib.compress(old), compressed=True).topics(409).topic_config_serialize_wrapper
    assert list(table.topic_config_table) == ["TopicTest"]


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        zlib.compress(PLAIN)[:-5],
        zlib.compress(b""),
        zlib.compress(PLAIN[:40]),
        zlib.compress(b"\xff\xff\xff\xff" + PLAIN[4:]),
        zlib.compress(PLAIN.replace(b"TopicTest 4 4 6", b"TopicTest 4 x 6")),
        zlib.compress(b"\0" * (65 << 20)),
    ],
    ids=["not zlib", "cut off", "empty", "short", "negative length", "not a number", "bomb"],
)
def test_a_broken_compressed_registration(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        register(body, compressed=True).topics(479)


def test_a_registration_without_topics() -> None:
    assert register(b"", compressed=False).topics(479) == RegisterBrokerBody()


def test_captured_registrations_are_read() -> None:
    read = 0
    for frame in captured():
        if frame.kind == "response" or frame.code != RequestCode.REGISTER_BROKER or not frame.body:
            continue
        fields = frame.header["extFields"]
        request = RegisterBroker.from_command(RemotingCommand(code=103, fields=fields, body=frame.body))
        assert request.topics(frame.header["version"]).topic_config_serialize_wrapper.topic_config_table
        read += 1
    assert read > 20


def test_a_route_as_a_request_body() -> None:
    route = TopicRouteData(queue_datas=[QueueData("b", 4, 4, 6)])
    asked = RegisterTopicInNamesrv("t", route).to_command()
    assert asked.body == encode_body(route)
    assert RegisterTopicInNamesrv.from_command(asked).body == route


def test_message_queues_sort_by_topic_then_broker_then_queue() -> None:
    queues = [
        MessageQueue("b", "a", 0),
        MessageQueue("a", "b", 0),
        MessageQueue("a", "a", 10),
        MessageQueue("a", "a", 9),
    ]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]
