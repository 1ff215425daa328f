"""Apache's admin tool, unchanged, with our servers: what it prints, command by command."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from skylark.model import java
from skylark.protocol.requests.send import SendReply
from tests.interop.admin_script import (
    GROUP,
    LIVE,
    LIVE_CONSUMERS,
    LIVE_PRODUCERS,
    LIVE_TOPIC,
    MESSAGES,
    QUEUES,
    TOPIC,
    prepare,
    script,
    unique_key,
)
from tests.interop.client_driver import ClientDriver
from tests.interop.mqadmin import MqAdmin, admin_classpath
from tests.interop.servers import Servers, make_servers
from tests.interop.versions import MAIN, SERVERS

pytestmark = pytest.mark.interop("java", "mvn")

REFUSED = {
    "sendMessage refused": "No route info of this topic: Made",
    # It looks for the configuration before it makes one.
    "updateTopic order": "CODE: 22  DESC: No config item, Namespace: ORDER_TOPIC_CONFIG Key: Ordered",
    "updateOrderConf gone": "CODE: 22  DESC: No config item, Namespace: ORDER_TOPIC_CONFIG Key: Ordered",
    "updateBrokerConfig refused": "CODE: 16  DESC: Can not update config in black list.",
    "getBrokerEpoch": "CODE: 1  DESC: this request only for controllerMode",
    "consumerProgress deleted": "CODE: 206  DESC: Not found the consumer group consume stats",
    "topicRoute deleted": "CODE: 17  DESC: No topic route info in name server for the topic: Made",
    "topicStatus unknown": "CODE: 17  DESC: No topic route info in name server for the topic: NeverHeardOf",
}
"""Commands that fail, and the reason that they give."""


class Run:
    """One run of the script, and what it was run on."""

    def __init__(
        self, servers: Servers, version: str, live: tuple[str, str], sent: list[SendReply], directory: Path
    ) -> None:
        self.servers = servers
        self.live = live
        self.sent = sent
        self.directory = directory
        self.commands = script(servers.broker, live, sent, directory)
        tool = MqAdmin(admin_classpath(version), servers.name_server, directory)
        texts = tool.run(*(command for _, command in self.commands))
        self._printed = {label: text for (label, _), text in zip(self.commands, texts, strict=True)}

    def __getitem__(self, label: str) -> str:
        return self._printed[label]

    def rows(self, label: str) -> list[list[str]]:
        """The words of each line below the head of a table."""
        lines = self[label].splitlines()
        head = next(number for number, line in enumerate(lines) if line.startswith("#"))
        return [line.split() for line in lines[head + 1 :] if line.strip()]

    def members(self, label: str, separator: str = ":") -> dict[str, str]:
        """What stands left and right of the separator, by line."""
        pairs = (line.split(separator, 1) for line in self[label].splitlines() if separator in line)
        return {name.strip(): value.strip() for name, value in pairs}

    def document(self, label: str) -> Any:
        text = self[label]
        return java.loads(text[text.index("{") :].encode())

    def exported(self, name: str) -> Any:
        return java.loads((self.directory / "export" / name).read_bytes())


class Runs:
    """The run that all tests look at, until one of them fails: its next attempt looks at a new run."""

    def __init__(self, kind: str, version: str, directories: pytest.TempPathFactory) -> None:
        """`version` is the tool's."""
        self._kind = kind
        self._version = version
        self._directories = directories
        self._stack = ExitStack()
        self._latest: Run | None = None

    def latest(self, *, anew: bool) -> Run:
        """The whole script, on servers of its own, while a consumer and a producer are connected."""
        if anew:
            self.close()
        if self._latest is None:
            servers = self._stack.enter_context(make_servers(self._kind, self._directories.mktemp("servers")))
            driver = ClientDriver(MAIN, servers.name_server, self._directories.mktemp("live"), LIVE)
            live = self._stack.enter_context(driver.live())
            directory = self._directories.mktemp("admin")
            self._latest = Run(servers, self._version, live, prepare(servers.broker), directory)
        return self._latest

    def close(self) -> None:
        latest, self._latest = self._latest, None
        self._stack.close()
        assert latest is None or latest.servers.complaints() == ""


@pytest.fixture(scope="module", params=SERVERS)
def runs(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    made = Runs(kind, request.param, tmp_path_factory)
    yield made
    made.close()


@pytest.fixture
def run(runs: Runs, request: pytest.FixtureRequest) -> Run:
    return runs.latest(anew=getattr(request.node, "execution_count", 1) > 1)


def test_forty_commands_and_more_are_tried(run: Run) -> None:
    names = {command[0] for _, command in run.commands}
    assert len(names) >= 50


def test_commands_fail_for_the_expected_reasons_alone(run: Run) -> None:
    failed = {label for label, _ in run.commands if "Exception: " in run[label]}
    assert failed == set(REFUSED)
    for label, reason in REFUSED.items():
        assert reason in run[label]


# --- Topics ---


def queue_data(run: Run, label: str) -> dict[str, Any]:
    [data] = run.document(label)["queueDatas"]
    assert isinstance(data, dict)
    return data


def test_topics_are_made_and_changed(run: Run) -> None:
    assert f"create topic to {run.servers.broker} success." in run["updateTopic"]
    assert "attributes={+message.type=FIFO}" in run["updateTopic with attributes"]
    made = {"brokerName": "broker-a", "readQueueNums": 6, "writeQueueNums": 5, "topicSysFlag": 0}
    assert queue_data(run, "topicRoute") == {**made, "perm": 6}
    assert f"update topic perm from 6 to 4 in {run.servers.broker} success." in run["updateTopicPerm"]
    address = f"{{0={run.servers.broker}}}"
    assert run.rows("topicRoute read only")[0] == ["DefaultCluster", "broker-a", address, "6", "5", "4"]
    assert f"submit batch of topic config to {run.servers.broker} success" in run["updateTopicList"]


def test_topics_are_listed(run: Run) -> None:
    topics = set(run["topicList"].split())
    assert {TOPIC, "Made", "Ordered", "ListedA", "ListedB", LIVE_TOPIC} <= topics
    assert {"TBW102", "SELF_TEST_TOPIC", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"} <= topics
    assert f"%RETRY%{LIVE_CONSUMERS}" in topics
    rows = run.rows("topicList with clusters")
    assert ["DefaultCluster", TOPIC, GROUP] in rows
    assert ["DefaultCluster", "Made"] in rows
    assert run["topicClusterList"].split() == ["DefaultCluster"]


def test_the_order_of_a_topic_is_configured(run: Run) -> None:
    assert "set broker orderConf. isOrder=true, orderConf=[broker-a:2]" in run["updateTopic order"]
    assert "orderConf=[broker-a:2]" in run["updateOrderConf get"]
    assert "update orderConf success" in run["updateOrderConf put"]
    assert "orderConf=[broker-a:1]" in run["updateOrderConf got"]
    assert "delete orderConf success" in run["updateOrderConf delete"]


def test_queues_of_a_topic(run: Run) -> None:
    rows = run.rows("topicStatus")
    assert [row[:4] for row in rows[:QUEUES]] == [["broker-a", str(n), "0", "2"] for n in range(QUEUES)]
    # Each with the time of its last message.
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", " ".join(row[4:])) for row in rows[:QUEUES]
    )
    shares = run.document("allocateMQ")["result"]
    assert {ip: [queue["queueId"] for queue in queues] for ip, queues in shares.items()} == {
        "10.0.0.2": [0, 1],
        "10.0.0.1": [2, 3],
    }


# --- Messages ---


def test_messages_are_sent(run: Run) -> None:
    [row] = run.rows("sendMessage")
    assert (row[0], row[2]) == ("broker-a", "SEND_OK")
    [row] = run.rows("sendMessage to queue")
    assert row[:3] == ["broker-a", "3", "SEND_OK"]
    rows = run.rows("checkMsgSendRT")
    assert [row[:3] for row in rows[:3]] == [["broker-a", queue, "true"] for queue in "010"]
    assert run["sendMsgStatus"].count("sendStatus=SEND_OK") == 2


def test_a_message_is_found_by_its_ids(run: Run) -> None:
    found = run.members("queryMsgById")
    assert found["OffsetID"] == run.sent[5].msg_id
    assert (found["Topic"], found["Tags"], found["Keys"]) == (TOPIC, "[TagB]", "[key-5 all]")
    assert (found["Queue ID"], found["Queue Offset"]) == ("1", "1")
    assert (found["Store Host"], found["Reconsume Times"]) == (run.servers.broker, "0")
    assert f"UNIQ_KEY={unique_key(5)}" in found["Properties"]
    found = run.members("queryMsgByUniqueKey")
    assert (found["Keys"], found["Queue ID"], found["Queue Offset"]) == ("[key-6 all]", "2", "1")
    found = run.members("queryMsgByOffset")
    assert (found["OffsetID"], found["Keys"]) == (run.sent[7].msg_id, "[key-7 all]")


def test_messages_are_found_by_a_key(run: Run) -> None:
    rows = sorted(row[:3] for row in run.rows("queryMsgByKey"))  # 5.5 adds a column
    assert rows == [[unique_key(n), str(n % QUEUES), str(n // QUEUES)] for n in range(MESSAGES)]


def test_a_client_consumes_a_message_on_demand(run: Run) -> None:
    assert "consumeResult=CR_SUCCESS" in run["queryMsgById direct"]


def test_messages_are_printed(run: Run) -> None:
    ids = re.findall(r"MSGID: (\S+)", run["printMsg"])
    assert {unique_key(n) for n in range(QUEUES)} <= set(ids)
    assert len(ids) == QUEUES + 1, "those with the first tag, and one of the tool's own"
    assert run["printMsg"].count("BODY: body") == QUEUES
    assert "BODY: to the third" in run["printMsg"]
    assert re.findall(r"MSGID: (\S+)", run["printMsgByQueue"])[:2] == [unique_key(3), unique_key(7)]
    assert dict(re.findall(r"Tag: (\S+) +Count: (\d+)", run["printMsgByQueue"])) == {
        "TagA": "1",
        "TagB": "1",
        "TagC": "1",
    }
    assert re.findall(r"MSGID: (\S+)", run["consumeMessage"]) == [unique_key(6)]


def test_entries_of_a_consume_queue(run: Run) -> None:
    assert "max: 3, min: 0" in run["queryCq"]
    entries = re.findall(r"physicOffset=(\d+), physicSize=(\d+), tagsCode=(-?\d+)", run["queryCq"])
    offsets = [int(reply.msg_id[16:], 16) for reply in (run.sent[3], run.sent[7])]
    assert [int(physical_offset) for physical_offset, _, _ in entries[:2]] == offsets
    assert [tag for _, _, tag in entries[:2]] == ["2598919", "2598920"]  # Java's hashes of TagA and TagB
    assert len(entries) == 3


# --- Groups ---


def progress(run: Run, label: str) -> list[int]:
    """The offsets of a group in the queues of the topic."""
    rows = [row for row in run.rows(label) if row[0] == TOPIC]
    assert [row[2] for row in rows] == [str(n) for n in range(QUEUES)]
    assert [row[3] for row in rows] == ["2", "2", "2", "3"], "where the queues end"
    return [int(row[4]) for row in rows]


def test_groups_are_made(run: Run) -> None:
    assert f"create subscription group to {run.servers.broker} success." in run["updateSubGroup"]
    assert f"submit batch of group config to {run.servers.broker} success" in run["updateSubGroupList"]
    config = run.members("getConsumerConfig", "  =  ")
    assert (config["groupName"], config["retryMaxTimes"], config["retryQueueNums"]) == ("Made", "7", "2")
    assert (config["consumeEnable"], config["consumeBroadcastEnable"]) == ("true", "false")
    assert config["brokerId"] == "0"
    groups = run.exported("metadata.json")["subscriptionGroupTable"]
    assert {"Made", "ListedGroupA", "ListedGroupB", GROUP} <= set(groups)
    assert f"topic[{TOPIC}] group[{GROUP}] consume mode[PULL]" in run["setConsumeMode"]
    assert f"topic[{TOPIC}] group[{GROUP}] consume mode[POP]" in run["setConsumeMode pop"]


def test_the_progress_of_groups(run: Run) -> None:
    by_group = {row[0]: row[1:] for row in run.rows("consumerProgress of all")}
    assert by_group[LIVE_CONSUMERS][:4] == ["1", "V5_3_3", "PUSH", "CLUSTERING"]
    assert by_group[GROUP] == ["0", "OFFLINE", "0", "5"]
    assert progress(run, "consumerProgress") == [1, 1, 1, 1]
    assert "Consume Diff Total: 5" in run["consumerProgress"]
    rows = [row for row in run.rows("brokerConsumeStats") if row[1] == GROUP]
    behind = [(int(row[3]), int(row[4]), int(row[5]), int(row[6])) for row in rows]
    assert behind == [(0, 2, 1, 1), (1, 2, 1, 1), (2, 2, 1, 1), (3, 3, 1, 2)]
    rows = [row for row in run.rows("consumerProgress with clients") if row[0] == LIVE_TOPIC]
    own_ip = run.live[0].partition("@")[0]
    assert [(row[2], row[5]) for row in rows] == [(str(n), own_ip) for n in range(QUEUES)]


def test_offsets_are_moved(run: Run) -> None:
    assert "Diff: 4" not in run["cloneGroupOffset"]
    assert progress(run, "consumerProgress of the clone") == [1, 1, 1, 1]
    skipped = {row[1]: row[2] for row in run.rows("skipAccumulatedMessage")}
    assert skipped == {"0": "2", "1": "2", "2": "2", "3": "3"}
    assert progress(run, "consumerProgress skipped") == [2, 2, 2, 3]
    reset = {row[1]: row[2] for row in run.rows("resetOffsetByTime")}
    assert reset == dict.fromkeys("0123", "0")
    assert progress(run, "consumerProgress reset") == [0, 0, 0, 0]
    assert "reset consumer offset to 1" in run["resetOffsetByTime to an offset"]
    assert progress(run, "consumerProgress at an offset") == [0, 0, 1, 0]
    rewound = {row[1]: row[2] for row in run.rows("resetOffsetByTime of live clients")}
    assert rewound == dict.fromkeys("0123", "0")


def test_connected_clients(run: Run) -> None:
    consumer, producer = run.live
    lines = run["consumerConnection"].splitlines()
    row = lines[1].split()
    assert (row[0], row[2], row[3]) == (consumer, "JAVA", "V5_3_3")
    assert [LIVE_TOPIC, "TagA", "||", "TagB"] in [line.split() for line in lines]
    assert [f"%RETRY%{LIVE_CONSUMERS}", "*"] in [line.split() for line in lines]
    assert run.members("consumerConnection")["MessageModel"] == "CLUSTERING"
    assert run["producerConnection"].split()[1] == producer
    assert f"producer group ({LIVE_PRODUCERS}) instance : clientId={producer}" in run["producer"]


def test_the_inside_of_a_connected_client(run: Run) -> None:
    consumer, _ = run.live
    assert consumer in run["consumerStatus of all"]
    assert "Same subscription in the same group of consumer" in run["consumerStatus of all"]
    assert "Rebalance OK" in run["consumerStatus of all"]
    status = run.members("consumerStatus")
    assert status["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert status["messageModel"] == "CLUSTERING"
    assert status["PROP_NAMESERVER_ADDR"].rstrip(";") == run.servers.name_server


# --- Brokers ---


def test_the_cluster_and_the_state_of_its_broker(run: Run) -> None:
    [row] = run.rows("clusterList")
    assert row[:5] == ["DefaultCluster", "broker-a", "0", run.servers.broker, run.servers.version]
    [row] = run.rows("clusterList with more")
    assert int(row[4]) >= MESSAGES, "messages that came in today"
    state = run.members("brokerStatus")
    assert (state["brokerVersionDesc"], state["brokerActive"]) == (run.servers.version, "true")
    assert int(state["msgPutTotalTodayNow"]) >= MESSAGES
    assert int(state["commitLogMaxOffset"]) > int(run.sent[-1].msg_id[16:], 16)
    assert state["commitLogMinOffset"] == "0"


def test_settings_of_a_broker(run: Run) -> None:
    assert f"update broker config success, {run.servers.broker}" in run["updateBrokerConfig"]
    config = run.members("getBrokerConfig", "  =  ")
    assert config["waitTimeMillsInPullQueue"] == "4444"
    assert (config["brokerName"], config["brokerClusterName"]) == ("broker-a", "DefaultCluster")
    assert config["messageDelayLevel"].startswith("1s 2s 1s")
    exported = run.exported("configs.json")
    assert exported["clusterScale"] == {"masterBrokerSize": 1, "namesrvSize": 1, "slaveBrokerSize": 0}
    shared = ("brokerId", "brokerRole", "flushDiskType", "maxMessageSize", "messageDelayLevel", "traceOn")
    assert {key: exported["brokerConfigs"]["broker-a"][key] for key in shared} == {
        key: config[key] for key in shared
    }


def test_statistics(run: Run) -> None:
    rows = run.rows("statsAll")
    # What each group has not consumed yet.
    assert [row[:3] for row in rows] == [[TOPIC, GROUP, "8"], [TOPIC, "Cloned", "5"]]
    metrics = run.exported("metrics.json")
    assert "broker-a" in metrics["evaluateReport"]


def test_upkeep_of_a_broker(run: Run) -> None:
    for label in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert run[label].strip() == "success"
    lines = [line.split() for line in run["haStatus"].splitlines()]
    assert ["#MasterAddr", run.servers.broker] in lines
    assert ["#SlaveNum", "0"] in lines
    limited = f"updateColdDataFlowCtrGroupConfig success, {run.servers.broker}"
    assert limited in run["updateColdDataFlowCtrGroupConfig"]
    assert run.document("getColdDataFlowCtrInfo")["configTable"] == {GROUP: 1 << 20}
    assert run.document("getColdDataFlowCtrInfo after")["configTable"] == {}
    assert "set commitlog readahead mode success" in run["setCommitLogReadAheadMode"]


def test_metadata_are_exported(run: Run) -> None:
    topics = run.exported("metadata.json")["topicConfigTable"]
    made = topics["Made"]
    assert (made["readQueueNums"], made["writeQueueNums"], made["perm"]) == (6, 5, 4)
    assert topics["ListedB"]["readQueueNums"] == 3


# --- Name servers ---


def test_settings_of_a_name_server(run: Run) -> None:
    assert f"update name server config success![{run.servers.name_server}]" in run["updateNamesrvConfig"]
    assert run.members("getNamesrvConfig", "  =  ")["orderMessageEnable"] == "true"
    assert "create or update kv config to namespace success." in run["updateKvConfig"]
    assert "delete kv config from namespace success." in run["deleteKvConfig"]


def test_write_permission_is_taken_and_given(run: Run) -> None:
    counts = [int(run[label].rsplit(", ", 1)[1]) for label in ("wipeWritePerm", "addWritePerm")]
    assert counts[0] == counts[1] > 10
    assert queue_data(run, "topicRoute wiped")["perm"] == 4
    assert queue_data(run, "topicRoute writable")["perm"] == 6


# --- Removals ---


def test_groups_and_topics_are_deleted(run: Run) -> None:
    assert (
        f"delete subscription group [{GROUP}] from broker [{run.servers.broker}] success."
        in (run["deleteSubGroup"])
    )
    assert "delete topic [Made] from cluster [DefaultCluster] success." in run["deleteTopic"]
    assert "delete topic [Made] from NameServer success." in run["deleteTopic"]
