"""The commands that administer, send and follow, against real servers: what they print, change and refuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from typer.testing import CliRunner, Result

from skylark import (
    Admin,
    ConsumeConcurrentlyStatus,
    Message,
    MessageListenerConcurrently,
    Producer,
    PushConsumer,
    PushConsumerSettings,
)
from skylark.admin.server_calls import ServerCalls
from skylark.cli.main import app
from skylark.cli.options import complete_topic
from skylark.testing import EmbeddedServers
from tests.support.names import fresh_name

if TYPE_CHECKING:
    import typer

TIMEOUT_S = 120
TOPIC = "cli-orders"
GROUP = "cli-billing"
MESSAGES = 8


class Commands:
    """`run("topic", "list")` runs `skylark topic list`; neither terminal nor colours."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv

    def invoke(self, *words: object, standard_input: str | bytes | None = None) -> Result:
        environment = {"NAMESRV_ADDR": self.namesrv, "COLUMNS": "200"}
        return CliRunner().invoke(app, [str(word) for word in words], input=standard_input, env=environment)

    def __call__(self, *words: object, standard_input: str | bytes | None = None) -> str:
        result = self.invoke(*words, standard_input=standard_input)
        assert result.exit_code == 0, (words, result.output, result.exception)
        return result.stdout

    def rows(self, *words: object) -> list[list[str]]:
        return [line.split("\t") for line in self(*words).splitlines()]

    def json(self, *words: object) -> Any:
        return json.loads(self(*words, "--json"))

    def lines(self, *words: object) -> list[Any]:
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    """With a topic of two queues, eight messages in it, a group at its beginning, and traces."""
    with EmbeddedServers(settings={"trace_topic": True}) as running:
        with Admin(namesrv=running.namesrv) as admin:
            admin.topics.create(TOPIC, queues=2)
            admin.groups.create(GROUP)
            with Producer("cli-shop", namesrv=running.namesrv) as producer:
                queues = producer.queues(TOPIC)
                for number in range(MESSAGES):
                    message = Message.json(
                        TOPIC,
                        {"order": number},
                        tags=("created", "paid")[number % 2],
                        keys=[f"key-{number}"],
                        properties={"amount": str(number)},
                    )
                    producer.send(message, queue=queues[number // 2 % 2])
                    time.sleep(0.002)  # no two at the same millisecond, by which they are sorted
            admin.offsets.reset(GROUP, TOPIC, 0)
        yield running


@pytest.fixture
def run(servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch) -> Commands:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    return Commands(servers.namesrv)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- What every listing prints, as lines and as JSON ---


@pytest.mark.parametrize(
    ("words", "columns", "row"),
    [
        (("topic", "list"), "topic brokers read_queues write_queues permission", {"topic": TOPIC}),
        (
            ("topic", "route", TOPIC),
            "broker cluster read_queues write_queues permission id address",
            {"id": 0},
        ),
        (("topic", "config", TOPIC), "broker read_queues write_queues permission ordered attributes", {}),
        (("topic", "groups", TOPIC), "group lag", {"group": GROUP, "lag": MESSAGES}),
        (("topic", "share", TOPIC, "a", "b"), "member broker queue", {"member": "b", "queue": 1}),
        (
            ("group", "list"),
            "group members topics lag retrying dead_letters out_per_s",
            {"group": GROUP, "lag": MESSAGES, "retrying": 0, "dead_letters": 0},
        ),
        (
            ("group", "config", GROUP),
            "broker enabled broadcast orderly retries retry_queues timeout_minutes",
            {},
        ),
        (
            ("group", "delay", GROUP, TOPIC),
            "broker queue first_stored last_stored next_stored waiting_ms",
            {"queue": 0},
        ),
        (("offset", "list", GROUP, TOPIC), "broker queue committed", {"queue": 1, "committed": 0}),
        (("broker", "list"), "cluster broker id address", {"broker": "broker-a"}),
        (
            ("broker", "stats", "broker-a", "TOPIC_PUT_NUMS", TOPIC),
            "last sum rate_per_s average",
            {"last": "day"},
        ),
        (("broker", "timers", "broker-a"), "topic waiting changed", None),
        (
            ("cluster", "list"),
            "cluster broker id address version in_per_s out_per_s in_today out_today disk oldest_message",
            {"broker": "broker-a", "version": "V5_3_3"},
        ),
        (
            ("cluster", "latency", "-n", "2"),
            "cluster broker messages average_ms median_ms worst_ms",
            {"messages": 2},
        ),
        (("namesrv", "config"), "name_server key value", {"key": "listenPort"}),
        (("namesrv", "kv", "NOTHING"), "key value", None),
        (("producer", "list"), "group client address language version brokers", None),
        (("producer", "list", "nobody"), "group client address language version brokers", None),
        (("dlq", "list"), "group letters waiting last", None),
        (("dlq", "resend", GROUP, "--yes"), "id to_topic new_id outcome", None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_listing(run: Commands, words: tuple[str, ...], columns: str, row: dict[str, Any] | None) -> None:
    head, *rows = run.rows(*words)
    names = [name.replace("/", "_per_").replace(" ", "_") for name in head]
    assert names == columns.split()
    assert all(len(cells) == len(head) for cells in rows)
    if row is None:
        return
    documents = run.json(*words)
    assert any(row.items() <= document.items() for document in documents), documents
    assert all(list(document) == columns.split() for document in documents)


@pytest.mark.parametrize(
    ("words", "facts", "count"),
    [
        (("topic", "status", TOPIC), {"topic": TOPIC, "messages": MESSAGES}, 2),
        (("group", "status", GROUP), {"group": GROUP, "members": 0, "lag": MESSAGES}, 2),
        (("broker", "progress", "broker-a"), {"broker": "broker-a"}, 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_listing_with_facts(
    run: Commands, words: tuple[str, ...], facts: dict[str, Any], count: int
) -> None:
    document = run.json(*words)
    assert facts.items() <= document.items()
    assert len(document["queues"]) >= count
    lines = run.rows(*words)
    assert all([name, str(value)] in lines for name, value in facts.items())


def test_settings_are_shown_and_changed(run: Commands) -> None:
    assert "orderMessageEnable" in run("namesrv", "config", "--like", "ordermessage")
    run("broker", "set", "fileReservedTime=47", "--broker", "broker-a")
    assert run.json("broker", "config", "broker-a", "--like", "fileReserved") == {"fileReservedTime": "47"}
    assert ["brokerVersionDesc", "V5_3_3"] in run.rows("broker", "status", "broker-a", "--like", "version")
    run("namesrv", "put", "NS", "a", "b")
    assert run.json("namesrv", "kv", "NS") == [{"key": "a", "value": "b"}]
    run("namesrv", "delete", "NS", "a")
    assert run.json("namesrv", "kv", "NS") == []


def test_a_broker_is_drained_and_comes_back(run: Commands) -> None:
    try:
        run("broker", "drain", "broker-a")
        assert {row["permission"] for row in run.json("topic", "route", TOPIC)} == {"r"}
    finally:
        [broker] = run.json("broker", "list")
        undone = run.json("broker", "drain", broker["address"], "--undo")
        assert (undone["broker"], undone["writable"]) == ("broker-a", True)
    assert {row["permission"] for row in run.json("topic", "route", TOPIC)} == {"rw"}


@pytest.mark.parametrize("what", ["queues", "topics", "log"])
def test_a_broker_is_cleaned(run: Commands, what: str) -> None:
    assert run.json("broker", "clean", what, "--yes") == {"cleaned": what, "where": "all brokers"}


# --- The life of a topic, of a group ---


def test_a_topic_is_made_changed_and_deleted(run: Commands) -> None:
    topic = fresh_name("cli-life")
    assert run.json("topic", "create", topic, "-q", "3") == {
        "topic": topic, "brokers": ["broker-a"], "created": True,
    }  # fmt: skip
    run("topic", "update", topic, "--permission", "r", "--read-queues", "5")
    [row] = run.json("topic", "config", topic)
    assert (row["read_queues"], row["write_queues"], row["permission"]) == (5, 3, "r")
    assert "broker-a:3" in run("topic", "order", topic, "broker-a:3")
    assert run.json("topic", "order", topic, "--remove")["order"] is None
    assert topic in run("topic", "list")
    run("topic", "delete", topic, "--yes")
    assert topic not in run("topic", "list", "--system")


def test_a_group_is_made_changed_and_deleted(run: Commands) -> None:
    group = fresh_name("cli-life")
    run("group", "create", group, "--retries", "3", "--attribute", "priority.factor=80")
    run("group", "update", group, "--disabled")
    [row] = run.json("group", "config", group)
    assert (row["retries"], row["enabled"]) == (3, False)
    assert run.json("group", "mode", group, TOPIC, "pull")["mode"] == "PULL"
    run("group", "delete", group, "--yes")
    assert group not in run("group", "list")
    assert "TOOLS_CONSUMER" in run("group", "list", "--system")


def test_a_list_of_topics_asks_each_broker_once(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = ServerCalls.ask

    async def counting(self: ServerCalls, address: str, request: Any, **more: Any) -> Any:
        asked.append(type(request).__name__)
        return await ask(self, address, request, **more)

    monkeypatch.setattr(ServerCalls, "ask", counting)
    listed = run.json("topic", "list", "--system")
    assert asked == ["GetAllTopicConfig"]
    [orders] = [row for row in listed if row["topic"] == TOPIC]
    assert orders == {
        "topic": TOPIC, "brokers": ["broker-a"], "read_queues": 2, "write_queues": 2, "permission": "rw",
    }  # fmt: skip


def test_topics_and_groups_are_taken_elsewhere(run: Commands, tmp_path: Path) -> None:
    topic, group = fresh_name("cli-moved"), fresh_name("cli-mover")
    file = tmp_path / "metadata.json"
    run("topic", "create", topic, "--read-queues", 3, "--write-queues", 2, "--permission", "r")
    run("group", "create", group, "--retries", 7)
    file.write_text(run("cluster", "export"))
    exported = json.loads(file.read_text())
    assert {TOPIC, topic} <= exported["topicConfigTable"].keys()
    assert {GROUP, group} <= exported["subscriptionGroupTable"].keys()
    assert not [name for name in exported["topicConfigTable"] if name.startswith(("%", "TBW102", "RMQ_SYS"))]
    with EmbeddedServers() as others:
        other = Commands(others.namesrv)
        done = other.json("cluster", "import", file, "--broker", "broker-a")
        assert {topic, TOPIC} <= set(done["topics"])
        [config] = other.json("topic", "config", topic)
        assert (config["read_queues"], config["write_queues"], config["permission"]) == (3, 2, "r")
        assert other.json("group", "config", group)[0]["retries"] == 7
        assert json.loads(other("cluster", "export", "--broker", "broker-a")) == exported
        assert "topics and 0 groups are on all brokers" in other(
            "cluster",
            "import",
            "-",
            standard_input='[{"topicName": "cli-list"}, {"topicName": "cli-list-2"}]',
        )
        assert other.json("topic", "config", "cli-list")
    run("topic", "delete", topic, "--yes")
    run("group", "delete", group, "--yes")


def test_a_group_is_moved(run: Commands) -> None:
    group, clone = fresh_name("cli-moved"), fresh_name("cli-clone")

    def committed(group: str) -> list[int]:
        return [row["committed"] for row in run.json("offset", "list", group, TOPIC)]

    run("group", "create", group)
    run("offset", "reset", group, TOPIC, "--to", "begin", "--yes")
    assert committed(group) == [0, 0]
    run("offset", "skip", group, TOPIC, "--yes")
    assert committed(group) == [4, 4]
    run("offset", "reset", group, TOPIC, "--queue", "broker-a:1", "--offset", "2", "--yes")
    assert committed(group) == [4, 2]
    run("group", "create", clone)
    assert run.json("offset", "clone", group, clone)["topics"] == [TOPIC]
    assert committed(clone) == [4, 2]
    planned = run.json("offset", "reset", group, TOPIC, "--to", "1h", "--dry-run")
    assert committed(group) == [4, 2], "nothing is changed"
    moved = run.json("offset", "reset", group, TOPIC, "--to", "1h", "--yes")
    assert moved == planned
    assert (moved["skipped"], moved["again"]) == (0, 6)
    assert [(row["old"], row["new"], row["change"]) for row in moved["queues"]] == [(4, 0, -4), (2, 0, -2)]
    assert run.json("offset", "skip", group, TOPIC, "--dry-run")["skipped"] == 8
    refused = run.invoke("offset", "clone", group, clone)
    assert (refused.exit_code, "Overwrite the offsets" in refused.stderr) == (2, True)
    assert committed(clone) == [4, 2]
    run("offset", "clone", group, clone, "--yes")
    assert committed(clone) == [0, 0]


# --- Messages ---


def test_messages_are_found(run: Commands) -> None:
    [found] = run.lines("message", "key", TOPIC, "key-3")
    assert (found["body"], found["tags"], found["queue"], found["offset"]) == ('{"order":3}', "paid", 1, 1)
    for wanted in (found["message_id"], found["offset_message_id"]):
        assert run.json("message", "get", TOPIC, wanted) == found
    assert run.json("message", "get", found["offset_message_id"]) == found
    unique = ("message", "key", TOPIC, found["message_id"], "--unique")
    assert run.lines(*unique) == [found]
    assert run.invoke(*unique, "--until", "2001-01-01").exit_code == 1
    assert run.json("message", "at", TOPIC, "broker-a:1", 1) == found
    assert ["id", found["message_id"]] in run.rows("message", "get", TOPIC, found["message_id"])
    tracked = run.json("message", "get", TOPIC, found["message_id"], "--track")
    assert {row["group"] for row in tracked["groups"]} >= {GROUP}
    place = run.json("message", "id", found["offset_message_id"])
    assert (place["kind"], place["broker"]) == ("offset id", found["store_host"])
    maker = run.json("message", "id", found["message_id"])
    assert (maker["kind"], maker["process"]) == ("unique id", os.getpid() & 0xFFFF)
    assert 0 <= found["stored_ms"] - maker["made_about"] < 60_000
    [unit] = run.json("message", "units", TOPIC, "broker-a:1", 1, "--limit", 1)["units"]
    assert unit["physical_offset"] == place["physical_offset"]
    listed = run.lines("message", "list", TOPIC, "--since", "1h", "--tags", "paid")
    assert [json.loads(item["body"])["order"] for item in listed] == [1, 3, 5, 7]


def test_what_is_not_found_has_exit_code_1(run: Commands) -> None:
    for words in (
        ("message", "key", TOPIC, "no-such-key"),
        ("message", "list", TOPIC, "--until", "2001-01-01"),
    ):
        assert run.invoke(*words).exit_code == 1
    missing = run.invoke("message", "trace", "no-such-id")
    assert missing.exit_code == 1
    assert "no trace of no-such-id" in missing.stderr


def test_a_trace_is_a_timeline(run: Commands) -> None:
    topic, key = fresh_name("cli-traced"), fresh_name("traced")
    run("topic", "create", topic)
    cells = run.rows("send", topic, "hello", "--key", key, "--trace")[0]
    steps: list[Any] = []

    def is_told() -> bool:
        result = run.invoke("message", "trace", cells[0], "--json")
        steps[:] = json.loads(result.stdout.splitlines()[0])
        return bool(steps)

    until(is_told)
    assert [(step["what"], step["outcome"], step["group"]) for step in steps] == [
        ("sent", "ok", "skylark-send")
    ]
    assert f"5 bytes to topic {topic}" in steps[0]["details"]
    assert run.json("message", "trace", key) == steps


# --- Send and tail ---


def test_what_is_sent_is_seen(run: Commands) -> None:
    topic = fresh_name("cli-sent")
    run("topic", "create", topic, "-q", "1")
    [one] = run.lines("send", topic, '{"id": 42}', "-t", "created", "-k", "42", "-p", "a=5")
    assert (one["broker"], one["queue"], one["offset"], one["status"]) == ("broker-a", 0, 0, "SEND_OK")
    assert len(run.rows("send", topic, "order {n}", "-c", "3")) == 3
    run("send", topic, "--lines", "--order-by", "k", standard_input="x\ny\n")
    run("send", topic, "--queue", "broker-a:0", standard_input=b"\xff\x00")
    messages = run.lines("tail", topic, "--from", "begin", "--no-follow")
    assert [item.get("body") for item in messages] == [
        '{"id": 42}', "order 1", "order 2", "order 3", "x", "y", None,
    ]  # fmt: skip
    first = messages[0]
    assert (first["tags"], first["keys"], first["properties"]["a"]) == ("created", ["42"], "5")
    assert messages[-1]["body_base64"] == "/wA="
    assert [item["properties"].get("__SHARDINGKEY") for item in messages[4:6]] == ["k", "k"]


@pytest.mark.parametrize(
    ("words", "orders"),
    [
        ((), [0, 1, 2, 3, 4, 5, 6, 7]),
        (("-n", "3"), [5, 6, 7]),
        (("-n", "0"), []),
        (("--from", "begin", "--limit", "2"), None),
        (("--from", "end"), []),
        (("--from", "1h", "--tags", "paid"), [1, 3, 5, 7]),
        (("--from", "begin", "--sql", "amount > 5"), [6, 7]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_tail_shows_what_is_wanted(run: Commands, words: tuple[str, ...], orders: list[int] | None) -> None:
    found = [json.loads(item["body"])["order"] for item in run.lines("tail", TOPIC, "--no-follow", *words)]
    assert len(found) == 2 if orders is None else sorted(found) == orders


def test_tail_prints_lines_and_bodies(run: Commands) -> None:
    bodies = run("tail", TOPIC, "--no-follow", "--from", "begin", "--body").splitlines()
    assert sorted(bodies) == [f'{{"order":{number}}}' for number in range(MESSAGES)]
    last = run.rows("tail", TOPIC, "--no-follow", "-n", "1")[-1]
    assert (last[1], last[5], last[6], last[7]) == ("broker-a", "paid", "key-7", '{"order":7}')


def test_a_topic_is_copied_through_a_pipe(run: Commands) -> None:
    topic = fresh_name("cli-copy")
    copied = run("tail", TOPIC, "--no-follow", "--from", "begin", "--json")
    run("send", topic, "--from-json", standard_input=copied)
    until(lambda: len(run.invoke("message", "list", topic, "--json").stdout.splitlines()) == MESSAGES)
    items = run.lines("message", "list", topic)
    assert {(item["tags"], *item["keys"], item["properties"]["amount"]) for item in items} == {
        (("created", "paid")[number % 2], f"key-{number}", str(number)) for number in range(MESSAGES)
    }


# --- Clients, dead letters, everything ---


def test_clients_say_what_they_do_and_dead_letters_are_sent_again(run: Commands) -> None:
    topic = group = fresh_name("cli-fails")
    run("topic", "create", topic, "-q", "1")
    run("group", "create", group, "--retries", "0")
    failing = True
    bodies: list[bytes] = []

    class Listener(MessageListenerConcurrently):
        def consume_message(self, messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
            if failing:
                return ConsumeConcurrentlyStatus.RECONSUME_LATER
            bodies.extend(message.body for message in messages)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    settings = PushConsumerSettings(reconsume_times_max=0)
    consumer = PushConsumer(group, namesrv=run.namesrv, settings=settings)
    consumer.listen(Listener())
    consumer.subscribe(topic)
    with consumer:
        until(lambda: run.invoke("consumer", "list", group).exit_code == 0)
        members = run.json("consumer", "list", group)
        [client] = [row["client"] for row in members["clients"]]
        assert members["model"] == "CLUSTERING"
        [cells] = run.rows("send", topic, "letter")
        until(lambda: run.invoke("dlq", "show", group, "--json").stdout)
        status = run.json("consumer", "status", group)
        assert {queue["topic"] for queue in status[client]["queues"]} >= {topic}
        assert client in run("consumer", "status", group)
        [letter] = run.lines("dlq", "show", group)
        assert (letter["origin_topic"], letter["body"]) == (topic, "letter")
        [row] = [row for row in run.json("dlq", "list") if row["group"] == group]
        assert (row["letters"], row["waiting"]) == (1, 1)
        refused = run.invoke("message", "consume", group, client, topic, cells[0])
        assert (refused.exit_code, refused.stdout.splitlines()[0]) == (1, "result\tCR_LATER")
        failing = False
        taken = run.json("message", "consume", group, client, topic, cells[0])
        assert (taken["result"], bodies) == ("CR_SUCCESS", [b"letter"])
        assert run.json("dlq", "resend", group, "--dry-run")[0]["outcome"] == "would be sent"
        assert run.json("dlq", "resend", group, "--yes")[0]["outcome"] == "sent"
        until(lambda: len(bodies) == 2)
        assert run.json("dlq", "resend", group, "--yes") == []
        by_id = run.json("dlq", "resend", group, "--id", letter["message_id"], "--yes")
        assert [item["outcome"] for item in by_id] == ["sent"]
        until(lambda: len(bodies) == 3)
        [position] = run.json("consumer", "positions", group, topic)
        assert position == {"client": client, "broker": "broker-a", "queue": 0, "offset": 1}


def test_top_shows_everything_once(run: Commands) -> None:
    document = run.json("top", "--once", "--every", "0.1")
    assert [row["broker"] for row in document["brokers"]] == ["broker-a"]
    assert {"topic": TOPIC, "messages": MESSAGES, "in_per_s": 0.0} in document["topics"]
    [group] = [row for row in document["groups"] if row["group"] == GROUP]
    assert (group["lag"], group["topics"]) == (MESSAGES, [TOPIC])
    assert document["failures"] == []
    assert run("top", "--every", "0.1").startswith("broker\tid\taddress")


def test_the_doctor_finds_the_servers_well(run: Commands, tmp_path: Any) -> None:
    result = run.invoke("doctor", "--data", tmp_path, "--json")
    checks = {item["check"]: item for item in json.loads(result.stdout)}
    for name in ("Python", "name servers", "broker broker-a", "clock of broker broker-a"):
        assert checks[name]["state"] == "ok", checks[name]
    assert all(item["advice"] for item in checks.values() if item["state"] != "ok" and item["found"])


# --- The shell ---


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("skylark topic status cli-ord", [TOPIC]),
        ("skylark group status cli-bil", [GROUP]),
        ("skylark broker config bro", ["broker-a"]),
        ("skylark topic list --cluster Def", ["DefaultCluster"]),
        ("skylark off", ["offset"]),
    ],
)
def test_the_shell_completes_what_servers_know(run: Commands, words: str, completions: list[str]) -> None:
    environment = {
        **os.environ,
        "NAMESRV_ADDR": run.namesrv,
        "_SKYLARK_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    script = Path(sys.executable).parent / "skylark"
    done = subprocess.run(
        [str(script)], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout.split() == completions


def test_nothing_is_completed_without_servers() -> None:
    context = cast("typer.Context", SimpleNamespace(params={"namesrv": "127.0.0.1:1"}))
    assert complete_topic(context, "") == []


def test_whoever_reads_the_output_may_leave(run: Commands) -> None:
    """Also if it leaves when all has been written, and nothing new comes."""
    tail = f"{sys.executable} -m skylark tail {TOPIC} --from begin --json"
    command = f"{tail} | (sleep 3; head -1)"
    done = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "NAMESRV_ADDR": run.namesrv},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert json.loads(done.stdout)["topic"] == TOPIC
    assert done.stderr == ""


def skylark(run: Commands, *words: str | bytes, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """The command as a process."""
    environment = {**os.environ, "NAMESRV_ADDR": run.namesrv, **more.pop("env", {})}
    command = [sys.executable, "-m", "skylark", *words]
    options = {"stdout": subprocess.PIPE, **more}
    return subprocess.run(
        command, env=environment, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False, **options
    )


def test_a_body_may_be_any_bytes_and_be_printed_anywhere(run: Commands) -> None:
    topic = fresh_name("cli-bytes")
    assert skylark(run, "send", topic, b"\xff\xfe", "--tag", "raw").returncode == 0
    assert skylark(run, "send", topic, "\u5f20", "--tag", "text").returncode == 0
    [found] = run.lines("tail", topic, "--no-follow", "--tags", "raw")
    assert found["body_base64"] == "//4="
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    done = skylark(run, "message", "list", topic, "--tags", "text", env=ascii_only)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u5f20" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output_is_said(run: Commands) -> None:
    with Path("/dev/full").open("wb") as full:
        done = skylark(run, "topic", "list", stdout=full)
    assert (done.returncode, done.stderr) == (2, b"skylark: No space left on device\n")


def test_watching_without_a_terminal_prints_again_and_again(run: Commands) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "skylark",
            "topic",
            "status",
            TOPIC,
            "-w",
            "--every",
            "0.1",
            "--json",
        ],
        env={**os.environ, "NAMESRV_ADDR": run.namesrv},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert (first["in_per_s"], second["in_per_s"]) == (None, 0.0)
    assert (process.returncode, errors) == (0, "")


# --- Mistakes ---


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("topic", "status", "nothing"), "No route info of this topic: nothing"),
        (("topic", "create", "a b"), "topic 'a b': "),
        (("topic", "create", "x", "--permission", "x"), "invalid --permission 'x'; choose rw, r or w"),
        (("topic", "create", "x", "--attribute", "a"), "invalid --attribute 'a'; write KEY=VALUE"),
        (("topic", "create", "x", "--cluster", "other"), "unknown cluster other"),
        (("topic", "create", "x", "--broker", "other"), "unknown broker other"),
        (("topic", "list", "--cluster", "other"), "unknown cluster other; known clusters: DefaultCluster"),
        (("topic", "update", TOPIC), "nothing to change"),
        (("topic", "delete", TOPIC), "Not a terminal: pass --yes"),
        (("topic", "order", TOPIC, "a:1", "--remove"), "not both"),
        (("topic", "share", TOPIC, "a", "--strategy", "X"), "unknown strategy 'X'"),
        (("group", "status", "nobody"), "no group nobody"),
        (("group", "config", "nobody"), "no group nobody"),
        (("group", "update", "nobody", "--retries", "1"), "no group nobody"),
        (("group", "update", GROUP), "nothing to change"),
        (("group", "mode", GROUP, TOPIC, "push"), "invalid mode 'push'; choose PULL or POP"),
        (("cluster", "import", __file__), "is not a file of `skylark cluster export`"),
        (("message", "trace", "X", "--trace-topic", "none"), "traceTopicEnable=true"),
        (("cluster", "import", "nowhere.json"), "nowhere.json: No such file or directory"),
        (("cluster", "export", "--broker", "broker-z"), "broker-z"),
        (("group", "delete", GROUP), "Not a terminal: pass --yes"),
        (("group", "delete", "nobody", "--yes"), "no group nobody"),
        (("offset", "reset", GROUP, TOPIC), "pass either --to TIME, or --queue"),
        (("offset", "reset", GROUP, TOPIC, "--to", "soon"), "--to: invalid time 'soon'"),
        (
            ("offset", "reset", GROUP, TOPIC, "--queue", "x", "--offset", "1"),
            "write BROKER:ID, such as broker-a:0",
        ),
        (("offset", "reset", "nobody", TOPIC, "--to", "begin", "--yes"), "nobody"),
        (("offset", "clone", "nobody", "x"), "group nobody has no offsets"),
        (("consumer", "list", GROUP), "not online"),
        (("message", "get", TOPIC, "x"), f"topic {TOPIC} has no message x"),
        (("message", "at", TOPIC, "broker-a:0", "99"), "no message at offset 99 of queue broker-a:0"),
        (("message", "at", TOPIC, "broker-x:0", "0"), "is not on broker broker-x"),
        (("message", "id", "xyz"), "invalid id 'xyz'"),
        (("message", "get", "xyz"), "skylark message get TOPIC xyz"),
        (("message", "get", "a", "b", "c"), "3 arguments, but a topic and an id are wanted"),
        (("message", "list", TOPIC, "--since", "1h", "--until", "2h"), "--since 1h is later than --until 2h"),
        (("dlq", "resend", GROUP, "--id", "x"), f"group {GROUP} has no dead letter x"),
        (("broker", "clean", "all"), "choose queues, topics, log"),
        (("broker", "config", "other"), "unknown broker other"),
        (("broker", "set", "nothing"), "invalid setting 'nothing'; write KEY=VALUE"),
        (
            ("broker", "set", "fileReservedTim=48"),
            "unknown setting fileReservedTim; did you mean fileReservedTime?",
        ),
        (
            ("broker", "set", "forceRegister=true", "--broker", "broker-a"),
            "forceRegister has no effect: a broker",
        ),
        (("broker", "drain", "broker-z"), "unknown broker broker-z; known brokers: broker-a"),
        (("broker", "ha", "broker-z"), "unknown broker broker-z; known brokers: broker-a"),
        (("namesrv", "delete", "NS", "zzz"), "no zzz in NS"),
        (("tail", TOPIC, "--tags", "a", "--sql", "b > 1"), "not both"),
        (("tail", TOPIC, "--json", "--body"), "not both"),
        (("tail", TOPIC, "--from", "soon"), "--from: invalid time 'soon'"),
        (("tail", TOPIC, "--sql", "amount >", "--no-follow"), "amount >"),
        (("send", "a b", "x"), "topic 'a b'"),
        (("send", TOPIC, "x", "--queue", "nowhere"), "write BROKER:ID, such as broker-a:0"),
        (("topic", "list", "--namesrv", "nonsense"), "invalid address 'nonsense'; use host:port"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    run: Commands, words: tuple[str, ...], sentence: str
) -> None:
    result = run.invoke(*words)
    assert result.exit_code == 2, (result.output, result.exception)
    first = result.stderr.splitlines()[0]
    assert first.startswith("skylark: ")
    assert sentence in first
    assert all(line.startswith("  hint: ") for line in result.stderr.splitlines()[1:])


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "create", "x"),
        ("group", "create", "x"),
        ("broker", "set", "fileReservedTime=48"),
        ("broker", "clean", "log", "--yes"),
        ("cluster", "import", "-"),
    ],
    ids=" ".join,
)
def test_nothing_is_called_done_that_no_broker_has_done(words: tuple[str, ...]) -> None:
    with EmbeddedServers() as servers:
        servers.stop_broker()
        run = Commands(servers.namesrv)
        assert run.json("broker", "list") == []
        result = run.invoke(*words, standard_input='[{"topicName": "x"}]')
        assert result.exit_code == 2, result.output
        assert f"no broker is registered with {servers.namesrv}" in result.stderr


def test_servers_that_are_not_there_are_said() -> None:
    result = Commands("127.0.0.1:1").invoke("topic", "list")
    assert result.exit_code == 2
    assert "cannot connect to name server 127.0.0.1:1" in result.stderr
    assert "hint: is it running? `skylark serve` starts one here" in result.stderr
