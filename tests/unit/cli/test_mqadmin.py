"""The commands of `mqadmin`."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from skylark.cli import mqadmin, reference
from skylark.cli.errors import UsageError
from skylark.cli.main import app
from skylark.cli.mqadmin import COUNTERPARTS, translate, usage
from tests.unit.cli.test_reference import MQADMIN

IN_FULL = {
    "updateTopic -t orders -c C -r 8 -w 4": (
        "topic create orders --read-queues 8 --write-queues 4 --cluster C"
    ),
    "updateTopicPerm -t orders -p 4 -b broker-a": "topic update orders --permission r --broker broker-a",
    "topicRoute --topic orders -l": "topic route orders",
    "topicRoute -t=orders -n 10.0.0.1:9876": "topic route orders --namesrv 10.0.0.1:9876",
    "updateOrderConf -t orders -m put -v broker-a:4": "topic order orders broker-a:4",
    "updateOrderConf -t orders -m delete": "topic order orders --remove",
    "allocateMQ -t orders -i a,b": "topic share orders a b",
    "updateSubGroup -g billing -r 5 -s false -d true": (
        "group create billing --retries 5 --disabled --broadcast"
    ),
    "deleteSubGroup -g billing -c C": "group delete billing --keep-offsets --cluster C",
    "deleteSubGroup -g billing -r true --yes": "group delete billing --yes",
    "consumerProgress": "group list",
    "consumerProgress -g billing": "group status billing",
    "consumerStatus -g billing -s": "consumer status billing --stack",
    "producerConnection -g shop -t orders": "producer list shop",
    "producer -b broker-a": "producer list --broker broker-a",
    "resetOffsetByTime -g billing -t orders -s 2026-11-17#08:30:00:000 -f true": (
        "offset reset billing orders --to '2026-11-17 08:30:00.000'"
    ),
    "resetOffsetByTime -g billing -t orders -s now": "offset reset billing orders --to now",
    "resetOffsetByTime -g billing -t orders -s -1 -b broker-a -q 0 -o 1000": (
        "offset reset billing orders --queue broker-a:0 --offset 1000"
    ),
    "cloneGroupOffset -s billing -d billing-2 -t orders": "offset clone billing billing-2 --topic orders",
    "queryMsgById -i ID -t orders -g billing -d CLIENT": "message consume billing CLIENT orders ID",
    "queryMsgByUniqueKey -i ID -t orders -a": "message key orders ID --unique",
    "queryMsgByOffset -t orders -b broker-a -i 0 -o 1000": "message at orders broker-a:0 1000",
    "printMsg -t orders -s paid -d true --json": "message list orders --tags paid --json",
    "sendMessage -t orders -p 'two words' -k 42 -c paid": "send orders 'two words' --key 42 --tag paid",
    "DecodeMessageId -i ID -n 10.0.0.1:9876": "message id ID",
    "clusterList -i 5 -m": "cluster list --watch --every 5",
    "updateBrokerConfig -b broker-a -k fileReservedTime -v 48": (
        "broker set fileReservedTime=48 --broker broker-a"
    ),
    "addWritePerm -b broker-a": "broker drain broker-a --undo",
    "topicStatus -h": "topic status --help",
    "listUser -c C": "user list --cluster C",
    "deleteUser -u billing -b broker-a --yes": "user delete billing --broker broker-a --yes",
    "createAcl -c C -s User:billing -r Topic:orders -a Sub -d Deny -i 10.0.0.0/8": (
        "acl create billing Topic:orders --actions Sub --deny --from 10.0.0.0/8 --cluster C"
    ),
    "getAcl -s User:billing -c C": "acl show billing --cluster C",
}


@pytest.mark.parametrize("words", IN_FULL)
def test_options_become_those_of_the_command(words: str) -> None:
    assert shlex.join(translate(shlex.split(words))) == IN_FULL[words]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "topicList -c",
            "mqadmin's topicList is `skylark topic list`; nothing was done: no equivalent of -c",
        ),
        (
            "deleteTopic",
            "mqadmin's deleteTopic is `skylark topic delete TOPIC [--cluster CLUSTER-NAME]`;"
            " nothing was done: its options differ",
        ),
        ("updateTopicPerm -t orders -p 7", "is `skylark topic update TOPIC --permission w|r|rw"),
        (
            "resetOffsetByTime -g g -t t -s now -b 10.0.0.1:10911 -q 0 -o 1",
            "`skylark offset reset GROUP TOPIC --queue BROKER:QUEUE --offset OFFSET` or `",
        ),
        ("topicRoute -t", "mqadmin's topicRoute: -t needs a value"),
        ("topicRoute -x 1", "mqadmin's topicRoute has no option -x; `skylark topicRoute -h` shows"),
        ("electMaster -a h", "mqadmin's electMaster is not a command of skylark; use `mqadmin` itself"),
        ("createUser -u x -p secret", "use `skylark user create NAME`, with --secret-file"),
        (
            "createAcl -s User:billing -r Topic:a,Topic:b -a Pub -d Allow",
            "`skylark acl create SUBJECT RESOURCES --actions ACTIONS --deny [--from",
        ),
        ("sendMsgStatus", "use `skylark cluster latency`"),
    ],
)
def test_without_an_equivalent_the_new_command_is_named(words: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        translate(shlex.split(words))
    assert sentence in str(refused.value)


def test_all_commands_of_mqadmin_are_known() -> None:
    """And the page names them all: `test_reference` compares it with the same list."""
    assert set(MQADMIN) <= COUNTERPARTS.keys()


def commands_of_templates() -> list[tuple[str, str]]:
    return [(name, template) for name, known in COUNTERPARTS.items() for template in known.templates]


@pytest.fixture(scope="module")
def root() -> Any:
    return reference.root()


@pytest.mark.parametrize(("name", "template"), commands_of_templates())
def test_every_equivalent_has_the_options_that_it_is_given(root: Any, name: str, template: str) -> None:
    command = root
    for word in mqadmin._fixed_words(template):
        command = command.commands.get(word, command) if hasattr(command, "commands") else command
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    shown = usage(template + mqadmin.NAMESRV_WORDS.replace("{n}", "ADDRESS"), COUNTERPARTS[name].options)
    used = set(re.findall(r"--[\w-]+", shown)) - ({"--namesrv"} if name == "DecodeMessageId" else set())
    assert used <= known


def test_the_command_line_says_what_it_runs() -> None:
    offset_id = "7F00000100002A9F0000000000000000"
    result = CliRunner().invoke(app, ["DecodeMessageId", "-i", offset_id, "--json"])
    assert result.exit_code == 0
    sentence = f"skylark: mqadmin's DecodeMessageId is `skylark message id {offset_id} --json`\n"
    assert result.stderr == sentence
    assert '"broker":"127.0.0.1:10911"' in result.stdout


def test_an_invocation_that_does_not_map_ends_with_2() -> None:
    result = CliRunner().invoke(app, ["topicList", "-c"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("skylark: mqadmin's topicList is `skylark topic list`; nothing was done")


@pytest.mark.parametrize("words", [["consumer", "--help"], ["producer", "-h"], ["producer"]])
def test_commands_of_the_same_name_are_ours(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert "Usage: skylark" in result.output or "Usage: root" in result.output
    assert "mqadmin" not in result.stderr
