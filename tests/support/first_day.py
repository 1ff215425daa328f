"""What a new user does: servers and programs in processes of their own, and commands with what they print."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.support.terminal import Terminal

SKYLARK = (sys.executable, "-m", "skylark")
TIMEOUT_S = 60.0
POLL_S = 0.05
SMALL_STORE = ("mappedFileSizeCommitLog=16777216", "mappedFileSizeConsumeQueue=200000", "maxIndexNum=40000")


def until(condition: Callable[[], Any], explain: Callable[[], object] = lambda: "") -> Any:
    """Wait for a condition, and return what it returned."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, explain()
        time.sleep(POLL_S)
    return found


class Started:
    """A process that writes both of its streams into one file."""

    def __init__(self, log: Path, *words: object) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until it has written this."""

        def find() -> re.Match[str] | None:
            found = re.search(pattern, self.text)
            assert found or self.process.poll() is None, self.text
            return found

        match: re.Match[str] = until(find, lambda: self.text)
        return match

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


def server(log: Path, *words: object) -> Started:
    """A server command, with a store of small files."""
    small = [word for setting in SMALL_STORE for word in ("--set", setting)]
    return Started(log, *SKYLARK, *words, *small)


class Servers:
    """`skylark serve` on free ports, and commands for it."""

    def __init__(self, started: Started) -> None:
        self.started = started
        self.namesrv = started.until(r"name server on (\S+),")[1]
        self.metrics_url = started.until(r"metrics (http://\S+/metrics)")[1]

    def run(self, *words: object, code: int = 0) -> str:
        """Run a command without a terminal, and return all that it printed."""
        done = subprocess.run(
            [*SKYLARK, *map(str, words), "--namesrv", self.namesrv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def json(self, *words: object) -> Any:
        return json.loads(self.run(*words, "--json"))

    def on_terminal(self, *words: str, columns: int, code: int = 0) -> str:
        """Run a command on a terminal of this width, and return what it showed."""
        with Terminal(words, {"NAMESRV_ADDR": self.namesrv}, columns=columns) as terminal:
            assert terminal.end() == code, terminal.text
            return terminal.text

    def metric(self, name: str) -> dict[tuple[str, ...], float]:
        return scraped(self.metrics_url, name)


def scraped(url: str, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a gauge, by the values of the labels of a topic and a group."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the server's own address
        families = text_string_to_metric_families(answer.read().decode())
    wanted = ("topic", "consumer_group")
    return {
        tuple(sample.labels[label] for label in wanted if label in sample.labels): sample.value
        for family in families
        if family.name == name
        for sample in family.samples
    }


@contextmanager
def serving(directory: Path, *more: object) -> Iterator[Servers]:
    ports = ("--namesrv-port", 0, "--broker-port", 0, "--set", "metricsPromExporterPort=0")
    with server(directory / "serve.log", "serve", "--data", directory / "data", *ports, *more) as started:
        yield Servers(started)


def program(log: Path, source: str, *words: object) -> Started:
    """A user's Python program."""
    return Started(log, sys.executable, "-u", "-c", source, *words)
