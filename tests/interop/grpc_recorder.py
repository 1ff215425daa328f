"""Records what official gRPC clients and Apache's proxy say to each other: the files in `tests/golden/grpc`.

    python -m tests.interop.grpc_recorder OUTPUT_DIRECTORY

starts Apache's name server and proxy 5.3.3 in local mode (for lite topics 5.5.0 in cluster mode), puts a
recorder before the proxy, and runs scenarios of the drivers for Java and Python. Routes are rewritten on the
way to the client, after they were recorded, so that clients stay with the recorder.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from grpclib.client import Channel, StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.exceptions import GRPCError, StreamTerminatedError

from skylark.proxy.access import RIGHTS
from skylark.proxy.call import Call, CallShape, Method, Send
from skylark.proxy.grpc_server import GrpcServer
from skylark.proxy.schema import SERVICE, v2
from skylark.remoting.address import split_address
from skylark.settings.proxy import ProxySettings
from tests.interop.grpc_clients import CLIENTS, names_for
from tests.interop.grpc_servers import LIGHT_QUEUES, SETTINGS, GrpcServers

RUNS = {
    "apache-local": (
        ("java", "normal"),
        ("java", "transaction"),
        ("java", "delay"),
        ("java", "invisible"),
        ("python", "normal"),
    ),
    "apache-proxy-5.5.0": (("java", "lite"), ("java", "lite-exclusive")),
}
KEPT_METADATA = ("x-mq-", "authorization", "grpc-timeout", "user-agent", "te", "content-type")
TIMEOUT_S = 150


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


async def record(output: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for kind, runs in RUNS.items():
            with GrpcServers(kind, Path(scratch) / kind, {**SETTINGS, **LIGHT_QUEUES}) as servers:
                for language, scenario in runs:
                    await _record(servers, language, scenario, Path(scratch), output)


async def _record(servers: GrpcServers, language: str, scenario: str, home: Path, output: Path) -> None:
    topic, group = names_for(servers, scenario, f"{language}_{scenario.replace('-', '_')}", queues=2)
    recorder = Recorder(servers.endpoints)
    port = await recorder.server.listen()
    command = CLIENTS[language].command(home, f"127.0.0.1:{port}", scenario, topic, group, "plain")
    driver = await asyncio.create_subprocess_exec(*command, env={"HOME": str(home)})
    async with asyncio.timeout(TIMEOUT_S):
        code = await driver.wait()
    await recorder.close()
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in recorder.lines)
    (output / f"{language}-{scenario}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    sys.stderr.write(f"{language} {scenario}: exit code {code}, {len(recorder.lines)} messages\n")


if __name__ == "__main__":
    asyncio.run(record(Path(sys.argv[1])))
