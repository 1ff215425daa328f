"""The guide "From open to closed without downtime" of docs/security.md, step by step, under traffic."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skylark import ConsumeFrom, ProducerSettings, PushConsumerSettings, ReceivedMessage, aio
from skylark.cli.main import app
from skylark.errors import NoPermission, RocketMQError
from skylark.model.message import Message
from skylark.processes import HOST, free_ports
from skylark.settings import BrokerSettings, NameServerSettings
from skylark.settings.client import ClientSettings
from skylark.settings.loader import load_settings
from tests.support.broker import running_broker, running_name_server, until
from tests.support.certificates import CertificateFiles, make_files
from tests.support.pages import ROOT, blocks

PLACE = "/etc/skylark"
SENDS_BETWEEN = 20
PATIENT = ProducerSettings(send_timeout_ms=30_000)
OWN = [
    block for block in blocks(ROOT / "docs/security.md") if block.run_by and "open_to_closed" in block.run_by
]
NAME_SERVER_KNOWS, BROKER_KNOWS, USERS, CLOSES = OWN


class Member:
    """A server of the cluster, which is stopped and started again with other settings."""

    def __init__(self, directory: Path, name: str, namesrv: str, port: int) -> None:
        self._directory = directory / name
        self._directory.mkdir()
        self._name = name
        self._namesrv = namesrv
        self._port = port
        self._running = AsyncExitStack()

    @property
    def is_broker(self) -> bool:
        return self._name.startswith("broker")

    async def restart(self, conf: str) -> None:
        """Stop, and start with this configuration file."""
        await self._running.aclose()
        file = self._directory / "server.conf"
        file.write_text(conf)
        if not self.is_broker:
            told = load_settings(NameServerSettings, file=file).settings
            given: dict[str, Any] = {"port": self._port, "tls": told.tls, "auth": told.auth}
            await self._running.enter_async_context(running_name_server(self._directory, **given))
            return
        loaded = load_settings(BrokerSettings, file=file).settings
        given = {
            "name": self._name, "port": self._port, "name_servers": self._namesrv, "tls": loaded.tls,
            "tls_client": loaded.tls_client, "auth": loaded.auth,
        }  # fmt: skip
        broker = await self._running.enter_async_context(running_broker(self._directory, **given))
        registered = broker.registration.registered
        await until(lambda: len(registered) == self._namesrv.count(";") + 1)

    async def stop(self) -> None:
        await self._running.aclose()


class Traffic:
    """A producer that sends one message after another, and a consumer. Both may be replaced."""

    def __init__(self, namesrv: str) -> None:
        self.sent = 0
        self.received: set[bytes] = set()
        self._namesrv = namesrv
        self._between_sends = asyncio.Lock()
        self._producer: aio.Producer | None = None
        self._consumer: aio.PushConsumer | None = None

    async def use(self, client: ClientSettings) -> None:
        """Start clients with these settings, then stop those of before."""
        settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = aio.PushConsumer("billing", namesrv=self._namesrv, client=client, settings=settings)
        consumer.subscribe("orders", listener=self._listen)
        producer = aio.Producer("shop", namesrv=self._namesrv, client=client, settings=PATIENT)
        await producer.start()
        await consumer.start()
        async with self._between_sends:
            old = self._producer, self._consumer
            self._producer, self._consumer = producer, consumer
        for each in old:
            if each is not None:
                await each.stop()

    async def _listen(self, messages: Sequence[ReceivedMessage]) -> None:
        self.received.update(message.body for message in messages)

    async def send_forever(self) -> None:
        """Until cancelled. A send that fails ends the test."""
        while True:
            async with self._between_sends:
                assert self._producer is not None
                await self._producer.send(Message("orders", b"%d" % self.sent))
                self.sent += 1
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        for each in (self._producer, self._consumer):
            if each is not None:
                await each.stop()


def run_commands(code: Sequence[str], directory: Path, namesrv: str) -> None:
    for line in code:
        words = shlex.split(line.replace(PLACE, str(directory)))
        assert words.pop(0) == "skylark"
        result = CliRunner().invoke(app, words, env={"NAMESRV_ADDR": namesrv, "COLUMNS": "200"})
        assert result.exit_code == 0, (line, result.output, result.exception)


def write_secrets(files: CertificateFiles) -> None:
    inner = json.dumps({"accessKey": "inner", "secretKey": "inner-secret"})
    for name, text in (
        ("admin.secret", "admin-secret"),
        ("inner.json", inner),
        ("shop.secret", "shop-secret"),
    ):
        secret = files.directory / name
        secret.touch(mode=0o600)
        secret.write_text(text)


def closed(conf: str) -> str:
    """The configuration with the lines of the last step in place of the old ones."""
    keys = [line.partition("=")[0] for line in CLOSES.code.splitlines()]
    kept = [line for line in conf.splitlines() if line.partition("=")[0] not in keys]
    return "\n".join([*kept, *CLOSES.code.splitlines()])


@pytest.mark.nightly
async def test_a_cluster_is_closed_while_it_is_in_use(tmp_path: Path) -> None:
    files = make_files(tmp_path / "certificates")
    write_secrets(files)
    ports = [free_ports(), free_ports()]
    namesrv = ";".join(f"{HOST}:{port}" for port in ports)
    names = {f"namesrv-{number}": port for number, port in enumerate(ports)}
    names |= {f"broker-{letter}": free_ports(-2, 1) for letter in "ab"}
    members = [Member(tmp_path, name, namesrv, port) for name, port in names.items()]
    traffic = Traffic(namesrv)
    known = [
        (BROKER_KNOWS if member.is_broker else NAME_SERVER_KNOWS).code.replace(PLACE, str(files.directory))
        for member in members
    ]
    secured = ClientSettings(
        tls=True, tls_trusted=files.authority, access_key="shop", secret_key=f"@{files.directory}/shop.secret"
    )
    async with AsyncExitStack() as stack:
        for member in members:
            stack.push_async_callback(member.stop)
            await member.restart("")
        stack.push_async_callback(traffic.stop)
        await traffic.use(ClientSettings())
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(traffic.send_forever())

            async def more() -> None:
                goal = traffic.sent + SENDS_BETWEEN
                await until(lambda: traffic.sent >= goal)

            await more()
            for member, conf in zip(members, known, strict=True):  # step 2
                await member.restart(conf)
                await more()
            await asyncio.to_thread(run_commands, USERS.commands(), files.directory, namesrv)  # step 3
            await traffic.use(secured)  # step 4
            await more()
            for member, conf in zip(members, known, strict=True):  # step 5
                await member.restart(closed(conf))
                await more()
            sending.cancel()
        await until(lambda: len(traffic.received) == traffic.sent)
        assert traffic.received == {b"%d" % number for number in range(traffic.sent)}
        await nobody_else_is_answered(namesrv, secured)


async def nobody_else_is_answered(namesrv: str, secured: ClientSettings) -> None:
    unsigned = replace(secured, access_key="", secret_key="")
    wrong = replace(secured, secret_key="another-secret")
    for client, refusal in (
        (unsigned, NoPermission),
        (wrong, NoPermission),
        (ClientSettings(), RocketMQError),
    ):
        async with aio.Admin(namesrv=namesrv, client=client) as admin:
            with pytest.raises(refusal):
                await admin.topics.names()
