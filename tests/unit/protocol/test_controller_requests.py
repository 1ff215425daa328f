"""The controller's requests and answers, against what Apache's controller 5.3.3 was recorded to say."""

import pytest

from skylark.errors import BrokerError, RemoteProtocolError
from skylark.protocol.bodies import (
    BrokerMemberGroup,
    ElectedMasterBody,
    ReplicaIdentity,
    ReplicasInfo,
    ReplicasInfoBody,
    SyncStateSet,
    encode_body,
)
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ControllerMetadata,
    ElectMaster,
    GetControllerConfig,
    GetControllerMetadata,
    GetNextBrokerId,
    GetReplicaInfo,
    GetSyncStateData,
    GroupMaster,
    NotifyBrokerRoleChanged,
    RegisterBrokerToController,
)
from skylark.protocol.requests.name_server import BrokerHeartbeat

ONE = "127.0.0.1:30911"
TWO = "127.0.0.1:30921"


def reply(code: int = 0, body: bytes = b"", remark: str | None = None, **fields: str) -> RemotingCommand:
    return RemotingCommand(code=code, flag=1, remark=remark, fields=fields, body=body)


def test_the_first_election() -> None:
    body = (
        b'{"brokerMemberGroup":{"brokerAddrs":{1:"127.0.0.1:30911"},"brokerName":"broker-a","cluster":"C1"},'
        b'"syncStateSet":[1]}'
    )
    members = BrokerMemberGroup(cluster="C1", broker_name="broker-a", broker_addrs={1: ONE})
    assert encode_body(ElectedMasterBody(broker_member_group=members, sync_state_set=(1,))) == body
    request = ElectMaster("C1", "broker-a", 1)
    assert request.to_command().fields == {
        "clusterName": "C1", "brokerName": "broker-a", "brokerId": "1", "designateElect": "false",
    }  # fmt: skip
    answer = reply(body=body, masterBrokerId="1", masterAddress=ONE, masterEpoch="1", syncStateSetEpoch="1")
    assert request.result(answer) == GroupMaster(1, ONE, 1, SyncStateSet((1,), 1))


def test_a_master_that_is_alive_is_a_good_answer() -> None:
    body = b'{"syncStateSet":[1]}'
    assert encode_body(ElectedMasterBody(sync_state_set=(1,))) == body
    answer = reply(
        2011, body, "alive", masterBrokerId="1", masterAddress=ONE, masterEpoch="1", syncStateSetEpoch="1"
    )  # fmt: skip
    assert ElectMaster("C1", "broker-a", 2).result(answer).master_broker_id == 1


def test_a_failed_election() -> None:
    with pytest.raises(BrokerError, match="Failed to elect a new master") as caught:
        ElectMaster("C1", "broker-a", 2, designate_elect=True).result(
            reply(2012, remark="Failed to elect a new master")
        )
    assert caught.value.code == 2012


@pytest.mark.parametrize("request_type", [RegisterBrokerToController, GetReplicaInfo])
def test_no_master_yet(request_type: type) -> None:
    request = (
        GetReplicaInfo("broker-a")
        if request_type is GetReplicaInfo
        else RegisterBrokerToController("C1", "broker-a", 1, ONE)
    )
    body = b'{"syncStateSet":[],"syncStateSetEpoch":0}'
    assert encode_body(SyncStateSet()) == body
    nobody = GroupMaster(None, None, 0, SyncStateSet())
    assert request.result(reply(body=body, clusterName="C1", brokerName="broker-a")) == nobody
    assert request.result(reply(body=body, masterEpoch="0")) == nobody
    with pytest.raises(RemoteProtocolError):
        request.result(reply())


def test_a_new_set() -> None:
    request = AlterSyncStateSet("broker-a", 1, 1, SyncStateSet.of({2, 1}, 1))
    command = request.to_command()
    assert command.fields == {"brokerName": "broker-a", "masterBrokerId": "1", "masterEpoch": "1"}
    assert command.body == b'{"syncStateSet":[1,2],"syncStateSetEpoch":1}'
    assert AlterSyncStateSet.from_command(command) == request
    answer = reply(body=b'{"syncStateSet":[1,2],"syncStateSetEpoch":2}', newSyncStateSetEpoch="2")
    assert request.result(answer) == SyncStateSet((1, 2), 2)


def test_replicas() -> None:
    body = (
        b'{"replicasInfoTable":{"broker-a":{"inSyncReplicas":[{"alive":true,"brokerAddress":"127.0.0.1:30911",'
        b'"brokerId":1,"brokerName":"broker-a"}],"masterAddress":"127.0.0.1:30911","masterBrokerId":1,'
        b'"masterEpoch":1,"notInSyncReplicas":[],"syncStateSetEpoch":2}}}'
    )
    replica = ReplicaIdentity("broker-a", 1, ONE, alive=True)
    table = ReplicasInfoBody({"broker-a": ReplicasInfo(1, 2, 1, ONE, [replica], [])})
    assert encode_body(table) == body
    request = GetSyncStateData(["broker-a"])
    assert request.to_command().body == b'["broker-a"]'
    assert request.result(reply(body=body)) == table
    assert GetSyncStateData.from_command(RemotingCommand(code=1006)).body is None


def test_a_role_change() -> None:
    master = GroupMaster(2, TWO, 2, SyncStateSet((2,), 3))
    command = NotifyBrokerRoleChanged.of(master).to_command(oneway=True)
    assert (command.code, command.flag) == (1008, 2)
    assert command.fields == {
        "masterAddress": TWO, "masterBrokerId": "2", "masterEpoch": "2", "syncStateSetEpoch": "3",
    }  # fmt: skip
    assert command.body == b'{"syncStateSet":[2],"syncStateSetEpoch":3}'
    assert NotifyBrokerRoleChanged.from_command(command).master == master


def test_ids() -> None:
    answer = reply(nextBrokerId="1", clusterName="C1", brokerName="broker-a")
    assert GetNextBrokerId("C1", "broker-a").result(answer) == 1
    assert ApplyBrokerId("C1", "broker-a", 1, f"{ONE};1700000000000").to_command().fields == {
        "clusterName": "C1", "brokerName": "broker-a", "appliedBrokerId": "1",
        "registerCheckCode": "127.0.0.1:30911;1700000000000",
    }  # fmt: skip


def test_metadata_and_settings() -> None:
    fields = {
        "group": "group1", "controllerLeaderId": "n0", "controllerLeaderAddress": "127.0.0.1:9878",
        "isLeader": "true", "peers": "n0:127.0.0.1:9878;",
    }  # fmt: skip
    metadata = GetControllerMetadata().result(RemotingCommand(code=0, flag=1, fields=fields))
    assert metadata == ControllerMetadata("group1", "n0", "127.0.0.1:9878", True, "n0:127.0.0.1:9878;")
    assert metadata.to_fields() == fields
    assert GetControllerConfig().result(reply(body=b"a=1\n")) == "a=1\n"


def test_clean_and_heartbeat_use_the_names_of_the_wire() -> None:
    clean = CleanBrokerData("C1", "broker-a", "1;2", is_clean_living_broker=True)
    assert clean.to_command().fields == {
        "clusterName": "C1", "brokerName": "broker-a", "brokerControllerIdsToClean": "1;2",
        "isCleanLivingBroker": "true",
    }  # fmt: skip
    beat = BrokerHeartbeat("C1", ONE, "broker-a", 1, 3, 100, 90, 10_000, 7)
    assert beat.to_command().fields == {
        "clusterName": "C1", "brokerAddr": ONE, "brokerName": "broker-a", "brokerId": "1", "epoch": "3",
        "maxOffset": "100", "confirmOffset": "90", "heartbeatTimeoutMills": "10000", "electionPriority": "7",
    }  # fmt: skip
