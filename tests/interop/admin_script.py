"""The commands that the test of the admin tool runs, one JVM for all, and what they find on the broker.

Commands change what later ones see: the order counts. Times, ids and addresses that cannot be known before
are put in by `script`.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from skylark.model.message import encode_properties
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.requests.group import UpdateAndCreateSubscriptionGroup
from skylark.protocol.requests.offset import UpdateConsumerOffset
from skylark.protocol.requests.send import SendMessageV2, SendReply
from skylark.remoting.blocking_connection import BlockingConnection
from tests.interop.servers import create_topic

CLUSTER = "DefaultCluster"
TOPIC = "Seen"
GROUP = "Behind"
QUEUES = 4
MESSAGES = 8
LIVE = "5_3_3"
"""The name of the driver whose clients are connected."""
LIVE_TOPIC = f"Live-{LIVE}"
LIVE_CONSUMERS = f"LiveConsumer-{LIVE}"
LIVE_PRODUCERS = f"LiveProducer-{LIVE}"

Script = list[tuple[str, list[str]]]


def unique_key(number: int) -> str:
    return f"7F00000100002A9F000018B4AAC2{number:04X}"


def prepare(broker: str) -> list[SendReply]:
    """Two messages in each queue of a topic, and a group that has read the first of them."""
    create_topic(broker, TOPIC, QUEUES)
    with BlockingConnection(broker) as connection:
        replies = []
        for number in range(MESSAGES):
            properties = {
                "KEYS": f"key-{number} all",
                "UNIQ_KEY": unique_key(number),
                "TAGS": "TagA" if number < QUEUES else "TagB",
            }
            request = SendMessageV2(
                producer_group="Prepared",
                topic=TOPIC,
                default_topic="TBW102",
                default_topic_queue_nums=QUEUES,
                queue_id=number % QUEUES,
                sys_flag=0,
                born_timestamp=round(time.time() * 1000),
                flag=0,
                properties=encode_properties(properties).decode(),
                body=f"body {number}".encode(),
            )
            replies.append(connection.call(request, timeout_s=60).reply)
        for group in (GROUP, "Cloned"):
            create_topic(broker, f"%RETRY%{group}", 1)  # the tool finds a group's brokers by it
            config = SubscriptionGroupConfig(group_name=group)
            connection.call(UpdateAndCreateSubscriptionGroup(config), timeout_s=60)
        for queue_id in range(QUEUES):
            commit = UpdateConsumerOffset(
                consumer_group=GROUP, topic=TOPIC, queue_id=queue_id, commit_offset=1
            )
            connection.call(commit, timeout_s=60)
    return replies


def script(broker: str, live: tuple[str, str], sent: list[SendReply], directory: Path) -> Script:
    """Labels and commands; `live` are the ids of a consumer and a producer that are connected."""
    return [
        *_topics(broker, directory),
        *_messages(broker, live, sent),
        *_groups(broker, live, directory),
        *_brokers(broker, directory),
        *_name_servers(),
        *_removals(broker),
    ]


def _topics(broker: str, directory: Path) -> Script:
    listed = directory / "topics.json"
    listed.write_bytes(
        msgspec.json.encode(
            [
                {"topicName": "ListedA", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6},
                {"topicName": "ListedB", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6},
            ]
        )
    )
    made = ["updateTopic", "-b", broker, "-t", "Made"]
    return [
        ("updateTopic", [*made, "-r", "6", "-w", "5"]),
        ("updateTopic with attributes", [*made, "-r", "6", "-w", "5", "-a", "+message.type=FIFO"]),
        ("topicRoute", ["topicRoute", "-t", "Made"]),
        ("updateTopicPerm", ["updateTopicPerm", "-b", broker, "-t", "Made", "-p", "4"]),
        ("sendMessage refused", ["sendMessage", "-t", "Made", "-p", "not allowed"]),
        ("topicRoute read only", ["topicRoute", "-t", "Made", "-l"]),
        ("updateTopicList", ["updateTopicList", "-b", broker, "-f", str(listed)]),
        (
            "updateTopic order",
            ["updateTopic", "-b", broker, "-t", "Ordered", "-r", "2", "-w", "2", "-o", "true"],
        ),
        ("updateOrderConf get", ["updateOrderConf", "-m", "get", "-t", "Ordered"]),
        ("updateOrderConf put", ["updateOrderConf", "-m", "put", "-t", "Ordered", "-v", "broker-a:1"]),
        ("updateOrderConf got", ["updateOrderConf", "-m", "get", "-t", "Ordered"]),
        ("updateOrderConf delete", ["updateOrderConf", "-m", "delete", "-t", "Ordered"]),
        ("updateOrderConf gone", ["updateOrderConf", "-m", "get", "-t", "Ordered"]),
        ("topicList", ["topicList"]),
        ("topicList with clusters", ["topicList", "-c"]),
        ("topicClusterList", ["topicClusterList", "-t", TOPIC]),
        ("topicStatus", ["topicStatus", "-t", TOPIC]),
        ("allocateMQ", ["allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2"]),
    ]


def _messages(broker: str, live: tuple[str, str], sent: list[SendReply]) -> Script:
    at = ["-t", TOPIC, "-b", "broker-a", "-i", "3"]
    return [
        ("sendMessage", ["sendMessage", "-t", LIVE_TOPIC, "-p", "from the tool", "-c", "TagA", "-k", "tool"]),
        ("sendMessage to queue", ["sendMessage", *at, "-p", "to the third", "-c", "TagC", "-k", "tool"]),
        ("queryMsgById", ["queryMsgById", "-t", TOPIC, "-i", sent[5].msg_id]),
        ("queryMsgByKey", ["queryMsgByKey", "-t", TOPIC, "-k", "all"]),
        ("queryMsgByUniqueKey", ["queryMsgByUniqueKey", "-t", TOPIC, "-i", unique_key(6)]),
        ("queryMsgById direct",
         ["queryMsgById", "-t", TOPIC, "-i", sent[4].msg_id, "-g", LIVE_CONSUMERS, "-d", live[0]]),
        ("queryMsgByOffset", ["queryMsgByOffset", *at, "-o", "1"]),
        ("printMsg", ["printMsg", "-t", TOPIC, "-d", "true", "-s", "TagA || TagC"]),
        ("printMsgByQueue",
         ["printMsgByQueue", "-t", TOPIC, "-a", "broker-a", "-i", "3", *"-d true -p true -f true".split()]),
        ("consumeMessage",
         ["consumeMessage", "-t", TOPIC, "-b", "broker-a", *"-i 2 -o 1 -c 1 -g ToolGroup".split()]),
        ("queryCq", ["queryCq", "-b", broker, "-t", TOPIC, "-q", "3", "-i", "0", "-c", "3"]),
        ("checkMsgSendRT", ["checkMsgSendRT", "-t", "ListedA", "-a", "3", "-s", "16"]),
        ("sendMsgStatus", ["sendMsgStatus", "-b", "broker-a", "-c", "2"]),
    ]  # fmt: skip


def _groups(broker: str, live: tuple[str, str], directory: Path) -> Script:
    listed = directory / "groups.json"
    listed.write_bytes(msgspec.json.encode([{"groupName": "ListedGroupA"}, {"groupName": "ListedGroupB"}]))
    behind = ["-g", GROUP, "-t", TOPIC]
    return [
        ("updateSubGroup", ["updateSubGroup", "-b", broker, *"-g Made -r 7 -q 2 -d false".split()]),
        ("updateSubGroupList", ["updateSubGroupList", "-b", broker, "-f", str(listed)]),
        ("getConsumerConfig", ["getConsumerConfig", "-g", "Made"]),
        ("consumerProgress of all", ["consumerProgress"]),
        ("consumerProgress", ["consumerProgress", "-g", GROUP]),
        ("consumerProgress with clients", ["consumerProgress", "-g", LIVE_CONSUMERS, "-s", "true"]),
        ("brokerConsumeStats", ["brokerConsumeStats", "-b", broker]),
        ("consumerConnection", ["consumerConnection", "-g", LIVE_CONSUMERS]),
        ("consumerStatus of all", ["consumerStatus", "-g", LIVE_CONSUMERS]),
        ("consumerStatus", ["consumerStatus", "-g", LIVE_CONSUMERS, "-i", live[0]]),
        ("producerConnection", ["producerConnection", "-g", LIVE_PRODUCERS, "-t", LIVE_TOPIC]),
        ("producer", ["producer", "-b", broker]),
        ("cloneGroupOffset", ["cloneGroupOffset", "-s", GROUP, "-d", "Cloned", "-t", TOPIC, "-o", "false"]),
        ("consumerProgress of the clone", ["consumerProgress", "-g", "Cloned"]),
        ("skipAccumulatedMessage", ["skipAccumulatedMessage", *behind]),
        ("consumerProgress skipped", ["consumerProgress", "-g", GROUP]),
        ("resetOffsetByTime", ["resetOffsetByTime", *behind, "-s", "0"]),
        ("consumerProgress reset", ["consumerProgress", "-g", GROUP]),
        ("resetOffsetByTime to an offset",
         ["resetOffsetByTime", *behind, "-s", "-1", "-b", broker, "-q", "2", "-o", "1"]),
        ("consumerProgress at an offset", ["consumerProgress", "-g", GROUP]),
        ("resetOffsetByTime of live clients",
         ["resetOffsetByTime", "-g", LIVE_CONSUMERS, "-t", LIVE_TOPIC, "-s", "0"]),
        ("setConsumeMode", ["setConsumeMode", "-b", broker, "-t", TOPIC, "-g", GROUP, "-m", "PULL"]),
        ("setConsumeMode pop",
         ["setConsumeMode", "-b", broker, "-t", TOPIC, "-g", GROUP, "-m", "POP", "-q", "0"]),
    ]  # fmt: skip


def _brokers(broker: str, directory: Path) -> Script:
    at = ["-b", broker]
    update = ["updateBrokerConfig", *at, "-k"]
    files = str(directory / "export")
    return [
        ("clusterList", ["clusterList"]),
        ("clusterList with more", ["clusterList", "-m"]),
        ("brokerStatus", ["brokerStatus", *at]),
        ("updateBrokerConfig", [*update, "waitTimeMillsInPullQueue", "-v", "4444"]),
        ("updateBrokerConfig refused", [*update, "brokerConfigPath", "-v", "elsewhere"]),
        ("getBrokerConfig", ["getBrokerConfig", *at]),
        ("statsAll", ["statsAll", "-t", TOPIC]),
        ("haStatus", ["haStatus", *at]),
        ("getBrokerEpoch", ["getBrokerEpoch", "-b", "broker-a"]),
        ("cleanExpiredCQ", ["cleanExpiredCQ", *at]),
        ("cleanUnusedTopic", ["cleanUnusedTopic", *at]),
        ("deleteExpiredCommitLog", ["deleteExpiredCommitLog", *at]),
        (
            "updateColdDataFlowCtrGroupConfig",
            ["updateColdDataFlowCtrGroupConfig", *at, "-g", GROUP, "-v", "1048576"],
        ),
        ("getColdDataFlowCtrInfo", ["getColdDataFlowCtrInfo", *at]),
        ("removeColdDataFlowCtrGroupConfig", ["removeColdDataFlowCtrGroupConfig", *at, "-g", GROUP]),
        ("getColdDataFlowCtrInfo after", ["getColdDataFlowCtrInfo", *at]),
        ("setCommitLogReadAheadMode", ["setCommitLogReadAheadMode", *at, "-m", "0"]),
        ("resetMasterFlushOffset", ["resetMasterFlushOffset", *at, "-o", "0"]),
        ("exportConfigs", ["exportConfigs", "-c", CLUSTER, "-f", files]),
        ("exportMetadata", ["exportMetadata", "-c", CLUSTER, "-f", files]),
        ("exportMetrics", ["exportMetrics", "-c", CLUSTER, "-f", files]),
    ]


def _name_servers() -> Script:
    pair = ["-s", "space", "-k", "key"]
    return [
        ("updateNamesrvConfig", ["updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true"]),
        ("getNamesrvConfig", ["getNamesrvConfig"]),
        ("updateKvConfig", ["updateKvConfig", *pair, "-v", "value"]),
        ("deleteKvConfig", ["deleteKvConfig", *pair]),
        ("wipeWritePerm", ["wipeWritePerm", "-b", "broker-a"]),
        ("topicRoute wiped", ["topicRoute", "-t", TOPIC]),
        ("addWritePerm", ["addWritePerm", "-b", "broker-a"]),
        ("topicRoute writable", ["topicRoute", "-t", TOPIC]),
    ]


def _removals(broker: str) -> Script:
    return [
        ("deleteSubGroup", ["deleteSubGroup", "-b", broker, "-g", GROUP, "-r", "true"]),
        ("consumerProgress deleted", ["consumerProgress", "-g", GROUP]),
        ("deleteTopic", ["deleteTopic", "-c", CLUSTER, "-t", "Made"]),
        ("topicRoute deleted", ["topicRoute", "-t", "Made"]),
        ("topicStatus unknown", ["topicStatus", "-t", "NeverHeardOf"]),
    ]
