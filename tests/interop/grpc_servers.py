"""Servers to try RocketMQ 5 clients on: ours, our proxy before Apache's broker, Apache's proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers.apache import ApacheNameServer
from benchmarks.peers.apache_proxy import (
    CONNECT_TIMEOUT_S,
    PROXY_5_5_POM,
    PROXY_POM,
    ApacheLocalProxy,
    ApacheProxy,
)
from skylark.processes import HOST, PortReservation, Server, listens, python_command
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.requests.group import UpdateAndCreateSubscriptionGroup
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.remoting.blocking_connection import BlockingConnection
from tests.interop.mqadmin import admin_classpath
from tests.interop.servers import PATIENT, SMALL, ApacheServers
from tests.interop.versions import MAIN
from tests.support.java import jars_of
from tests.support.skylark_servers import SkylarkServers

KINDS = ("skylark", "skylark-proxy", "apache-proxy", "apache-local")
LITE_KINDS = ("skylark", "skylark-proxy-5.5.0", "apache-proxy-skylark", "apache-proxy-5.5.0")
"""Servers with lite topics: ours, our proxy before Apache's broker, Apache's proxy before ours, Apache's."""
SETTINGS: dict[str, str | int] = {
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 2000,
    "autoCreateTopicEnable": "false",
    "enablePropertyFilter": "true",
}
LIGHT_QUEUES: dict[str, str | int] = {"enableLmq": "true", "enableMultiDispatch": "true"}
"""Without them Apache's brokers keep no messages of lite topics."""
APACHE: dict[str, str | int] = {**PATIENT, "reviveQueueNum": 2, "timerFlushIntervalMs": 60_000}


class ServeWithGrpc(SkylarkServers):
    """`skylark serve` with its gRPC port."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str | int],
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, settings)
        self._environment = environment or {}
        self._grpc_port = PortReservation(0)
        self._ports = (*self._ports, self._grpc_port)
        self._flags = flags

    @property
    def endpoints(self) -> str:
        return f"{HOST}:{self._grpc_port.base}"

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), **self._environment}

    def arguments(self) -> Sequence[str]:
        return [*super().arguments(), "--grpc-port", str(self._grpc_port.base), *self._flags]

    def wait_until_serving(self) -> None:
        """The gRPC port is opened when the broker is registered."""
        self._running().wait_until(
            lambda: listens(self.endpoints, CONNECT_TIMEOUT_S), "gRPC port", self.start_timeout_s
        )


class SkylarkProxy(Server):
    """`skylark proxy` before somebody's cluster."""

    title = "proxy"

    def __init__(self, directory: Path, name_server: str, *flags: str) -> None:
        super().__init__(directory, PortReservation(0))
        self._name_server = name_server
        self._flags = flags

    def command(self, start: int) -> list[str]:
        return python_command(
            "skylark", "proxy", "--namesrv", self._name_server, "--port", str(self.port), *self._flags
        )

    def wait_until_serving(self) -> None:
        self._running().wait_until(
            lambda: listens(self.address, CONNECT_TIMEOUT_S), "gRPC port", self.start_timeout_s
        )


class ApacheLocalServers:
    """Apache's name server, and its broker and proxy in one process."""

    def __init__(self, directory: Path, settings: Mapping[str, str | int]) -> None:
        self._name_server = ApacheNameServer(admin_classpath(), directory / "name-server")
        self.name_server = self._name_server.address
        self._broker = ApacheLocalProxy(
            jars_of(PROXY_POM),
            directory / "home",
            directory / "store",
            name_server=self.name_server,
            settings={**SMALL, **PATIENT, **settings},
        )
        self.broker, self.endpoints = self._broker.address, self._broker.endpoints
        self.start, self.kill = self._broker.start, self._broker.kill

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._name_server)
            stack.enter_context(self._broker)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class GrpcServers:
    """A cluster with a gRPC port at `endpoints`. `kill` and `start` are the broker's, in whatever process."""

    def __init__(self, kind: str, directory: Path, settings: Mapping[str, str | int] = SETTINGS) -> None:
        self.kind = kind
        self._stack = ExitStack()
        self._proxy: Server | None = None
        self._servers: ServeWithGrpc | ApacheServers | ApacheLocalServers
        front, _, behind = kind.partition("-proxy")
        version = behind.removeprefix("-") or MAIN
        if kind == "apache-local":
            self._servers = ApacheLocalServers(directory, {**APACHE, **settings})
        elif kind == "skylark" or version == "skylark":
            self._servers = ServeWithGrpc(directory, settings)
        else:
            self._servers = ApacheServers(directory, {**APACHE, **settings}, version)
        home, name_server = directory / "proxy", self._servers.name_server
        if kind in (front, "apache-local"):
            return
        if front == "skylark":
            self._proxy = SkylarkProxy(home, name_server)
        else:
            pom = PROXY_POM if version == MAIN else PROXY_5_5_POM
            self._proxy = ApacheProxy(jars_of(pom), home, name_server)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._servers)
            if self._proxy is not None:
                stack.enter_context(self._proxy)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def endpoints(self) -> str:
        if self._proxy is not None:
            return self._proxy.address
        assert not isinstance(self._servers, ApacheServers)
        return self._servers.endpoints

    @property
    def broker(self) -> str:
        return self._servers.broker

    @property
    def name_server(self) -> str:
        return self._servers.name_server

    def kill(self) -> None:
        self._servers.kill()

    def start(self) -> None:
        self._servers.start()

    def create_topic(self, topic: str, kind: str = "NORMAL", queues: int = 4) -> str:
        """Make a topic for this kind of messages, and return its name."""
        request = UpdateAndCreateTopic(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
            attributes=f"+message.type={kind}",
        )
        with BlockingConnection(self.broker) as connection:
            connection.call(request)
        return topic

    def create_group(
        self, group: str, *, is_ordered: bool = False, retries: int = 16, **attributes: str
    ) -> str:
        """Make a group. Names of attributes have an underscore for each dot."""
        config = SubscriptionGroupConfig(
            group_name=group,
            consume_message_orderly=is_ordered,
            retry_max_times=retries,
            attributes={f"+{name.replace('_', '.')}": value for name, value in attributes.items()},
        )
        with BlockingConnection(self.broker) as connection:
            connection.call(UpdateAndCreateSubscriptionGroup(config))
        return group
