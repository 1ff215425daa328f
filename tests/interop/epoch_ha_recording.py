"""Records the replication link of controller mode between two Apache brokers: golden file `epoch-ha`.

    python -m tests.interop.epoch_ha_recording tests/golden/frames/epoch-ha.jsonl.gz

A proxy stands before the replication port of each broker. They find it because another proxy, before the name
server, replaces the ports in its replies. The story: A is elected, B follows, A is killed, B is elected, A
returns and follows.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.apache import ApacheBroker, ApacheController
from skylark.processes import free_ports
from tests.interop.mqadmin import admin_classpath
from tests.interop.servers import PATIENT
from tests.support.broker import BrokerClient, until

FILE_BYTES = 1 << 20
SETTINGS: dict[str, str | int] = {
    "brokerId": -1,
    "brokerRole": "SLAVE",
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "mappedFileSizeCommitLog": FILE_BYTES,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxHashSlotNum": 1024,
    "maxIndexNum": 8192,
    "reviveQueueNum": 0,
    **PATIENT,
}
JAVA_TIMEOUT_S = 120


class Recorder:
    """Proxies, and what passed through the raw ones, in order."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._links = itertools.count(1)
        self._servers: list[asyncio.Server] = []

    async def serve(
        self, port: int, target: int, *, name: str = "", change: Callable[[bytes], bytes] = lambda data: data
    ) -> None:
        """Pass bytes on to a port; keep them under a name if there is one; `change` what comes back."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            link = next(self._links)
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
            except OSError:
                writer.close()
                return
            await asyncio.gather(
                self._pump(reader, far_writer, name, link, "slave->master", lambda data: data),
                self._pump(far_reader, writer, name, link, "master->slave", change),
            )

        self._servers.append(await asyncio.start_server(accept, "127.0.0.1", port))

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        name: str,
        link: int,
        direction: str,
        change: Callable[[bytes], bytes],
    ) -> None:
        try:
            while data := change(await reader.read(1 << 16)):
                writer.write(data)
                if name:
                    self.lines.append(
                        {
                            "n": len(self.lines) + 1, "time": round(time.time() * 1000), "conn": link,
                            "master": name, "direction": direction, "bytes_hex": data.hex(),
                        }
                    )  # fmt: skip
        except OSError:
            pass
        finally:
            writer.close()

    def close(self) -> None:
        for server in self._servers:
            server.close()


async def story(directory: Path, recorder: Recorder) -> None:
    front, *fronts = (free_ports() for _ in range(3))
    controller = ApacheController(admin_classpath(), directory / "controller")
    brokers = [
        ApacheBroker(
            admin_classpath(), directory / name / "home", directory / name / "store",
            name_server=f"127.0.0.1:{front}",
            settings={**SETTINGS, "controllerAddr": controller.controller},
        )
        for name in "ab"
    ]  # fmt: skip
    a, b = brokers

    def change(data: bytes) -> bytes:
        for broker, port in zip(brokers, fronts, strict=True):
            data = data.replace(b"127.0.0.1:%d" % (broker.port + 1), b"127.0.0.1:%d" % port)
        return data

    await recorder.serve(front, controller.port, change=change)
    for broker, port, name in zip(brokers, fronts, "ab", strict=True):
        await recorder.serve(port, broker.port + 1, name=name)
    try:
        await asyncio.to_thread(controller.start)
        await asyncio.to_thread(a.start)
        await send(a, 20)
        await asyncio.to_thread(b.start)
        await until(lambda: reports_beyond(recorder, "a", 0), timeout_s=JAVA_TIMEOUT_S)
        await send(a, 3)
        await asyncio.sleep(12)  # heartbeats of both sides
        a.kill()
        await send(b, 5)
        await asyncio.to_thread(a.start)
        await until(lambda: reports_beyond(recorder, "b", 0), timeout_s=JAVA_TIMEOUT_S)
        await send(b, 3)
        await asyncio.sleep(7)
    finally:
        for server in (*brokers, controller):
            server.kill()
        recorder.close()


def reports_beyond(recorder: Recorder, master: str, count: int) -> bool:
    found = [
        line
        for line in recorder.lines
        if (line["master"], line["direction"]) == (master, "slave->master") and len(line["bytes_hex"]) == 24
    ]
    return len(found) > count


async def send(broker: ApacheBroker, count: int) -> None:
    """Send messages to a broker that is, or becomes, the master."""
    async with BrokerClient(broker.address) as client:
        sent = 0

        async def is_sent() -> bool:
            nonlocal sent
            try:
                await client.send("T", b"message %d" % sent)
            except Exception:  # noqa: BLE001 (it becomes the master soon)
                return False
            sent += 1
            return sent == count

        await until(is_sent, timeout_s=JAVA_TIMEOUT_S)


def main(target: Path) -> None:
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(story(Path(directory), recorder))
    with gzip.GzipFile(target, "wb", mtime=0) as file:
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in recorder.lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
