"""Bodies: Java's JSON both ways, standard JSON where the name server gives it."""

import pytest

from skylark.errors import RemoteProtocolError
from skylark.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumeStatsTable,
    CorrectionOffsets,
    HeartbeatData,
    LockedQueues,
    MessageQueue,
    QueueData,
    QueueOffsets,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
    decode_body,
    encode_body,
    encode_standard_body,
)

ROUTE = TopicRouteData(
    broker_datas=[
        BrokerData("broker-a", "DefaultCluster", {0: "192.168.1.20:10911", 1: "192.168.1.21:10911"}),
    ],
    queue_datas=[QueueData("broker-a", 4, 4, 6)],
)
LEGACY_ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"192.168.1.20:10911",1:"192.168.1.21:10911"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":'
    b'"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
STANDARD_ROUTE = LEGACY_ROUTE.replace(b"{0:", b'{"0":').replace(b",1:", b',"1":')


def test_routes_in_both_writings() -> None:
    assert encode_body(ROUTE) == LEGACY_ROUTE
    assert encode_standard_body(ROUTE) == STANDARD_ROUTE
    assert decode_body(LEGACY_ROUTE, TopicRouteData) == ROUTE
    assert decode_body(STANDARD_ROUTE, TopicRouteData) == ROUTE


def test_standard_json_is_ascii() -> None:
    route = TopicRouteData(order_topic_conf="brücke:4")
    assert b"br\\u00fccke:4" in encode_standard_body(route)
    assert "brücke:4".encode() in encode_body(route)


def test_queues_as_keys() -> None:
    table = TopicStatsTable({MessageQueue("T", "b", 0): TopicOffset(0, 8, 1700000000123)})
    text = encode_body(table)
    assert text == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:'
        b'{"lastUpdateTimestamp":1700000000123,"maxOffset":8,"minOffset":0}},"topicPutTps":0.0}'
    )
    assert decode_body(text, TopicStatsTable) == table


def test_integers_as_keys() -> None:
    offsets = CorrectionOffsets({0: 5, 10: 7, 2: 1})
    assert encode_body(offsets) == b'{"correctionOffsets":{0:5,2:1,10:7}}'
    assert decode_body(encode_body(offsets), CorrectionOffsets) == offsets


def test_what_fastjson_takes() -> None:
    text = b"{offsetTable:{{'brokerName':'b','queueId':'3',\"topic\":\"T\"}:\"12\",},unknown:[1,],}"
    assert decode_body(text, QueueOffsets) == QueueOffsets({MessageQueue("T", "b", 3): 12})
    assert decode_body(b'{"consumeTps":1,"offsetTable":null}', ConsumeStatsTable) == ConsumeStatsTable(
        consume_tps=1.0
    )
    assert decode_body(memoryview(b'{"lockOKMQSet":[]}'), LockedQueues) == LockedQueues()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"null", b"[]", b'{"brokerAddrTable":5}', b"\xff", b"{" * 100_000]
)
def test_what_is_no_body(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(text, ClusterInfo)


@pytest.mark.parametrize(
    "text",
    [b'{"clientID":"c","heartbeatFingerprint":99999999999}', b'{"clientID":"c","heartbeatFingerprint":"x"}'],
)
def test_numbers_out_of_range(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(text, HeartbeatData)
