"""The servers that other people's clients are tried on: ours, and Apache's to prove the drivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pytest

from benchmarks.peers.apache import ApacheBroker, ApacheNameServer
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.remoting.blocking_connection import BlockingConnection
from tests.interop.versions import MAIN, OLDEST, POMS
from tests.support.java import jars_of
from tests.support.skylark_servers import SkylarkServers

# Retries use the third level and those after it; the drivers know the first two.
SETTINGS: dict[str, str | int] = {"messageDelayLevel": "1s 2s" + " 1s" * 16}
PATIENT: dict[str, str | int] = {
    "waitTimeMillsInSendQueue": 60_000,
    "waitTimeMillsInPullQueue": 60_000,
    "waitTimeMillsInLitePullQueue": 60_000,
    "waitTimeMillsInAdminBrokerQueue": 60_000,
    "waitTimeMillsInTransactionQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
"""A machine that stands still for a moment must not make Apache's brokers refuse what waited meanwhile."""
SMALL: dict[str, str | int] = {
    "mappedFileSizeCommitLog": 16 << 20,
    "reviveQueueNum": 0,
    "timerFlushIntervalMs": 60_000,
}
"""A flush writes the whole timer wheel: every second, as by default, takes a quarter of a core."""
KINDS = ["skylark", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("apache", "apache-5.5.0"))]
"""Parameters of a fixture: a failure on all is the driver's, so Apache's are part of the slow run only."""


class Servers(Protocol):
    """A name server and a broker with ports that stay."""

    name_server: str
    version: str
    """The broker's, as it names it: V5_3_3."""

    @property
    def broker(self) -> str: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> object: ...

    def kill(self) -> None: ...

    def complaints(self) -> str:
        """What the servers wrote and should not have."""


class ApacheServers:
    """Apache's pair, of the main release by default; `stop`, `kill` and `start` are the broker's."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str | int],
        version: str = MAIN,
        *,
        options: Sequence[str] = (),
    ) -> None:
        """`options` are for both JVMs."""
        classpath = jars_of(POMS[version])
        if version == OLDEST:  # they do not start without their logs being configured, if only to nothing
            for home, name in (("name-server", "namesrv"), ("home", "broker")):
                conf = directory / home / "conf"
                conf.mkdir(parents=True)
                (conf / f"logback_{name}.xml").write_text("<configuration/>")
        self.version = f"V{version.replace('.', '_')}"
        self._name_server = ApacheNameServer(classpath, directory / "name-server")
        self.name_server = self._name_server.address
        self._broker = ApacheBroker(
            classpath,
            directory / "home",
            directory / "store",
            name_server=self.name_server,
            settings={**SMALL, **PATIENT, **settings},
        )
        for each in (self._name_server, self._broker):
            each.options = (*each.options, *options)
        self.broker = self._broker.address
        self.start, self.stop, self.kill = self._broker.start, self._broker.stop, self._broker.kill

    def __enter__(self) -> Self:
        self._name_server.__enter__()
        try:
            self._broker.__enter__()
        except BaseException:
            self._name_server.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.__exit__(kind, error, trace)
        self._name_server.__exit__(kind, error, trace)

    def complaints(self) -> str:
        return ""  # they write what they like


def make_servers(kind: str, directory: Path, settings: Mapping[str, str | int] = SETTINGS) -> Servers:
    """Our servers, or those of a release of Apache RocketMQ, by the names in KINDS."""
    if kind == "skylark":
        return SkylarkServers(directory, settings)
    version = kind.removeprefix("apache").removeprefix("-") or MAIN
    return ApacheServers(directory, settings, version)


def create_topic(broker: str, topic: str, queues: int = 4, *, attributes: str | None = None) -> None:
    """Make a topic: most clients want one that is there."""
    request = UpdateAndCreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        order=False,
        attributes=attributes,
    )
    with BlockingConnection(broker) as connection:
        connection.call(request, timeout_s=60)
