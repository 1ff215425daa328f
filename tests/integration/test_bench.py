"""`skylark bench` for about a second each, against embedded servers whose stores must hold what was sent."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from benchmarks.soak.run import BROKER_SETTINGS, LogFiles
from skylark.bench import load_target
from skylark.bench.load import Load, LoadFailed, LoadKind
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import LoadTarget
from skylark.bench.results import Document, decode
from skylark.bench.servers import own_servers
from skylark.cli.main import app
from skylark.model.message import SCHEDULE_TOPIC
from skylark.processes import listens
from skylark.testing import EmbeddedServers
from tests.support.names import fresh_name

STALL_S = 1.0
BROKER = re.compile(r"broker \S+ on (\S+) ")


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers(store={"commit_log_file_bytes": 64 << 20}) as running:
        yield running


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def bench(servers: EmbeddedServers, tmp_path: Path, *arguments: object) -> Document:
    """Run against the servers; the document that --out wrote."""
    out = tmp_path / "result.json"
    # Long enough for a machine that stalls for a second.
    times = ["--seconds", 2, "--warm-up", 0.2, "--out", out]
    result = invoke(*arguments, "-n", servers.namesrv, *times)
    assert result.exit_code == 0, result.output
    return decode(out.read_bytes())


# --- Every command ---


def test_producer(servers: EmbeddedServers, tmp_path: Path) -> None:
    before = servers.message_count("BenchmarkTest")
    document = bench(
        servers, tmp_path, "producer", "-w", 1, "-w", 16, "-s", 100, "-k", "true", "-l", 1, "-p", 50
    )
    assert [cell.name for cell in document.cells] == ["1 in flight, 100 B", "16 in flight, 100 B"]
    stored = servers.message_count("BenchmarkTest") - before
    assert stored >= sum(cell.operations for cell in document.cells) > 0
    for cell in document.cells:
        assert cell.latency_us is not None
        assert 0 < cell.latency_us.p50 <= cell.latency_us.p99 <= cell.latency_us.max
        assert cell.per_s == pytest.approx(cell.operations / cell.seconds, rel=0.01)


def test_producer_of_a_quantity_sends_no_more(servers: EmbeddedServers, tmp_path: Path) -> None:
    topic = fresh_name("counted")
    out = tmp_path / "result.json"
    result = invoke(
        "producer", "-n", servers.namesrv, "-t", topic, "-q", 500, "-w", 8, "--seconds", 60,
        "--warm-up", 0, "--out", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert servers.message_count(topic) == 500


def test_producer_one_way(servers: EmbeddedServers, tmp_path: Path) -> None:
    topic = fresh_name("oneway")
    out = tmp_path / "result.json"
    result = invoke(
        "producer", "--oneway", "-n", servers.namesrv, "-t", topic, "-q", 2000, "--seconds", 60,
        "--warm-up", 0, "--out", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    deadline = time.monotonic() + 60
    while servers.message_count(topic) < 2000:  # nobody has waited for the last of them
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert servers.message_count(topic) == 2000


def test_producer_of_delayed_messages_waits_for_them(servers: EmbeddedServers, tmp_path: Path) -> None:
    topic = fresh_name("postponed")
    started = time.monotonic()
    result = invoke(
        "producer", "-n", servers.namesrv, "-t", topic, "-q", 50, "-w", 4, "-d", "true", "-e", 1,
        "--seconds", 60, "--warm-up", 0, "--out", tmp_path / "result.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert time.monotonic() - started > 1
    assert servers.message_count(topic) == 50


def test_producer_in_an_open_loop(servers: EmbeddedServers, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    arguments = ["-n", servers.namesrv, "--rate", 200, "-w", 1024, "--out", out]
    result = invoke("producer", *arguments, "--seconds", 1, "--warm-up", 0.2)
    assert result.exit_code == 0, result.output
    (cell,) = decode(out.read_bytes()).cells
    assert cell.latency_us is not None
    # As many as were due, in a second or a little more, however slow the machine is.
    assert 195 <= cell.latency_us.count <= 200 * cell.seconds + 5


def test_producer_of_batches(servers: EmbeddedServers, tmp_path: Path) -> None:
    topic = fresh_name("batches")
    document = bench(servers, tmp_path, "producer", "-t", topic, "-b", 10, "-w", 4)
    (cell,) = document.cells
    assert cell.operations % 10 == 0
    stored = servers.message_count(topic)
    assert stored >= cell.operations > 0
    assert stored % 10 == 0


def test_pull(servers: EmbeddedServers, tmp_path: Path) -> None:
    topic = fresh_name("pulled")
    arguments = ["-t", topic, "-q", 2000, "-s", 64, "--readers", 1, "--readers", 2]
    alone, both = bench(servers, tmp_path, "pull", *arguments).cells
    assert servers.message_count(f"{topic}-64") >= 4000
    assert alone.operations >= 32
    assert (both.settings["processes"], both.operations >= 32) == (2, True)


def test_consumer(servers: EmbeddedServers, tmp_path: Path) -> None:
    topic = fresh_name("consumed")
    (cell,) = bench(servers, tmp_path, "consumer", "-t", topic, "-q", 3000, "-b", 32).cells
    assert cell.operations == servers.message_count(topic) >= 3000


@pytest.mark.parametrize(
    ("kind", "expression"), [("TAG", "TagA"), ("SQL92", "number > 4 AND region = 'north'")]
)
def test_consumer_of_a_group_that_filters(
    servers: EmbeddedServers, tmp_path: Path, kind: str, expression: str
) -> None:
    options = ["-t", fresh_name("chosen"), "-q", 500, "-f", kind, "-e", expression, "-g", "choosers"]
    (cell,) = bench(servers, tmp_path, "consumer", *options).cells
    assert cell.operations >= 500
    assert cell.settings["expression"] == expression


def test_consumer_whose_calls_fail(servers: EmbeddedServers, tmp_path: Path) -> None:
    options = ["-t", fresh_name("failing"), "-q", 400, "-r", 0.25]
    (cell,) = bench(servers, tmp_path, "consumer", *options).cells
    assert cell.operations >= 400
    assert int(cell.figures["calls_failed"] or 0) >= 90


def test_latency(servers: EmbeddedServers, tmp_path: Path) -> None:
    topic = fresh_name("timed")
    for stored_at_least in (190, 380):  # what the first run left is none of the second one's business
        (cell,) = bench(servers, tmp_path, "latency", "-t", topic, "--rate", 100, "-s", 64).cells
        assert cell.latency_us is not None
        assert 190 <= cell.latency_us.count <= servers.message_count(topic)
        assert servers.message_count(topic) >= stored_at_least
        assert cell.figures["repeated"] == 0


@pytest.mark.nightly
def test_latency_at_several_rates_beside_a_slow_group(servers: EmbeddedServers, tmp_path: Path) -> None:
    topic = fresh_name("beside")
    rates = ["--rate", 50, "--rate", 100, "--slow-groups", 1]
    document = bench(servers, tmp_path, "latency", "-t", topic, "-s", 64, *rates)
    assert [cell.name for cell in document.cells] == ["50/s", "100/s"]
    for cell, rate in zip(document.cells, (50, 100), strict=True):
        assert cell.latency_us is not None
        assert 90 <= cell.latency_us.count <= servers.message_count(f"{topic}-{rate}")


def test_transaction(servers: EmbeddedServers, tmp_path: Path) -> None:
    topic = fresh_name("traded")
    document = bench(servers, tmp_path, "transaction", "-t", topic, "-w", 4, "-sr", 0.5)
    (cell,) = document.cells
    assert cell.figures["commit"] == servers.message_count(topic)
    commits, rollbacks = int(cell.figures["commit"] or 0), int(cell.figures["rollback"] or 0)
    assert commits > 0
    assert abs(commits - rollbacks) <= 4  # those that were under way when the time was over


def test_store() -> None:
    result = invoke("store", "--seconds", 0.2, "--json")
    assert result.exit_code == 0, result.output
    cells = {cell.name: cell for cell in decode(result.stdout.encode()).cells}
    assert list(cells) == [
        "put", "get of 32", "scan with checksums", "sync flush, 1 waiting", "sync flush, 64 waiting",
    ]  # fmt: skip
    assert all(cell.operations > 0 for cell in cells.values())


# --- Servers of its own, files, faults ---


def test_own_servers_a_page_and_a_table(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = invoke("producer", "-w", 8, "--seconds", 2.5, "--warm-up", 0.2, "--report", page)
    assert result.exit_code == 0, result.output
    head, row, *_ = result.stdout.splitlines()
    assert head.split("\t")[:2] == ["cell", "per s"]
    assert row.split("\t")[0] == "8 in flight, 128 B"
    assert int(row.split("\t")[1].replace(",", "")) > 0
    text = page.read_text()
    assert "<svg" in text
    assert "started for this run" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["producer", "--flush", "perhaps"], "invalid flush mode 'perhaps'; choose async or sync"),
        (["producer", "-k", "perhaps"], "invalid --keys 'perhaps'; choose true or false"),
        (["producer", "--broker", "broker-a"], "needs a name server"),
        (["producer", "-n", "127.0.0.1:1"], "cannot connect to 127.0.0.1:1"),
        (["producer", "--set", "x"], "invalid --set 'x'; write KEY=VALUE"),
        (["producer", "--report", "/nowhere/at/all.html"], "no directory /nowhere/at"),
        (["latency", "-s", "3"], "invalid body_bytes 3; the send time needs at least 8"),
        (["transaction", "--rollback-rate", "0.7", "--unknown-rate", "0.7"], "exceed 1 together"),
        (
            ["transaction", "-cr", "0.7", "-cu", "0.7"],
            "--check-rollback-rate 0.7 and --check-unknown",
        ),
        (["consumer", "-f", "XPATH", "-e", "a"], "invalid --filter-type 'XPATH'; choose TAG or SQL92"),
        (["store", "-n", "127.0.0.1:1"], "leave out --namesrv"),
        (["producer", "-w", "0"], "--in-flight"),
    ],
)
def test_bad_flags_are_one_sentence(arguments: list[str], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


def test_a_broker_that_is_not_known(servers: EmbeddedServers) -> None:
    result = invoke("producer", "-n", servers.namesrv, "--broker", "nobody")
    assert result.exit_code == 2
    assert "nobody" in result.output


def test_an_end_from_outside_takes_the_servers_along(tmp_path: Path) -> None:
    with producing(tmp_path) as (process, address):
        process.terminate()
        assert process.wait(60) == 130
    assert list(tmp_path.iterdir()) == []
    assert not listens(address, 5)


def test_a_kill_takes_the_servers_along(tmp_path: Path) -> None:
    with producing(tmp_path) as (process, address):
        process.kill()
    deadline = time.monotonic() + 60
    while listens(address, 5):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def producing(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A run that goes on for minutes, its files in a directory; and the address of its own broker."""
    command = [sys.executable, "-m", "skylark", "bench", "producer", "--seconds", "300"]
    environment = {**os.environ, "TMPDIR": str(directory)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        yield process, _wait_for_broker(directory)


def _wait_for_broker(directory: Path) -> str:
    """The address of the broker that a run has started in a directory below this one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for log in directory.glob("skylark-bench-*/output-1.log"):
            if found := BROKER.search(log.read_text()):
                return found[1]
        time.sleep(0.05)
    raise AssertionError("no broker")


# --- Backlogs ---


def test_a_backlog_of_large_messages_is_made_in_small_batches(servers: EmbeddedServers) -> None:
    load = Load(address=servers.broker_address, topic=fresh_name("large"), body_bytes=300_000, queues=2)
    with LoadTarget(servers.broker_address, LoadClient()) as target:
        target.fill(load, 20)
        assert 20 <= target.stored(load) <= 23


def test_a_backlog_is_whole_however_long_it_takes(
    servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_target, "FILL_TIMEOUT_S", 0.02)
    load = Load(address=servers.broker_address, topic=fresh_name("slow"), queues=2)
    with LoadTarget(servers.broker_address, LoadClient()) as target:
        target.fill(load, 32_000)
        assert target.stored(load) >= 32_000


def test_a_backlog_that_cannot_be_made_says_why(servers: EmbeddedServers) -> None:
    load = Load(address=servers.broker_address, topic=SCHEDULE_TOPIC, queues=2)  # the broker's own
    with (
        LoadTarget(servers.broker_address, LoadClient()) as target,
        pytest.raises(LoadFailed, match=r"cannot store the backlog: \d+ refused, the last with code"),
    ):
        target.fill(load, 100)


# --- The load client ---


def test_the_load_client_counts_what_is_stored(servers: EmbeddedServers) -> None:
    topic = fresh_name("thin")
    client = LoadClient()
    load = Load(
        address=servers.broker_address, topic=topic, in_flight=32, processes=2, warm_up_s=0.2,
        seconds=2.5,
    )  # fmt: skip
    words: list[str] = []
    with LoadTarget(servers.broker_address, client) as target:
        cell = target.measure("both", load, words.append)
        assert cell.wrong == []
        assert servers.message_count(topic) >= cell.operations > 0
        assert (words[0], words[-1]) == ("begin", "end")
        assert {word.split()[0] for word in words[1:-1]} <= {"tick"}
        pulls = msgspec.structs.asdict(target.measure("pulls", _pulls(load)))
        assert (pulls["wrong"], pulls["operations"] > 0) == ([], True)


def test_transactions_are_committed_one_by_one(servers: EmbeddedServers) -> None:
    topic = fresh_name("Transactions")
    load = Load(
        address=servers.broker_address, kind=LoadKind.TRANSACTION, topic=topic, in_flight=16, warm_up_s=0.1,
        seconds=0.5,
    )  # fmt: skip
    with LoadTarget(servers.broker_address, LoadClient()) as target:
        cell = target.measure("transactions", load)
    assert (cell.wrong, cell.operations > 0) == ([], True)
    assert servers.message_count(topic) >= cell.operations


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """A topic whose first messages are gone."""
    directory = tmp_path_factory.mktemp("expired")
    settings = {**BROKER_SETTINGS, "mappedFileSizeCommitLog": 1 << 18}
    with (
        own_servers(directory, settings=settings) as served,
        LoadTarget(served.broker, LoadClient()) as target,
    ):
        load = Load(address=served.broker, topic="expired", warm_up_s=0.1, seconds=2.0)
        target.fill(load, 8000)
        deadline = time.monotonic() + 120
        while target.held(load) == target.stored(load):
            LogFiles(directory).age(0.0)
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield load


def test_pulls_begin_where_a_queue_now_begins(expired: Load) -> None:
    with LoadTarget(expired.address, LoadClient()) as target:
        cell = target.measure("pulls", _pulls(expired))
        assert cell.wrong == []
        assert cell.operations > 0


def _pulls(load: Load) -> Load:
    return Load(
        address=load.address, kind=LoadKind.PULL, topic=load.topic, batch=32, warm_up_s=0.1, seconds=2.0
    )


class Stalling:
    """A server that answers everything, but for one second after the first frames nothing."""

    LENGTHS = struct.Struct(">iI")

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        received, stalled = b"", False
        with connection:
            while data := connection.recv(1 << 16):
                received += data
                if not stalled:
                    time.sleep(STALL_S)
                    stalled = True
                while len(received) >= 8:
                    frame_bytes, header_bytes = self.LENGTHS.unpack_from(received)
                    if len(received) < 4 + frame_bytes:
                        break
                    header = msgspec.json.decode(received[8 : 8 + header_bytes])
                    received = received[4 + frame_bytes :]
                    answer = b'{"code":0,"flag":1,"opaque":%d,"version":1}' % header["opaque"]
                    connection.sendall(self.LENGTHS.pack(4 + len(answer), len(answer)) + answer)

    def close(self) -> None:
        self._listener.close()
        self._thread.join(30)


@contextmanager
def stalling() -> Iterator[str]:
    server = Stalling()
    try:
        yield server.address
    finally:
        server.close()


def test_an_open_loop_sees_a_stall_in_every_message_that_waited() -> None:
    with stalling() as address:
        load = Load(address=address, rate=200.0, in_flight=7, warm_up_s=0.0, seconds=2.0)
        counted = LoadClient().run(load)
    # Seven in flight: a closed loop would have seen seven slow answers, whatever else waited.
    assert counted.acknowledged == counted.sent
    assert counted.sent + counted.unsent >= 395
    assert counted.latencies.at_percent(75) > 100_000


def test_a_client_that_cannot_connect_says_so() -> None:
    with pytest.raises(LoadFailed, match="cannot connect"):
        LoadClient().run(Load(address="127.0.0.1:1"))
