"""Every code block of README and docs that can run is run, page by page, as a reader would.

Blocks of a page share their names. What fragments take for granted (a producer, a message, a database) is
given to each. A comment before a block says why it is not run, or which other test runs it:

    <!-- not run: output -->
    <!-- run by: tests/interop/test_migration.py -->
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

import skylark
from skylark import (
    ClientSettings,
    ConsumeFrom,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
)
from skylark.admin.admin import Admin
from skylark.processes import PortReservation
from skylark.settings import StoreSettings
from skylark.store.message_store import MessageStore
from skylark.testing import EmbeddedServers
from tests.support.pages import PAGES, ROOT, Block, blocks
from tests.support.store import message, put_all
from tests.unit.cli.test_reference import check_line

NAMESRV = "127.0.0.1:9876"
TIMEOUT_S = 120
LANGUAGES_NOT_OURS = {"mermaid", "java"}
REASONS = {
    "output": "a drawing, or what a program prints",
    "your application": "a part of a program that is not ours, or needs packages that are not",
    "another machine": "needs a cluster or a network",
    "a service": "serves until Ctrl-C, or needs what serves so: other tests do the same",
    "minutes": "takes minutes: other tests run the same in short",
    "the tests": "runs or sets up the project itself",
}
ELSEWHERE = {
    "docs/reference/commands.md": "tests/unit/cli/test_reference.py",
    "docs/tutorial.md": "tests/integration/test_tutorial.py",
}
SERVERS = re.compile(r"skylark (serve|namesrv|broker)( -| &|$)")
NAME_SERVERS = re.compile(r"skylark (serve|namesrv)( -| &|$)")
BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN_HERE = [
    block
    for block in BLOCKS
    if block.not_run is None
    and block.run_by is None
    and block.page not in ELSEWHERE
    and block.language not in LANGUAGES_NOT_OURS
]


def test_what_is_not_run_says_why() -> None:
    assert {block.not_run for block in BLOCKS} - {None} <= REASONS.keys()
    languages = {block.language for block in RUN_HERE}
    assert languages <= {"", "sh", "bash", "python", "yaml"}, "a language that nobody runs"


def test_what_is_run_elsewhere_is_run_there() -> None:
    for page, test in [*ELSEWHERE.items(), *((block.page, block.run_by) for block in BLOCKS if block.run_by)]:
        assert Path(page).name in (ROOT / test).read_text(), f"{test} does not read {page}"


class Enough(Exception):
    """Raised where a program of a page would go on for ever."""


class Database(dict[Any, Any]):
    """What an application of the reader's may have."""

    def store(self, order: Any) -> None:
        self["42"] = order

    def has(self, key: str) -> bool:
        return key in self


class Metric:
    """Stands for any metric of the reader's."""

    def labels(self, *_: object, **__: object) -> Metric:
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: self

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers() as running:
        for topic in ("orders", "prices", "reminders"):
            running.create_topic(topic)
        yield running


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store to look into, with the layout of a broker's."""
    path = tmp_path_factory.mktemp("closed") / "store"
    written = MessageStore(StoreSettings(path=path, commit_log_file_bytes=1 << 20))
    written.open()
    put_all(written, [message("orders", keys=f"order-{number}", tags="paid") for number in range(900, 1010)])
    written.close()
    return path


@pytest.fixture(scope="module")
def billing(servers: EmbeddedServers) -> Iterator[None]:
    """Somebody consumes and somebody answers, so that the pages have something to look at."""
    settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, first_pull_delay_ms=0)
    consumer, teller = (
        PushConsumer(
            group,
            namesrv=servers.namesrv,
            settings=settings,
            client=ClientSettings(instance_name=f"somebody-{group}"),
        )
        for group in ("billing", "tellers")
    )
    with Producer("somebody", namesrv=servers.namesrv) as producer:
        consumer.subscribe("orders", "*", lambda messages: None)
        teller.subscribe("prices", "*", lambda messages: tell(producer, messages))
        with consumer, teller:
            receipt = producer.send(Message("orders", b"a message", tags="paid", keys=["42"]))
            assert receipt.is_ok
            producer.request(Message("prices", b"pear"), timeout_ms=TIMEOUT_S * 1000)
            yield


def tell(producer: Producer, messages: Sequence[ReceivedMessage]) -> None:
    for each in messages:
        producer.send(skylark.reply(each, b"1.20"))


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that go on until Ctrl-C start, and end."""

    def run(self: PushConsumer) -> None:
        with self:
            pass

    polls: list[None] = []
    real_poll = PullConsumer.poll

    def poll(self: PullConsumer, timeout_ms: float | None = None) -> Any:
        polls.append(None)
        if len(polls) > 1:
            raise Enough
        return real_poll(self, 1)

    monkeypatch.setattr(PushConsumer, "run", run)
    monkeypatch.setattr(PullConsumer, "poll", poll)


@pytest.fixture
def writable(servers: EmbeddedServers) -> Iterator[None]:
    """What pages take away from the broker is given back."""
    yield
    with Admin(namesrv=servers.namesrv) as admin:
        admin.brokers.add_write_permission("broker-a")


def given(namesrv: str, stack: ExitStack) -> dict[str, Any]:
    """What a fragment takes for granted, made anew for each block."""
    producer = stack.enter_context(Producer("shop-docs", namesrv=namesrv))
    admin = stack.enter_context(Admin(namesrv=namesrv))
    hello = Message("orders", b"hello", keys=["order-1001"])
    stored = admin.messages.by_key("orders", "42").messages[0]
    now_ms = int(time.time() * 1000)
    return {
        **{name: getattr(skylark, name) for name in skylark.__all__},
        **{"UTC": UTC, "datetime": datetime, "timedelta": timedelta, "Path": Path, "NAMESRV": namesrv},
        **{"producer": producer, "admin": admin, "message": hello, "messages": [hello, hello]},
        **{"queue": producer.queues("orders")[0], "message_id": stored.message_id},
        **{"begin_ms": now_ms - 60_000, "end_ms": now_ms},
        **{"database": Database(), "Order": dict, "order": {"id": 42}, "handle": lambda messages: None},
        **{"timer": Metric(), "latency": Metric(), "failures": Metric()},
        "consumer": PushConsumer(f"docs-{time.monotonic_ns()}", namesrv=namesrv),
        "client_id": admin.clients.consumers("billing").clients[0].client_id,
        "announce_order": lambda namesrv, topic: _send(namesrv, Message(topic, b"order")),
        "remind": lambda namesrv: _send(
            namesrv, Message("reminders", b"!", deliver_after=timedelta(hours=1))
        ),
    }


def pulling(namesrv: str, stack: ExitStack) -> dict[str, Any]:
    """A pull consumer that has its queues."""
    consumer = stack.enter_context(PullConsumer(f"docs-{time.monotonic_ns()}", namesrv=namesrv))
    consumer.subscribe("orders")
    deadline = time.monotonic() + TIMEOUT_S
    while not consumer.assignment():
        assert time.monotonic() < deadline, "no queue is assigned"
        time.sleep(0.01)
    return {"consumer": consumer}


MORE_GIVEN = {"docs/howto/pull-messages.md": pulling}


def _send(namesrv: str, message: Message) -> None:
    with Producer("docs-sender", namesrv=namesrv) as producer:
        producer.send(message)


PYTHON_PAGES = sorted(
    {block.page for block in RUN_HERE if block.language == "python" and "spark" not in block.page}
)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("billing", "endless", "writable")
@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_programs_of_a_page(
    page: str,
    servers: EmbeddedServers,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in RUN_HERE:
        if block.page == page and block.language == "python" and not _is_of_spark(block):
            with ExitStack() as stack:
                names |= given(servers.namesrv, stack)
                if page in MORE_GIVEN:
                    names |= MORE_GIVEN[page](servers.namesrv, stack)
                code = block.code.replace(NAMESRV, servers.namesrv).replace('"DIR"', repr(str(store)))
                code = code.replace("timeout_ms=3000", f"timeout_ms={TIMEOUT_S * 1000}")
                if "skylark_" in code and "def test_" not in code:
                    names |= {
                        name: request.getfixturevalue(name) for name in set(re.findall(r"skylark_\w+", code))
                    }
                try:
                    exec(compile(code, str(block), "exec"), names)  # noqa: S102 - our own pages
                except Enough:
                    pass
                _run_tests(code, names, request)


def _is_of_spark(block: Block) -> bool:
    return "spark" in block.code or "pyspark" in block.code


def _run_tests(code: str, names: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """Run the tests that a block defines, with the fixtures that they name."""
    for name in re.findall(r"^def (test_\w+)\(", code, re.MULTILINE):
        function = names[name]
        wanted = function.__code__.co_varnames[: function.__code__.co_argcount]
        function(**{fixture: request.getfixturevalue(fixture) for fixture in wanted})


SHELL_PAGES = sorted({block.page for block in RUN_HERE if block.is_shell})


class Shell:
    """Runs the lines of a page in a directory of its own; servers go on until the end of the page."""

    def __init__(self, directory: Path, store: Path, shared: EmbeddedServers | None) -> None:
        self._directory = directory
        self._store = store
        self._running: list[subprocess.Popen[str]] = []
        self._reserved = {9876: PortReservation(0), 9877: PortReservation(0)}
        self._reserved |= {port: PortReservation(-2, 0, 1) for port in (10911, 10921)}
        self._ports = {port: reserved.base for port, reserved in self._reserved.items()}
        self._shared = shared
        for name in ("data", "backups", "var/lib"):
            (directory / name).mkdir(parents=True)
        activate = directory / ".venv" / "bin" / "activate"
        activate.parent.mkdir(parents=True)
        activate.touch()
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "NAMESRV_ADDR": self.place("127.0.0.1:9876"),
        }

    def place(self, line: str) -> str:
        """The line with addresses and directories of this machine."""
        if self._shared is not None:
            line = line.replace(NAMESRV, self._shared.namesrv).replace("10.0.0.1:9876", self._shared.namesrv)
        line = re.sub(r"\b(9876|9877|10911|10921)\b", lambda found: str(self._ports[int(found[0])]), line)
        line = re.sub(r"\b(0\.0\.0\.0|10\.0\.0\.\d)\b", "127.0.0.1", line)
        line = line.replace("broker-a.example.org", "localhost")
        line = re.sub(r"(?<=[ =])(/data|/var/lib|/backups)/", f"{self._directory}\\1/", line)
        return re.sub(r"\b(DIR|COPY)\b", str(self._store), line)

    def run(self, line: str) -> None:
        line = self.place(line).removesuffix(" &")
        if line.startswith("pip install"):
            return  # tests/unit/test_packaging.py installs the package
        if exported := re.fullmatch(r"export (\w+)=(\S+)", line):
            self.environment[exported[1]] = exported[2]
            return
        if line.startswith("skylark spark "):
            check_line(line.removesuffix("…"))  # tests/pipelines runs the pipelines
        elif SERVERS.match(line):
            self._serve(shlex.split(line))
        elif line.startswith("skylark tail"):
            self._start(shlex.split(line), "")
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", line],
                cwd=self._directory,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

    def _serve(self, words: list[str]) -> None:
        for reserved in self._reserved.values():
            reserved.release()
        role = words[1]
        if role == "serve":
            words += ["--namesrv-port", str(self._ports[9876]), "--broker-port", str(self._ports[10911])]
        elif "--port" not in words:
            words += ["--port", str(self._ports[9876 if role == "namesrv" else 10911])]
        if self._shared is not None and "--name" in words:
            words[words.index("--name") + 1] = "broker-b"  # the servers of all pages have a broker-a
        if role != "namesrv":
            words += ["--set", "metrics_port=0"]
            words += [] if "--data" in words else ["--data", str(self._directory / "data")]
        self._start(words, "ready after")

    def _start(self, words: list[str], mark: str) -> None:
        """Start a program, and wait until it says something."""
        process = subprocess.Popen(
            words,
            cwd=self._directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._running.append(process)
        assert process.stdout is not None
        said = ""
        while not said or mark not in said:
            line = process.stdout.readline()
            assert line, f"{words} ended: {said}"
            said += line

    def close(self) -> None:
        for reserved in self._reserved.values():
            reserved.release()
        try:
            self.stop_all()
        finally:
            for process in self._running:
                process.kill()
                process.communicate()

    def stop_all(self) -> None:
        """As Ctrl-C does, the last one first."""
        while self._running:
            process = self._running[-1]
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=TIMEOUT_S)
            self._running.pop()
            assert process.returncode in (0, 130), process.args


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("billing", "writable")
@pytest.mark.parametrize("page", SHELL_PAGES)
def test_commands_of_a_page(page: str, servers: EmbeddedServers, store: Path, tmp_path: Path) -> None:
    found = [block.commands() for block in RUN_HERE if block.page == page and block.is_shell]
    has_name_server = any(NAME_SERVERS.match(line) for lines in found for line in lines)
    shell = Shell(tmp_path, store, None if has_name_server else servers)
    try:
        for lines in found:
            if any(map(SERVERS.match, lines)):
                shell.stop_all()  # those of the block before were another way
            for line in lines:
                shell.run(line)
    finally:
        shell.close()


def test_settings_of_pages_are_yaml() -> None:
    """What they mean to others is not ours to say; `tests/pipelines` runs those that are pipelines."""
    for block in RUN_HERE:
        if block.language == "yaml":
            assert isinstance(yaml.safe_load(block.code), dict), str(block)
