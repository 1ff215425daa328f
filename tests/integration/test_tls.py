"""Name server, broker and clients that speak nothing but TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark import ConsumeFrom, PushConsumerSettings, ReceivedMessage, aio
from skylark.broker.broker import Broker
from skylark.client.producer.producer import Producer
from skylark.errors import ConnectFailed, RocketMQError
from skylark.model.message import Message
from skylark.namesrv.server import NameServer
from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.sink import SinkOptions
from skylark.protocol.requests.admin import GetBrokerConfig
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.settings import FlushMode, TlsMode
from skylark.settings.client import ClientSettings, ProducerSettings
from tests.support.broker import running_broker, running_name_server, until
from tests.support.certificates import CertificateFiles, make_files


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_files(tmp_path / "certificates")


def client_settings(files: CertificateFiles) -> ClientSettings:
    return ClientSettings(tls=True, tls_trusted=files.authority)


async def has_topic(admin: aio.Admin) -> bool:
    return "orders" in await admin.topics.names()


@contextlib.asynccontextmanager
async def closed_cluster(
    directory: Path, files: CertificateFiles, **changes: Any
) -> AsyncIterator[tuple[NameServer, Broker]]:
    """A name server and a broker that accept TLS only; the broker registers by TLS."""
    tls = files.server(mode=TlsMode.ENFORCING)
    async with (
        running_name_server(directory, tls=tls) as name_server,
        running_broker(
            directory / "store",
            name_servers=name_server.address,
            tls=tls,
            tls_client=files.client(),
            **changes,
        ) as broker,
    ):
        await until(lambda: bool(broker.registration.registered))
        yield name_server, broker


async def test_producer_consumers_and_admin_over_tls(tmp_path: Path, files: CertificateFiles) -> None:
    async with closed_cluster(tmp_path, files) as (name_server, _):
        client = client_settings(files)
        namesrv = name_server.address
        async with aio.Producer("P", namesrv=namesrv, client=client) as producer:
            for number in range(20):
                await producer.send(Message("orders", f"{number}".encode()))
        async with aio.Admin(namesrv=namesrv, client=client) as admin:
            await until(lambda: has_topic(admin))
        received: set[bytes] = set()

        async def listen(messages: Sequence[ReceivedMessage]) -> None:
            received.update(message.body for message in messages)

        settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = aio.PushConsumer("C", namesrv=namesrv, client=client, settings=settings)
        consumer.subscribe("orders", listener=listen)
        async with consumer:
            await until(lambda: len(received) == 20)


async def test_a_client_without_tls_gets_nothing(tmp_path: Path, files: CertificateFiles) -> None:
    async with closed_cluster(tmp_path, files) as (name_server, broker):
        for address in (name_server.address, broker.address):
            with BlockingConnection(address) as connection, pytest.raises(RocketMQError):
                await asyncio.to_thread(connection.call, GetBrokerConfig(), timeout_s=5)
        async with aio.Admin(namesrv=name_server.address) as admin:
            with pytest.raises(RocketMQError):
                await admin.topics.names()


async def test_the_environment_is_enough(
    tmp_path: Path, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with closed_cluster(tmp_path, files) as (name_server, _):
        monkeypatch.setenv("NAMESRV_ADDR", name_server.address)
        monkeypatch.setenv("SKYLARK_TLS_ENABLED", "true")
        monkeypatch.setenv("SKYLARK_TLS_TRUSTED", str(files.authority))
        async with aio.Producer("P") as producer:
            assert (await producer.send(Message("orders", b"x"))).queue_offset == 0
        monkeypatch.setenv("SKYLARK_TLS_SERVER_NAME", "other.test")
        async with aio.Admin() as admin:
            with pytest.raises(ConnectFailed, match="its certificate is not accepted"):
                await admin.topics.names()


async def test_synchronous_flush_under_load_keeps_the_stream_whole(
    tmp_path: Path, files: CertificateFiles
) -> None:
    """The flush thread sends replies past the loop; on a TLS connection it must not."""
    async with closed_cluster(tmp_path, files, store={"flush_mode": FlushMode.SYNC}) as (name_server, _):
        settings = ProducerSettings(send_timeout_ms=30_000, retries=0)

        def send_all() -> list[int]:
            with Producer(
                "P", namesrv=name_server.address, settings=settings, client=client_settings(files)
            ) as producer:
                # One at a time is what the flush thread answers; the body makes frames cross records.
                return [
                    producer.send(Message("orders", b"x" * (number * 997 % 40_000 + 1))).queue_offset
                    for number in range(150)
                ]

        offsets = await asyncio.gather(*(asyncio.to_thread(send_all) for _ in range(3)))
        assert sum(len(each) for each in offsets) == 450


async def test_a_certificate_is_exchanged_under_load(tmp_path: Path, files: CertificateFiles) -> None:
    async with closed_cluster(tmp_path, files) as (name_server, broker):
        client = client_settings(files)
        async with aio.Producer("P", namesrv=name_server.address, client=client) as producer:
            before = await asyncio.to_thread(_served, broker.address)
            sent = 0
            files.renew()

            async def is_exchanged() -> bool:
                nonlocal sent
                await producer.send(Message("orders", b"x"), timeout_ms=20_000)
                sent += 1
                return await asyncio.to_thread(_served, broker.address) != before

            await until(is_exchanged)
            for _ in range(20):
                await producer.send(Message("orders", b"x"), timeout_ms=20_000)
            assert sent > 0


def _served(address: str) -> str:
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


async def test_the_client_of_spark_tasks(tmp_path: Path, files: CertificateFiles) -> None:
    async with closed_cluster(tmp_path, files) as (name_server, _):
        async with aio.Producer("P", namesrv=name_server.address, client=client_settings(files)) as producer:
            await producer.send(Message("orders", b"x"))
        async with aio.Admin(namesrv=name_server.address, client=client_settings(files)) as admin:
            await until(lambda: has_topic(admin))
        options = load(
            SourceOptions,
            {
                "namesrv": name_server.address,
                "topic": "orders",
                "tls": "true",
                "tlsTrusted": str(files.authority),
            },
        )
        sink = load(SinkOptions, {"namesrv": name_server.address, "tlsServerName": "a.test"})
        assert sink.tls_settings is None  # not enabled

        def count() -> int:
            client = ClusterClient(name_server.address, tls=options.tls_settings)
            try:
                return sum(client.max_offsets(client.queues("orders")).values())
            finally:
                client.close()

        assert await asyncio.to_thread(count) == 1


async def test_the_command_line(tmp_path: Path, files: CertificateFiles) -> None:
    async with closed_cluster(tmp_path, files) as (name_server, broker):

        async def skylark(*words: str) -> tuple[int | None, str]:
            started = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "skylark", *words,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await started.communicate()
            return started.returncode, output.decode()

        where = ("--namesrv", name_server.address)
        code, output = await skylark("--tls-trusted", str(files.authority), "send", "orders", "hello", *where)
        assert code == 0, output
        assert broker.store.appended_offset > 0
        code, output = await skylark("--tls", "topic", "list", *where)  # the CAs of the system
        assert code == 2
        assert "its certificate is not accepted" in output
