"""Apache's broker as oracle: which requests of a user without rights both brokers refuse, code by code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from skylark import Admin
from skylark.auth.rights import RIGHTS
from skylark.broker.request_routes import SERVED
from skylark.errors import RemotingError
from skylark.protocol.bodies import (
    AssignmentRequest,
    ConsumerData,
    HeartbeatData,
    LockRequest,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    encode_body,
)
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import BODY_MEMBER, Buffer, RemotingCommand
from skylark.protocol.connection import HOT_REQUESTS
from skylark.protocol.requests import REQUESTS
from skylark.protocol.requests.pop import BatchAck, BatchAckBody
from skylark.protocol.signature import Signer
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.settings.credentials import Credentials
from tests.interop.servers import ApacheServers
from tests.interop.test_auth_java import ROOT, SETTINGS
from tests.support.skylark_servers import SkylarkServers

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.nightly]

USER = Credentials("nobody", "nobody-secret")
TIMEOUT_S = 20.0
BODIES: dict[int, object] = {
    RequestCode.HEART_BEAT: HeartbeatData(
        "id", consumer_data_set=[ConsumerData("g", subscription_data_set=[SubscriptionData(topic="t")])]
    ),
    RequestCode.BATCH_ACK_MESSAGE: BatchAckBody(acks=[BatchAck(group="g", topic="t", bits="AQ==")]),
    RequestCode.LOCK_BATCH_MQ: LockRequest(
        consumer_group="g", client_id="id", mq_set=[MessageQueue("t", "b", 0)]
    ),
    RequestCode.UNLOCK_BATCH_MQ: LockRequest(
        consumer_group="g", client_id="id", mq_set=[MessageQueue("t", "b", 0)]
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig("g"),
    RequestCode.QUERY_ASSIGNMENT: AssignmentRequest(topic="t", consumer_group="g", client_id="id"),
}
OPEN_IN_ROCKETMQ = {
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_TIMER_METRICS,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
    RequestCode.SET_COMMITLOG_READ_MODE,
    RequestCode.POP_ROLLBACK,
    RequestCode.BATCH_ACK_MESSAGE,
}
"""What RocketMQ 5.3.3 serves to every user and Skylark does not."""
NOT_COMPARED = {
    # Rights of the message that is found: there is none here.
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    # Bodies that RocketMQ reads, with errors of their own if there is none.
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
}
CODES = sorted({*SERVED, *(request.code for request in HOT_REQUESTS)} - NOT_COMPARED)


class Probe:
    """A signed request of a code with all fields that it may have."""

    def __init__(self, code: RequestCode) -> None:
        self.code = code

    def frame(self, opaque: int) -> list[Buffer]:
        body = BODIES.get(self.code)
        command = RemotingCommand(
            code=self.code,
            opaque=opaque,
            version=479,
            fields=sample_fields(self.code),
            body=b"" if body is None else encode_body(body),
        )
        return Signer(USER).encode(command)

    def result(self, reply: RemotingCommand) -> RemotingCommand:
        return reply


def sample_fields(code: RequestCode) -> dict[str, str]:
    if code not in REQUESTS:
        return {}
    fields = {}
    for member in msgspec.structs.fields(REQUESTS[code]):
        kinds: tuple[Any, ...] = (member.type, *get_args(member.type))
        if member.encode_name != BODY_MEMBER:
            is_text = str in kinds
            fields[member.encode_name] = "t" if is_text else "false" if bool in kinds else "0"
    return fields


def refused_codes(broker: str) -> set[RequestCode]:
    """The codes that a broker refuses to a user without an ACL."""
    refused = set()
    with BlockingConnection(broker) as connection:
        for code in CODES:
            try:
                (asked,) = connection.ask_many([Probe(code)], timeout_s=TIMEOUT_S)
                reply = connection.reply(asked)
            except RemotingError:
                continue  # served, without an answer
            if reply.code == ResponseCode.NO_PERMISSION:
                # RocketMQ reads all fields of some requests first, and ours are no good.
                assert re.search("has no permission|parse authorization", reply.remark or ""), reply.remark
                refused.add(code)
    return refused


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with SkylarkServers(tmp_path_factory.mktemp("ours"), SETTINGS) as servers:
        create_user(servers.name_server)
        yield servers.broker


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ApacheServers(Path(tmp_path_factory.mktemp("theirs")), SETTINGS) as servers:
        create_user(servers.name_server)
        yield servers.broker


def create_user(name_server: str) -> None:
    with Admin(namesrv=name_server, client=ROOT) as admin:
        admin.users.create(USER.access_key, USER.secret_key)


def test_what_rocketmq_refuses_is_refused_and_the_differences_are_known(ours: str, theirs: str) -> None:
    here, there = refused_codes(ours), refused_codes(theirs)
    assert there - here == set(), sorted(code.name for code in there - here)
    differences = here - there
    assert differences == OPEN_IN_ROCKETMQ, sorted(code.name for code in differences ^ OPEN_IN_ROCKETMQ)
    assert {code for code in CODES if code not in here} == {code for code in CODES if not RIGHTS[code]}
