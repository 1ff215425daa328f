"""The Java side of the store interchange: `java/store/StoreDriver.java`, one JVM and one result a call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.java import Classpath, jvm_command
from skylark.processes import GroupProcess, run
from tests.interop.versions import JAVA, POMS
from tests.support.java import compiled

HEAP_MB = 256
COMMAND_TIMEOUT_S = 240

Json = dict[str, Any]


def driver_classpath(version: str) -> Classpath:
    """The driver compiled against the jars of a release. Skips (or fails) the test where that cannot be."""
    return compiled(POMS[version], sorted((JAVA / "store").glob("*.java")))


class StoreDriver:
    """Stock clients of one name server. Results and logs lie in `directory`."""

    def __init__(self, classpath: Classpath, name_server: str, directory: Path) -> None:
        self._classpath = classpath
        self._name_server = name_server
        self._directory = directory
        self._calls = 0

    def fill(self, seed: int, count: int) -> list[Json]:
        """Send every kind of message, `count` of them plain; what the broker acknowledged."""
        return _acknowledged(self._call("fill", str(seed), str(count)))

    def batches(self, topic: str, first: int, batches: int, size: int, *, pull_from: int = 0) -> Json:
        """Send batches, numbered from `first` on, to queue 0; receipts, and what pulls and pushes gave."""
        return self._call("batches", topic, str(first), str(batches), str(size), str(pull_from))

    def dump(self, message_ids: Sequence[str] = ()) -> Json:
        """All that the broker serves, and the records with these offset ids."""
        return self._call("dump", *message_ids)

    @contextmanager
    def burst(self, seed: int, at_least: int) -> Iterator[list[Json]]:
        """Send from several threads; the block runs in the middle of it, with `at_least` sends acknowledged.

        The block must take the broker away. Everything acknowledged is in the list when the context is left.
        """
        command, result, log = self._prepare("burst", str(seed))
        acknowledged: list[Json] = []
        with GroupProcess(command, log=log) as process:
            process.wait_until(
                lambda: any(int(count) >= at_least for count in _PROGRESS.findall(process.log_text())),
                f"{at_least} acknowledged sends",
                COMMAND_TIMEOUT_S,
            )
            yield acknowledged
            assert process.wait(COMMAND_TIMEOUT_S) == 0, process.log_tail()
        acknowledged += _acknowledged(msgspec.json.decode(result.read_bytes()))

    def _call(self, name: str, *arguments: str) -> Json:
        command, result, log = self._prepare(name, *arguments)
        run(command, log=log, timeout_s=COMMAND_TIMEOUT_S)
        answer: Json = msgspec.json.decode(result.read_bytes())
        return answer

    def _prepare(self, name: str, *arguments: str) -> tuple[list[str], Path, Path]:
        self._calls += 1
        base = self._directory / f"{self._calls}-{name}"
        result = base.with_suffix(".json")
        command = jvm_command(
            self._classpath,
            "StoreDriver",
            name,
            self._name_server,
            str(result),
            *arguments,
            home=self._directory,
            heap_mb=HEAP_MB,
        )
        return command, result, base.with_suffix(".log")


_PROGRESS = re.compile(r"acknowledged (\d+)")


def _acknowledged(answer: Json) -> list[Json]:
    entries: list[Json] = answer["acknowledged"]
    return entries
