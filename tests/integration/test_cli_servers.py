"""`skylark namesrv`, `broker` and `serve` as a person starts them: as processes, by their flags."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skylark import __version__
from skylark.cli import broker_processes
from skylark.errors import TopicNotExist
from skylark.model.record import decode_all
from skylark.protocol.bodies import TopicRouteData
from skylark.protocol.requests.name_server import GetRouteInfoByTopic
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PullMessage
from skylark.protocol.requests.send import SendMessageV2
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.settings import BrokerSettings, NameServerSettings, StoreSettings

SKYLARK = [sys.executable, "-m", "skylark"]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SKYLARK, *arguments], capture_output=True, text=True, timeout=120, check=False)


class Running:
    """A server process and what it printed when it was ready."""

    def __init__(self, process: subprocess.Popen[str], last_words: str) -> None:
        self.process = process
        assert process.stdout is not None
        self.said = ""
        while last_words not in self.said:
            line = process.stdout.readline()
            assert line, f"the server ended: {self.said}"
            self.said += line

    def address(self, what: str) -> str:
        found = re.search(rf"{what} on (\S+?)[, ]", self.said)
        assert found, self.said
        return found[1]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


@contextmanager
def started(*arguments: str, last_words: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [*SKYLARK, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield Running(process, last_words)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def started_serve(data: Path, *more: str) -> Iterator[Running]:
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--set", "metricsPromExporterPort=0")
    with started("serve", "--data", str(data), *ports, *more, last_words="/health") as running:
        yield running


def send(address: str, topic: str, body: bytes) -> int:
    request = SendMessageV2(
        producer_group="cli", topic=topic, default_topic="TBW102", default_topic_queue_nums=1, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0, properties="TAGS\x01a\x02", body=body,
    )  # fmt: skip
    connection = BlockingConnection(address)
    try:
        return connection.call(request).reply.queue_offset
    finally:
        connection.close()


def pull(address: str, topic: str) -> list[bytes]:
    request = PullMessage(
        consumer_group="cli", topic=topic, queue_id=0, queue_offset=0, max_msg_nums=32,
        sys_flag=PULL_SUBSCRIPTION, commit_offset=0, suspend_timeout_ms=0, sub_version=0, subscription="*",
        expression_type="TAG",
    )  # fmt: skip
    connection = BlockingConnection(address)
    try:
        return [message.body for message in decode_all(connection.call(request).records)]
    finally:
        connection.close()


def route_of(name_server: str, topic: str) -> TopicRouteData:
    """The route, once the broker's registration has arrived."""
    deadline = time.monotonic() + START_TIMEOUT_S
    connection = BlockingConnection(name_server)
    try:
        while True:
            try:
                return connection.call(GetRouteInfoByTopic(topic))
            except TopicNotExist:
                assert time.monotonic() < deadline
    finally:
        connection.close()


def check_first_words(said: str, data: Path) -> None:
    """Whoever starts a server learns its version, all addresses, the store, and how long it took."""
    patterns = (
        rf"skylark {re.escape(__version__)}: name server on 127\.0\.0\.1:\d+, ready after \d+\.\d\d s",
        rf"skylark {re.escape(__version__)}: broker broker-a on 127\.0\.0\.1:(\d+) \(fast port (\d+)\)",
        rf"store {re.escape(str(data))}, flush ASYNC_FLUSH, ASYNC_MASTER, port for slaves (\d+)",
        r"metrics http://127\.0\.0\.1:\d+/metrics, health http://127\.0\.0\.1:\d+/health",
    )
    _, broker, store, _ = (re.search(pattern, said) for pattern in patterns)
    assert broker, said
    assert store, said
    port = int(broker[1])
    assert (int(broker[2]), int(store[1])) == (port - 2, port + 1)
    assert all(re.search(pattern, said) for pattern in patterns), said


def test_serve_takes_messages_and_keeps_them_over_a_restart(tmp_path: Path) -> None:
    with started_serve(tmp_path) as first:
        check_first_words(first.said, tmp_path)
        broker = first.address("broker broker-a")
        assert [send(broker, "orders", body) for body in (b"one", b"two")] == [0, 1]
        route = route_of(first.address("name server"), "orders")
        assert [data.broker_addrs for data in route.broker_datas] == [{0: broker}]
        assert first.stop() == 0
    with started_serve(tmp_path) as second:
        assert pull(second.address("broker broker-a"), "orders") == [b"one", b"two"]
    more = run("serve", "--data", str(tmp_path), "--brokers", "2")
    assert (more.returncode, "holds the store of one broker" in more.stderr) == (2, True), more.stderr


def test_a_server_takes_all_descriptors_that_it_may_have(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with started_serve(tmp_path) as server:
        soft, _ = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard


def test_several_brokers_share_a_name_server_and_a_dead_one_comes_back(tmp_path: Path) -> None:
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--set", "metricsPromExporterPort=0")
    arguments = ("serve", "--data", str(tmp_path), "--brokers", "2", *ports)
    with started(*arguments, last_words="2 brokers, ready") as running:
        name_server = running.address("name server")
        brokers = {name: running.address(f"broker {name}") for name in ("broker-a", "broker-b")}
        assert send(brokers["broker-b"], "orders", b"kept") == 0
        [pid] = children_named(running.process.pid, "broker-b")
        os.kill(pid, signal.SIGKILL)
        assert running.process.stdout is not None
        while "broker-b on" not in (line := running.process.stdout.readline()):
            assert line, "the server ended"
        again = re.search(r"broker broker-b on (\S+)", line)
        assert again is not None
        assert pull(again[1], "orders") == [b"kept"]
        names = {data.broker_name for data in route_of(name_server, "TBW102").broker_datas}
        assert "broker-a" in names
        assert running.stop() == 0
    assert (tmp_path / "broker-b" / "commitlog").is_dir()
    assert children_named(running.process.pid, "broker-") == []


def test_topics_are_on_all_brokers_of_serve_whoever_makes_them(tmp_path: Path) -> None:
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--set", "metricsPromExporterPort=0")
    arguments = ("serve", "--data", str(tmp_path), "--brokers", "3", *ports)
    names = ["broker-a", "broker-b", "broker-c"]
    with started(*arguments, last_words="3 brokers, ready") as running:
        name_server = running.address("name server")
        assert send(running.address("broker broker-b"), "automatic", b"the first message") == 0
        made = run("topic", "create", "by-hand", "--queues", "4", "--namesrv", name_server)
        assert made.returncode == 0, made.stderr
        for topic in ("automatic", "by-hand"):
            deadline = time.monotonic() + START_TIMEOUT_S
            while len(queues := route_of(name_server, topic).queue_datas) < len(names):
                assert time.monotonic() < deadline, f"{topic} is only on {queues}"
                time.sleep(0.05)
            assert sorted(each.broker_name for each in queues) == names
            assert len({(each.read_queue_nums, each.write_queue_nums, each.perm) for each in queues}) == 1
        # A topic of one broker alone stays there: only what a send creates is shared.
        run("topic", "create", "of-one", "--broker", "broker-a", "--namesrv", name_server)
        assert [each.broker_name for each in route_of(name_server, "of-one").queue_datas] == ["broker-a"]
        assert running.stop() == 0


def test_several_brokers_have_each_their_own_log_whatever_is_set_for_all(tmp_path: Path) -> None:
    """Two brokers that write to one log destroy each other's messages."""
    config = tmp_path / "broker.conf"
    config.write_text(
        f"brokerName=mine\nstorePathRootDir={tmp_path / 'store'}\nstorePathCommitLog={tmp_path / 'log'}\n"
        "mappedFileSizeCommitLog=1048576\n"
    )
    sets = ("listenPort=0", "metricsPromExporterPort=0")
    flags = [word for text in sets for word in ("--set", text)]
    arguments = ("serve", "--brokers", "2", "--namesrv-port", "0", "-c", str(config), *flags)
    with started(*arguments, last_words="2 brokers, ready") as running:
        names = ("broker-a", "broker-b")
        for name in names:
            assert send(running.address(f"broker {name}"), "orders", name.encode()) == 0
        for name in names:
            assert pull(running.address(f"broker {name}"), "orders") == [name.encode()]
        assert running.stop() == 0
    assert "given twice" not in running.said
    for name in names:
        log = ("--commit-log", str(tmp_path / "log" / name))
        verified = run("store", "verify", str(tmp_path / "store" / name), *log)
        assert verified.returncode == 0, verified.stdout


def test_brokers_that_take_long_to_start_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that was killed may take minutes to recover; nobody gets further by being stopped meanwhile."""
    monkeypatch.setattr(broker_processes, "LATE_S", 0.01)
    said: list[str] = []

    def ready(_: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    settings = BrokerSettings(port=0, metrics_port=0, store=StoreSettings(path=tmp_path))
    name_server = NameServerSettings(port=0, kv_config_path=tmp_path / "kvConfig.json")
    asyncio.run(broker_processes.serve_processes(name_server, settings, 2, (), said.append, ready))
    assert "broker-a, broker-b: not ready yet; the store may be recovering" in said
    assert not list(tmp_path.glob("broker-*/abort")), said


def test_ctrl_c_ends_brokers_that_are_not_ready_yet(tmp_path: Path) -> None:
    async def serve_and_stop_at_once() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        settings = BrokerSettings(port=0, metrics_port=0, store=StoreSettings(path=tmp_path))
        name_server = NameServerSettings(port=0, kv_config_path=tmp_path / "kvConfig.json")
        await broker_processes.serve_processes(name_server, settings, 2, (), lambda _: None, ready.append)

    ready: list[str] = []
    asyncio.run(serve_and_stop_at_once())
    assert ready == []
    assert children_named(os.getpid(), str(tmp_path)) == []  # other tests' servers may be our children


def test_brokers_end_in_order_when_the_process_that_watches_them_is_killed(tmp_path: Path) -> None:
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--set", "metricsPromExporterPort=0")
    with started(
        "serve", "--data", str(tmp_path), "--brokers", "2", *ports, last_words="2 brokers, ready"
    ) as running:
        pids = children_named(running.process.pid, "broker-")
        assert len(pids) == 2
        running.process.kill()
        running.process.wait(STOP_TIMEOUT_S)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(map(is_running, pids)):
            assert time.monotonic() < deadline, "brokers go on without anybody who watches them"
            time.sleep(0.05)
    assert not list(tmp_path.glob("broker-*/abort")), "a broker was killed instead of stopped"


def is_running(pid: int) -> bool:
    """Whether a process works; one that ended and that nobody waits for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")


def children_named(parent: int, words: str) -> list[int]:
    """The processes that a process has started, as far as their command lines have these words."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()[1:]]
    return [int(pid) for pid, ppid, args in rows if int(ppid) == parent and words in args]


def test_as_many_brokers_as_there_are_letters(tmp_path: Path) -> None:
    done = run("serve", "--data", str(tmp_path), "--brokers", "27", "--namesrv-port", "0")
    assert (done.returncode, done.stderr) == (2, "skylark: invalid --brokers 27; choose 1 to 26\n")


def test_metrics_and_health_are_served(tmp_path: Path) -> None:
    with started_serve(tmp_path) as running:
        broker = running.address("broker broker-a")
        send(broker, "orders", b"counted")
        found = re.search(r"metrics (\S+)/metrics", running.said)
        assert found
        with urllib.request.urlopen(f"{found[1]}/metrics", timeout=60) as page:  # noqa: S310
            metrics = page.read().decode()
        assert re.search(r'^rocketmq_messages_in_total{.*topic="orders"} 1.0$', metrics, re.MULTILINE)
        with urllib.request.urlopen(f"{found[1]}/health", timeout=60) as health:  # noqa: S310
            assert (health.status, health.read()) == (200, b"ok\n")
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"{found[1]}/nothing", timeout=60)  # noqa: S310
        caught.value.close()


def test_a_broker_registers_with_a_name_server_of_its_own_process(tmp_path: Path) -> None:
    settings = ("--set", f"kvConfigPath={tmp_path / 'kv.json'}")
    with started("namesrv", "--port", "0", *settings, last_words="ready") as name_server:
        address = name_server.address("name server")
        flags = ("--namesrv", address, "--data", str(tmp_path / "store"), "--port", "0", "--name", "broker-x")
        more = ("--flush", "sync", "--set", "metricsPromExporterPort=0")
        with started("broker", *flags, *more, last_words="/health") as running:
            broker = running.address("broker broker-x")
            assert "SYNC_FLUSH" in running.said
            assert send(broker, "orders", b"flushed") == 0
            assert [data.broker_name for data in route_of(address, "orders").broker_datas] == ["broker-x"]
            assert running.stop() == 0
        assert name_server.stop() == 0


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with started_serve(tmp_path):
        second = run("serve", "--data", str(tmp_path), "--namesrv-port", "0", "--broker-port", "0")
    assert second.returncode == 2
    sentence, hint = second.stderr.splitlines()
    assert sentence.endswith("is in use by another process")
    assert hint == "  hint: another server has it open: stop that one, or choose another directory"


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--data", str(tmp_path), "--namesrv-port", str(port), "--broker-port", "0")
    assert done.returncode == 2
    said, hint = done.stderr.splitlines()
    assert said == f"skylark: 127.0.0.1:{port} is in use already"
    assert hint.startswith("  hint: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["broker", "--flush", "maybe"], "invalid --flush 'maybe'; choose async or sync"),
        (["broker", "--set", "nonsense"], "KEY=VALUE"),
        (["broker", "--set", "brokerNam=x"], "brokerName"),
        (["broker", "--set", "listenPort=99999"], "listenPort"),
        (["broker", "-c", "missing.conf"], "missing.conf"),
        (["namesrv", "--set", "listenPort=x"], "listenPort"),
        (["namesrv", "--bind", "no..name", "--port", "0"], "cannot listen on no..name"),
        (["broker", "--bind", "192.0.2.1", "--port", "0"], "cannot listen on 192.0.2.1"),
        (["serve", "--bind", "192.0.2.1", "--broker-port", "0"], "cannot listen on 192.0.2.1"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["namesrv", "serve"])
def test_the_environment_speaks_to_a_name_server(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SKYLARK_NAMESRV_BROKERS_MAX", "none")
    done = run(command)
    assert (done.returncode, "brokers_max: invalid value 'none'" in done.stderr) == (2, True), done.stderr
    assert "environment SKYLARK_NAMESRV_BROKERS_MAX" in done.stderr
    assert not list(tmp_path.iterdir())


def test_name_servers_that_serve_does_not_join_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("namesrvAddr=10.0.0.5:9876\n")
    nowhere = ("--bind", "192.0.2.1", "--data", str(tmp_path / "data"))
    assert "`serve` runs its own name server" in run("serve", "-c", str(config), *nowhere).stderr
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.5:9876")
    assert "namesrvAddr" not in run("serve", *nowhere).stderr


def test_the_printed_config_can_be_loaded_again(tmp_path: Path) -> None:
    printed = run("broker", "--name", "broker-z", "--set", "fileReservedTime=7", "--print-config")
    assert printed.returncode == 0
    assert "brokerName=broker-z" in printed.stdout
    (tmp_path / "broker.conf").write_text(printed.stdout)
    again = run("broker", "-c", str(tmp_path / "broker.conf"), "--print-config")
    assert again.stdout == printed.stdout


def test_who_listens_elsewhere_than_clients_are_told_says_so(tmp_path: Path) -> None:
    addresses = ("--bind", "127.0.0.2", "--advertise", "127.0.0.1")
    with started_serve(tmp_path, *addresses) as running:
        assert re.search(
            r"broker broker-a on 127\.0\.0\.1:\d+ \(fast port \d+, bound to 127\.0\.0\.2\)", running.said
        )


def test_binding_everywhere_without_an_address_for_clients_is_warned_of(tmp_path: Path) -> None:
    done = run("broker", "--bind", "0.0.0.0", "--data", "/proc/nothing", "--port", "0")  # noqa: S104
    assert "--advertise HOST" in done.stderr
    assert done.returncode == 2
