"""Apache RocketMQ's proxy for gRPC clients: before a cluster, or with the broker in its own process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.apache import SERVER_OPTIONS, ApacheBroker
from benchmarks.peers.java import Classpath, jvm_command
from skylark.processes import HOST, PortReservation, Server, listens

PROXY_POM = Path(__file__).parent / "drivers" / "pom-proxy-5.3.3.xml"
"""Version 5.3.3: proxy and broker."""
PROXY_5_5_POM = Path(__file__).parent / "drivers" / "pom-proxy-5.5.0.xml"
"""The first version with lite topics, in cluster mode only."""
PROXY_HEAP_MB = 512
PROXY_CLASS = "org.apache.rocketmq.proxy.ProxyStartup"
CONNECT_TIMEOUT_S = 1.0


def _write_settings(home: Path, port: int, more: Mapping[str, Any]) -> Path:
    file = home / "conf" / "rmq-proxy.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "rocketMQClusterName": ApacheBroker.cluster,
        "grpcServerPort": port,
        "remotingListenPort": port + 1,
        "useEndpointPortFromRequest": True,
        **more,
    }
    file.write_text(json.dumps(settings))
    return file


class ApacheProxy(Server):
    """Apache's proxy in cluster mode. Routes name the port that clients ask with."""

    title = "proxy"

    def __init__(self, classpath: Classpath, home: Path, name_server: str) -> None:
        super().__init__(home, PortReservation(0, 1))
        self._classpath = classpath
        self._name_server = name_server

    def command(self, start: int) -> list[str]:
        settings = _write_settings(self.home, self.port, {"namesrvAddr": self._name_server})
        return jvm_command(
            self._classpath,
            PROXY_CLASS,
            "-pc",
            str(settings),
            home=self.home,
            heap_mb=PROXY_HEAP_MB,
            options=SERVER_OPTIONS,
        )

    def environment(self) -> Mapping[str, str]:
        return {"ROCKETMQ_HOME": str(self.home)}

    def wait_until_serving(self) -> None:
        self._running().wait_until(
            lambda: listens(self.address, CONNECT_TIMEOUT_S), "gRPC port", self.start_timeout_s
        )


class ApacheLocalProxy(ApacheBroker):
    """Apache's proxy in local mode: a broker that also serves gRPC clients, at `endpoints`."""

    main_class = PROXY_CLASS
    start_timeout_s = 240

    def __init__(
        self,
        classpath: Classpath,
        home: Path,
        store_dir: Path,
        *,
        name_server: str,
        settings: Mapping[str, str | int],
    ) -> None:
        super().__init__(classpath, home, store_dir, name_server=name_server, settings=settings)
        self._grpc_ports = PortReservation(0, 1)
        self._ports = (*self._ports, self._grpc_ports)

    @property
    def endpoints(self) -> str:
        return f"{HOST}:{self._grpc_ports.base}"

    def command(self, start: int) -> list[str]:
        file = self.home / "conf" / f"broker-{start}.conf"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{key}={value}\n" for key, value in self.configuration().items()))
        more = {"proxyMode": "LOCAL", "localServeAddr": HOST, "namesrvAddr": self._name_server}
        return jvm_command(
            self._classpath,
            self.main_class,
            *("-pm", "local", "-bc", str(file)),
            *("-pc", str(_write_settings(self.home, self._grpc_ports.base, more))),
            home=self.home,
            heap_mb=self.heap_mb,
            options=self.options,
        )

    def wait_until_serving(self) -> None:
        self._running().wait_until(
            lambda: listens(self.endpoints, CONNECT_TIMEOUT_S), "gRPC port", self.start_timeout_s
        )
        self._running().wait_until(self._registered, "registration", self.start_timeout_s)
