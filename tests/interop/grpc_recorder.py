"""Records what official gRPC clients and Apache's proxy say to each other: the files in `tests/golden/grpc`.

    python -m tests.interop.grpc_recorder OUTPUT_DIRECTORY

starts Apache's name server and proxy 5.3.3 in local mode, puts a recorder before the proxy, and runs
scenarios of the drivers for Java and Python. Routes are rewritten on the way to the client, after they were
recorded, so that clients stay with the recorder.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from grpclib.client import Channel, StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.exceptions import GRPCError, StreamTerminatedError

from benchmarks.peers.apache import (
    DISK_OPTIONS,
    GET_BROKER_CLUSTER_INFO,
    SERVER_OPTIONS,
    ApacheNameServer,
    ask,
)
from benchmarks.peers.java import Classpath, jvm_command
from skylark.processes import PortReservation, Server, listens
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.proxy.access import RIGHTS
from skylark.proxy.call import Call, CallShape, Method, Send
from skylark.proxy.grpc_server import GrpcServer
from skylark.proxy.schema import SERVICE, v2
from skylark.remoting.address import split_address
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.settings.proxy import ProxySettings
from tests.interop.grpc_servers import APACHE, PROXY_HEAP_MB, PROXY_POM, SETTINGS
from tests.interop.mqadmin import admin_classpath
from tests.interop.servers import SMALL
from tests.interop.test_grpc_clients import TOPIC_KINDS, java_command, python_command
from tests.support.java import jars_of

RUNS = (
    ("java", "normal"),
    ("java", "transaction"),
    ("java", "delay"),
    ("java", "invisible"),
    ("python", "normal"),
)
KEPT_METADATA = ("x-mq-", "authorization", "grpc-timeout", "user-agent", "te", "content-type")
TIMEOUT_S = 150


class ApacheLocalProxy(Server):
    """Apache's proxy and broker in one process."""

    title = "proxy"

    def __init__(self, classpath: Classpath, home: Path, name_server: str) -> None:
        super().__init__(home, PortReservation(0, 1), PortReservation(0, -2, 1))
        self._classpath = classpath
        self._name_server = name_server

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self._ports[1].base}"

    def command(self, start: int) -> list[str]:
        conf = self.home / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        proxy = {
            "namesrvAddr": self._name_server,
            "grpcServerPort": self.port,
            "remotingListenPort": self.port + 1,
        }
        (conf / "rmq-proxy.json").write_text(json.dumps(proxy))
        port = self._ports[1].base
        broker = {
            "brokerClusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": 0,
            "namesrvAddr": self._name_server, "brokerIP1": "127.0.0.1", "listenPort": port,
            "haListenPort": port + 1, "storePathRootDir": str(self.home / "store"),
            "storePathCommitLog": str(self.home / "store/commitlog"),
            **SMALL, **APACHE, **SETTINGS,
        }  # fmt: skip
        (conf / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in broker.items()))
        words = ["-pm", "local", "-n", self._name_server, "-bc", str(conf / "broker.conf")]
        return jvm_command(
            self._classpath, "org.apache.rocketmq.proxy.ProxyStartup", *words,
            "-pc", str(conf / "rmq-proxy.json"), home=self.home, heap_mb=PROXY_HEAP_MB,
            options=(*SERVER_OPTIONS, *DISK_OPTIONS, "-XX:MaxDirectMemorySize=512m"),
        )  # fmt: skip

    def environment(self) -> Mapping[str, str]:
        return {"ROCKETMQ_HOME": str(self.home)}

    def wait_until_serving(self) -> None:
        running = self._running()
        running.wait_until(lambda: listens(self.address, 1.0), "gRPC port", self.start_timeout_s)
        running.wait_until(self._is_registered, "registration", self.start_timeout_s)

    def _is_registered(self) -> bool:
        try:
            return self.broker.encode() in ask(self._name_server, GET_BROKER_CLUSTER_INFO)
        except OSError:
            return False


class Recorder:
    """A gRPC server that passes every call on and keeps what was said."""

    def __init__(self, upstream: str) -> None:
        self._channel = Channel(*split_address(upstream))
        self.lines: list[dict[str, Any]] = []
        self._calls = 0
        methods = {name: self._method(name) for name in RIGHTS}
        self.server = GrpcServer(ProxySettings(port=0), methods)
        self.server.use_tls(None)

    async def close(self) -> None:
        await self.server.close(drain_s=1.0)
        self._channel.close()

    def _method(self, name: str) -> Method:
        if name == "Telemetry":
            return Method(CallShape.DUPLEX, v2.TelemetryCommand, v2.TelemetryCommand, self._duplex)
        request, reply = getattr(v2, f"{name}Request"), getattr(v2, f"{name}Response")
        if name == "ReceiveMessage":
            return Method(CallShape.SERVER_STREAM, request, reply, self._stream)
        return Method(CallShape.UNARY, request, reply, self._unary)

    def _note(self, number: int, call: Call, side: str, message: Any) -> None:
        line: dict[str, Any] = {"call": number, "method": call.method, "side": side}
        if side == "client" and not any(each["call"] == number for each in self.lines):
            line["metadata"] = {
                name: value for name, value in call.metadata.items() if name.startswith(KEPT_METADATA)
            }
        line["message"] = MessageToDict(message, preserving_proto_field_name=True)
        line["hex"] = message.SerializeToString(deterministic=True).hex()
        self.lines.append(line)

    def _begun(self, call: Call) -> tuple[int, dict[str, str]]:
        self._calls += 1
        passed = {
            name: value
            for name, value in call.metadata.items()
            if value and name.startswith(("x-mq-", "authorization"))
        }
        return self._calls, passed

    async def _unary(self, call: Call, request: Any) -> Any:
        number, metadata = self._begun(call)
        self._note(number, call, "client", request)
        reply_type = getattr(v2, f"{call.method}Response")
        rpc = UnaryUnaryMethod(self._channel, f"/{SERVICE}/{call.method}", type(request), reply_type)
        reply = await rpc(request, timeout=30, metadata=metadata)
        self._note(number, call, "server", reply)
        if call.method == "QueryRoute":
            for queue in reply.message_queues:
                queue.broker.endpoints.CopyFrom(request.endpoints)
        elif call.method == "QueryAssignment":
            for assignment in reply.assignments:
                assignment.message_queue.broker.endpoints.CopyFrom(request.endpoints)
        return reply

    async def _stream(self, call: Call, request: Any, send: Send) -> None:
        number, metadata = self._begun(call)
        self._note(number, call, "client", request)
        rpc = UnaryStreamMethod(
            self._channel, f"/{SERVICE}/{call.method}", type(request), v2.ReceiveMessageResponse
        )
        async with rpc.open(timeout=30, metadata=metadata) as stream:
            await stream.send_message(request, end=True)
            async for frame in stream:
                self._note(number, call, "server", frame)
                await send(frame)

    async def _duplex(self, call: Call, requests: AsyncIterator[Any], send: Send) -> None:
        number, metadata = self._begun(call)
        rpc = StreamStreamMethod(
            self._channel, f"/{SERVICE}/{call.method}", v2.TelemetryCommand, v2.TelemetryCommand
        )
        try:
            async with rpc.open(metadata=metadata) as stream:
                await stream.send_request()

                async def back() -> None:
                    async for command in stream:
                        self._note(number, call, "server", command)
                        await send(command)

                answering = asyncio.create_task(back())
                async for command in requests:
                    self._note(number, call, "client", command)
                    await stream.send_message(command)
                await stream.cancel()
                answering.cancel()
        except (GRPCError, StreamTerminatedError):
            pass


def _make_topic(broker: str, topic: str, kind: str) -> None:
    request = UpdateAndCreateTopic(
        topic=topic, default_topic="TBW102", read_queue_nums=2, write_queue_nums=2, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False, attributes=f"+message.type={kind}",
    )  # fmt: skip
    with BlockingConnection(broker) as connection:
        connection.call(request, timeout_s=30)


async def record(output: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        classpath = jars_of(PROXY_POM)
        with (
            ApacheNameServer(admin_classpath(), home / "name-server") as name_server,
            ApacheLocalProxy(classpath, home / "proxy", name_server.address) as proxy,
        ):
            for language, scenario in RUNS:
                topic = f"{language}_{scenario}"
                await asyncio.to_thread(_make_topic, proxy.broker, topic, TOPIC_KINDS.get(scenario, "NORMAL"))
                recorder = Recorder(proxy.address)
                port = await recorder.server.listen()
                make = java_command if language == "java" else python_command
                words = make(home, f"127.0.0.1:{port}", scenario, topic, f"G_{topic}", "plain")
                driver = await asyncio.create_subprocess_exec(*words, env={"HOME": scratch})
                async with asyncio.timeout(TIMEOUT_S):
                    code = await driver.wait()
                await recorder.close()
                text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in recorder.lines)
                (output / f"{language}-{scenario}.jsonl.gz").write_bytes(
                    gzip.compress(text.encode(), mtime=0)
                )
                sys.stderr.write(f"{language} {scenario}: exit code {code}, {len(recorder.lines)} messages\n")


if __name__ == "__main__":
    asyncio.run(record(Path(sys.argv[1])))
