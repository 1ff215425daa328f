"""The table of rights: complete for every handler, and as strict as intended."""

import msgspec
import pytest

from skylark.auth.rights import ADMINISTRATION, HOT_FIELDS, RECORD_RIGHTS, RIGHTS, needed_accesses
from skylark.broker.request_routes import SERVED, UNSUPPORTED
from skylark.controller.handlers import ROUTES as CONTROLLER_ROUTES
from skylark.errors import RemoteProtocolError
from skylark.namesrv.handlers import ROUTES
from skylark.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockRequest,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    encode_body,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.connection import HOT_REQUESTS

CLUSTER = "C"
NO_ROW = {
    # Only clients serve them.
    *(39, 40, 220, 221, 326, 200_073),
    # Nobody does: reserved, filter servers, RocketMQ 4's access control, the log of jRaft.
    *(13, 47, 209, 210, 211, 212, 213, 214, 301, 302),
    *(50, 51, 52, 53, 54, 1014, 1015, 1016, 1017, 1018, 200_072),
}


def accesses(code: int, body: bytes = b"", fields: dict[str, str] | None = None) -> list[str]:
    needed = needed_accesses(RemotingCommand(code=code, fields=fields or {}, body=body), CLUSTER)
    assert needed is not None
    return [f"{access.resource} {access.action_words}" for access in needed]


HANDLED = {*SERVED, *ROUTES, *CONTROLLER_ROUTES, *(request.code for request in HOT_REQUESTS)}


@pytest.mark.parametrize("code", sorted(HANDLED))
def test_every_registered_handler_has_a_row(code: int) -> None:
    assert code in RIGHTS, f"{RequestCode(code).name} would be refused to everybody but super users"


def test_every_known_code_has_a_row_or_a_reason() -> None:
    assert set(RequestCode) - set(RIGHTS) == NO_ROW
    assert NO_ROW & set(RIGHTS) == set()
    assert {code for code in NO_ROW if code in SERVED or code in ROUTES} == set()
    assert set(RECORD_RIGHTS) < set(RIGHTS)
    assert HOT_FIELDS.keys() == {request.code for request in HOT_REQUESTS}
    assert UNSUPPORTED.isdisjoint(SERVED)


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (310, {"a": "PG", "b": "orders"}, ["Topic:orders Pub"]),
        (310, {"a": "mine", "b": "%RETRY%others"}, ["Group:others Sub"]),
        (320, {"a": "PG", "b": "orders"}, ["Topic:orders Pub"]),
        (10, {"topic": "orders"}, ["Topic:orders Pub"]),
        (11, {"topic": "t", "consumerGroup": "g"}, ["Topic:t Sub", "Group:g Sub"]),
        (11, {"topic": "%RETRY%other", "consumerGroup": "g"}, ["Group:other Sub", "Group:g Sub"]),
        (361, {"topic": "t", "consumerGroup": "g"}, ["Topic:t Sub", "Group:g Sub"]),
        (15, {"topic": "t", "consumerGroup": "g"}, ["Topic:t Sub|Update", "Group:g Sub|Update"]),
        (29, {"topic": "t"}, ["Topic:t Get|Sub"]),
        (30, {"topic": "t"}, ["Topic:t Get|Sub"]),
        (25, {}, ["Cluster:C Update"]),
        (26, {}, ["Cluster:C Get"]),
        (17, {"topic": "t"}, ["Topic:t Create"]),
        (103, {"clusterName": "other"}, ["Cluster:other Update"]),
        (105, {"topic": "t"}, ["Topic:t Get|Pub|Sub"]),
        (105, {"topic": "%RETRY%g"}, ["Group:g Get|Sub"]),
        (105, {"topic": "TBW102"}, []),
        (106, {}, []),
        (208, {"consumerGroup": "g", "topicList": "a;b"}, ["Group:g Get", "Topic:a Get", "Topic:b Get"]),
        (308, {"filterGroups": "a,b", "topic": "t"}, ["Group:a Get", "Group:b Get", "Topic:t Get"]),
        (200050, {"topic": "t", "consumerGroup": "g"}, ["Group:g Sub", "Topic:t Sub"]),
        (200051, {"topic": "%RETRY%g_t", "consumerGroup": "g"}, ["Group:g Sub", "Topic:t Sub"]),
        (200051, {"topic": "%RETRY%h_t", "consumerGroup": "g"}, ["Group:g Sub", "Group:h_t Sub"]),
        (200053, {"topic": "%RETRY%g+t", "consumerGroup": "g"}, ["Group:g Sub", "Topic:t Sub"]),
        (3001, {"username": "x"}, ["Cluster:C Update"]),
        (3005, {}, ["Cluster:C Get"]),
    ],
)
def test_the_rights_of_a_request(code: int, fields: dict[str, str], expected: list[str]) -> None:
    assert accesses(code, fields=fields) == expected


def test_the_rights_in_bodies() -> None:
    subscription = SubscriptionData(topic="t", sub_string="*")
    retry = SubscriptionData(topic="%RETRY%g", sub_string="*")
    data = ConsumerData("g", subscription_data_set=[subscription, retry])
    heartbeat = encode_body(HeartbeatData("id", consumer_data_set=[data]))
    assert accesses(34, heartbeat) == ["Group:g Sub", "Topic:t Sub", "Group:g Sub"]
    assert accesses(34, encode_body(HeartbeatData("id"))) == []
    lock = encode_body(LockRequest(consumer_group="g", client_id="id", mq_set=[MessageQueue("t", "b", 0)]))
    assert accesses(41, lock) == accesses(42, lock) == ["Group:g Sub", "Topic:t Sub"]
    assert accesses(200, encode_body(SubscriptionGroupConfig("g"))) == ["Group:g Create|Update"]
    acks = b'{"acks":[{"c":"g","t":"t"},{"c":"h","t":"%RETRY%h"}],"brokerName":"b"}'
    assert accesses(200151, acks) == ["Topic:t Sub", "Group:g Sub", "Group:h Sub", "Group:h Sub"]


def test_bodies_are_read_as_their_handlers_read_them() -> None:
    """What a handler understands and the gate does not would need no rights, or be refused to all."""
    long_names = b'{"acks":[{"consumerGroup":"g","topic":"t"}],"brokerName":"b"}'
    assert accesses(200151, long_names) == ["Topic:t Sub", "Group:g Sub"]
    consumer = {
        "groupName": "g", "consumeType": 1, "messageModel": 1, "consumeFromWhere": 0, "unitMode": False,
        "subscriptionDataSet": [{"topic": "t", "subString": "*", "classFilterMode": False}],
    }  # fmt: skip
    heartbeat = {"clientID": "id", "consumerDataSet": [consumer]}
    assert accesses(34, msgspec.json.encode(heartbeat)) == ["Group:g Sub", "Topic:t Sub"]  # C++
    capitals = {"ClientID": "id", "ConsumerDataSet": [{"GroupName": "g", "SubscriptionDataSet": []}]}
    assert accesses(34, msgspec.json.encode(capitals)) == ["Group:g Sub"]  # .NET


@pytest.mark.parametrize("code", [18, 34, 41, 46, 200, 225, 400, 401, 200151])
@pytest.mark.parametrize("body", [b"", b"x", b"[]", b'{"acks":3}', b"1"])
def test_a_body_that_cannot_be_read_is_no_access(code: int, body: bytes) -> None:
    try:
        needed = needed_accesses(RemotingCommand(code=code, body=body), CLUSTER)
    except RemoteProtocolError:
        return
    assert needed == []


def test_administration_is_what_changes_something_else_than_messages() -> None:
    assert {17, 18, 25, 200, 207, 215, 222, 3001, 3008} <= ADMINISTRATION
    assert ADMINISTRATION.isdisjoint({310, 320, 11, 15, 34, 36, 103, 904, 3005})
