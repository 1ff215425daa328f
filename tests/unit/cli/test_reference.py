"""The pages about commands are those of the commands, and every command explains itself."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from skylark.cli import mqadmin
from skylark.cli.reference import commands, commands_page, http_page, root, sentences_and_examples

DOCS = Path(__file__).parents[3] / "docs"
ROOT = root()
ALL = dict(commands(ROOT))
LEAVES = {name: command for name, command in ALL.items() if not hasattr(command, "commands")}
WITHOUT_JSON = re.compile(
    r"skylark (console|gateway|demo|serve|tail|tls init|(cluster|store) export|store backup|spark .*|torture|"
    r"lake (run|verify|maintain)|cluster (start|render)|proxy|(bench|plan) .*)"
)


def test_the_reference_is_up_to_date() -> None:
    page = (DOCS / "reference" / "commands.md").read_text()
    assert page == commands_page(), (
        "run: python -m skylark.cli.reference commands > docs/reference/commands.md"
    )


def test_the_reference_of_the_http_api_is_up_to_date() -> None:
    page = (DOCS / "reference" / "http-api.md").read_text()
    assert page == http_page(), "run: python -m skylark.cli.reference http > docs/reference/http-api.md"
    assert "## POST groups/{group}/receive" in page


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_every_command_has_a_sentence_and_an_example_that_is_possible(name: str) -> None:
    text, examples = sentences_and_examples(LEAVES[name].help or "")
    assert text.partition("\n")[0].rstrip().endswith((".", ":")) or "." in text
    assert examples, f"{name} has no example"
    for example in examples:
        check_line(example)


@pytest.mark.parametrize("name", sorted(name for name in LEAVES if not WITHOUT_JSON.fullmatch(name)))
def test_every_command_prints_json(name: str) -> None:
    assert any("--json" in param.opts for param in LEAVES[name].params)


TIMES = {
    f"{name} {param.opts[0]}": param.help
    for name, command in LEAVES.items()
    for param in command.params
    if param.metavar == "TIME" or (name.startswith("skylark spark") and "--from" in param.opts)
}


@pytest.mark.parametrize("option", sorted(TIMES))
def test_every_option_that_takes_a_time_says_which_zone_is_meant(option: str) -> None:
    assert len(TIMES) > 10
    assert "local time unless a zone is given" in TIMES[option] or "forms of --" in TIMES[option]


def check_line(line: str) -> None:
    """That each command on a line is there, and all its options."""
    words: list[str] = []
    for word in [*shlex.split(line), "|"]:
        if word not in ("|", "&&", ">"):
            words.append(word)
            continue
        if words[:1] == ["skylark"]:
            check_command(words)
        words = []


def check_command(words: list[str]) -> None:
    if mqadmin.is_mqadmin(words[1:]):
        words = ["skylark", *mqadmin.translate(words[1:])]
    name, command = "skylark", ROOT
    options = {"--help", "-h"}
    for word in words[1:]:
        options |= {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        found: Any = getattr(command, "commands", {}).get(word)
        if found is None:
            break
        name, command = f"{name} {word}", found
    options |= {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    assert name in ALL, f"there is no command {words}"
    for word in words[1:]:
        if re.fullmatch(r"--?[a-zA-Z][\w-]*", word):
            assert word in options, f"{name} has no option {word}"


def test_the_page_for_people_who_know_mqadmin_names_commands_that_there_are() -> None:
    page = (DOCS / "howto" / "mqadmin.md").read_text()
    lines = re.findall(r"`(skylark [a-z][^`]*)`", page) + re.findall(r"^(skylark .*)$", page, re.MULTILINE)
    assert len(lines) > 40
    for line in lines:
        check_line(line)


# All that `mqadmin` of Apache RocketMQ 5.3.3 knows.
MQADMIN = """
    updateTopic updateTopicList deleteTopic updateSubGroup updateSubGroupList setConsumeMode deleteSubGroup
    updateBrokerConfig updateTopicPerm topicRoute topicStatus topicClusterList addBroker removeBroker
    resetMasterFlushOffset brokerStatus queryMsgById queryMsgByKey queryMsgByUniqueKey queryMsgByOffset
    queryMsgTraceById printMsg printMsgByQueue sendMsgStatus brokerConsumeStats producerConnection
    consumerConnection consumerProgress consumerStatus cloneGroupOffset producer clusterList topicList
    updateKvConfig deleteKvConfig wipeWritePerm addWritePerm resetOffsetByTime skipAccumulatedMessage
    updateOrderConf cleanExpiredCQ deleteExpiredCommitLog cleanUnusedTopic startMonitoring statsAll allocateMQ
    checkMsgSendRT clusterRT getNamesrvConfig updateNamesrvConfig getBrokerConfig getConsumerConfig queryCq
    sendMessage consumeMessage updateStaticTopic remappingStaticTopic exportMetadata exportConfigs
    exportMetrics exportMetadataInRocksDB exportPopRecord haStatus getSyncStateSet getBrokerEpoch
    getControllerMetaData getControllerConfig updateControllerConfig electMaster cleanBrokerMetadata
    dumpCompactionLog getColdDataFlowCtrInfo updateColdDataFlowCtrGroupConfig
    removeColdDataFlowCtrGroupConfig setCommitLogReadAheadMode createUser updateUser deleteUser getUser
    listUser copyUser createAcl updateAcl deleteAcl getAcl listAcl copyAcl rocksDBConfigToJson
    checkRocksdbCqWriteProgress DecodeMessageId
    getBrokerLiteInfo getParentTopicInfo getLiteTopicInfo getLiteClientInfo getLiteGroupInfo
    triggerLiteDispatch switchTimerEngine
""".split()


@pytest.mark.parametrize("name", MQADMIN)
def test_every_command_of_mqadmin_is_on_the_page(name: str) -> None:
    assert re.search(rf"`{name}\b", (DOCS / "howto" / "mqadmin.md").read_text())
