"""The three kinds of client connections over TLS, against the real server."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from skylark.errors import ConnectFailed, RequestTimeout, SettingsError
from skylark.protocol.command import Buffer, encode
from skylark.protocol.requests.offset import GetMaxOffset, GetMinOffset
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.server import ServerLimits
from skylark.remoting.threaded_connection import IDLE_CHECK_S, ThreadedConnection
from skylark.remoting.tls import make_server_tls
from skylark.remoting.tls_client import ClientTls, make_outgoing_tls
from skylark.settings import ClientCertificate, ClientTlsSettings, ServerTlsSettings, TlsMode
from skylark.settings.client import ClientSettings
from skylark.settings.tls import client_tls_settings
from tests.support.certificates import CertificateFiles, foreign_authority, make_files
from tests.unit.remoting.rig import LOOPS, PULL, SEND, Rig, run_on, running, until

Ask = Callable[[str, ClientTls], int]


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_files(tmp_path / "certificates")


def ask_blocking(address: str, tls: ClientTls) -> int:
    with BlockingConnection(address, tls=tls) as connection:
        return connection.call(GetMaxOffset("t", 7), timeout_s=20)


def exchange(connection: ThreadedConnection, request: GetMaxOffset) -> int:
    def frame(opaque: int) -> tuple[Buffer, ...]:
        command = request.to_command()
        command.opaque = opaque
        return tuple(encode(command))

    return request.result(connection.exchange(frame, deadline=time.monotonic() + 20, request="ASK"))


def ask_threaded(address: str, tls: ClientTls) -> int:
    connection = ThreadedConnection(address, tls=tls, connect_timeout_s=20)
    try:
        return exchange(connection, GetMaxOffset("t", 7))
    finally:
        connection.close()


def ask_loop(address: str, tls: ClientTls) -> int:
    async def ask() -> int:
        pool = ConnectionPool(tls=tls, connect_timeout_s=20)
        try:
            return await pool.call(address, GetMaxOffset("t", 7), timeout_s=20)
        finally:
            await pool.close()

    return asyncio.run(ask())


def ask_uvloop(address: str, tls: ClientTls) -> int:
    async def ask() -> int:
        pool = ConnectionPool(tls=tls, connect_timeout_s=20)
        try:
            return await pool.call(address, GetMaxOffset("t", 7), timeout_s=20)
        finally:
            await pool.close()

    with asyncio.Runner(loop_factory=LOOPS["uvloop"]) as runner:
        return runner.run(ask())


kinds = pytest.mark.parametrize("ask", [ask_blocking, ask_threaded, ask_loop, ask_uvloop])


def with_server(
    settings: ServerTlsSettings, scenario: Callable[[Rig], Coroutine[Any, Any, None]], **limits: Any
) -> None:
    async def run() -> None:
        async with running(ServerLimits(**limits), tls=make_server_tls(settings)) as rig:
            await scenario(rig)

    run_on("asyncio", run())


@kinds
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_is_known_by_its_name_or_address(ask: Ask, host: str, files: CertificateFiles) -> None:
    async def scenario(rig: Rig) -> None:
        assert await asyncio.to_thread(ask, f"{host}:{rig.port}", ClientTls(files.client())) == 7

    with_server(files.server(mode=TlsMode.ENFORCING), scenario)


@kinds
def test_a_certificate_with_another_name_is_refused_unless_that_name_is_expected(
    ask: Ask, files: CertificateFiles
) -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(ConnectFailed, match=r"its certificate is not accepted: .*match"):
            wrong = ClientTls(files.client(server_name="other.test"))
            await asyncio.to_thread(ask, rig.address, wrong)
        expected = ClientTls(files.client(server_name="broker.test"))
        assert await asyncio.to_thread(ask, rig.address, expected) == 7
        unchecked = ClientTls(ClientTlsSettings(enabled=True, check_server=False))
        assert await asyncio.to_thread(ask, rig.address, unchecked) == 7

    with_server(files.server(), scenario)


@kinds
def test_a_certificate_of_an_unknown_authority_is_refused(
    ask: Ask, files: CertificateFiles, tmp_path: Path
) -> None:
    async def scenario(rig: Rig) -> None:
        trusted = tmp_path / "another.pem"
        trusted.write_bytes(foreign_authority().certificate)
        for settings in (
            ClientTlsSettings(enabled=True, trusted=trusted),
            ClientTlsSettings(enabled=True),  # the CAs of the system
        ):
            with pytest.raises(ConnectFailed, match="its certificate is not accepted: "):
                await asyncio.to_thread(ask, rig.address, ClientTls(settings))
        await until(lambda: not rig.server.peers)

    with_server(files.server(), scenario)


@kinds
def test_a_client_shows_its_certificate(ask: Ask, files: CertificateFiles) -> None:
    async def scenario(rig: Rig) -> None:
        assert await asyncio.to_thread(ask, rig.address, ClientTls(files.client(own=True))) == 7

    settings = files.server(client_certificate=ClientCertificate.REQUIRE, trusted=files.authority)
    with_server(settings, scenario)


@kinds
def test_a_server_without_tls_is_a_connection_that_fails_with_the_reason(
    ask: Ask, files: CertificateFiles
) -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(ConnectFailed, match="during the TLS handshake; it may not accept TLS"):
            await asyncio.to_thread(ask, rig.address, ClientTls(files.client()))

    with_server(ServerTlsSettings(), scenario)


def test_long_replies_and_many_requests_of_a_blocking_connection(files: CertificateFiles) -> None:
    async def scenario(rig: Rig) -> None:
        rig.pull_answer = os.urandom(300_000)

        def calls() -> None:
            with BlockingConnection(rig.address, tls=ClientTls(files.client())) as connection:
                asked = connection.ask_many([PULL] * 40, timeout_s=20)
                for each in asked:
                    assert bytes(connection.answer(each).records) == rig.pull_answer
                assert [connection.call(SEND).reply.queue_offset for _ in range(5)] == [100] * 5
                with pytest.raises(RequestTimeout):
                    connection.call(GetMaxOffset("t", 20), timeout_s=0.05)
                assert connection.call(GetMaxOffset("t", 4)) == 4

        await asyncio.to_thread(calls)

    with_server(files.server(), scenario)


def test_a_blocking_connection_is_reopened_after_the_server_closed_it(files: CertificateFiles) -> None:
    """Also if session tickets, which nobody has read, arrived before the end."""

    async def scenario(rig: Rig) -> None:
        connection = BlockingConnection(rig.address, tls=ClientTls(files.client()))
        for _ in range(3):
            assert await asyncio.to_thread(connection.call, GetMinOffset("t", 0)) == 0
            await until(lambda: not rig.server.peers)
        assert len(rig.gone) == 3
        connection.close()

    with_server(files.server(), scenario, idle_timeout_s=0.2)


def test_a_threaded_connection_is_reopened_after_the_server_closed_it(files: CertificateFiles) -> None:
    async def scenario(rig: Rig) -> None:
        connection = ThreadedConnection(rig.address, tls=ClientTls(files.client()))
        for _ in range(2):
            assert await asyncio.to_thread(exchange, connection, GetMaxOffset("t", 3)) == 3
            await until(lambda: not rig.server.peers)
            await asyncio.sleep(IDLE_CHECK_S * 1.2)  # it asks the socket after this
        assert len(rig.gone) == 2
        await asyncio.to_thread(connection.close)

    with_server(files.server(), scenario, idle_timeout_s=0.2)


def test_threads_send_and_receive_on_one_connection_at_once(files: CertificateFiles) -> None:
    async def scenario(rig: Rig) -> None:
        connection = ThreadedConnection(rig.address, tls=ClientTls(files.client()))
        body = os.urandom(100_000)
        failures: list[Exception] = []

        def frame(opaque: int) -> tuple[Buffer, ...]:
            command = SEND.to_command()
            command.body, command.opaque = body, opaque
            return tuple(encode(command))

        def work() -> None:
            try:
                for _ in range(40):
                    reply = connection.exchange(frame, deadline=time.monotonic() + 30, request="SEND")
                    assert reply.fields["queueOffset"] == str(len(body))
            except Exception as error:  # noqa: BLE001 (handed to the test)
                failures.append(error)

        def run() -> None:
            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            connection.close()

        await asyncio.to_thread(run)
        assert failures == []
        assert sum(rig.batches) == 320
        assert len(rig.gone) <= 1

    with_server(files.server(), scenario)


def test_changed_files_are_loaded_for_the_next_connection(
    files: CertificateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(rig: Rig) -> None:
        files.authority.write_bytes(foreign_authority().certificate)
        tls = ClientTls(files.client())
        with pytest.raises(ConnectFailed):
            await asyncio.to_thread(ask_blocking, rig.address, tls)
        files.authority.write_bytes(make_files(tmp_path / "other").authority.read_bytes())
        assert await asyncio.to_thread(ask_blocking, rig.address, tls) == 7
        files.authority.write_bytes(b"nonsense")
        assert await asyncio.to_thread(ask_blocking, rig.address, tls) == 7

    with_server(files.server(), scenario)
    assert "the old one stays in use" in caplog.text


# --- Settings ---


def test_settings_come_from_the_client_or_from_the_environment(tmp_path: Path) -> None:
    environment = {"SKYLARK_TLS_ENABLED": "true", "SKYLARK_TLS_TRUSTED": "/a", "NAMESRV_ADDR": "x:1"}
    assert client_tls_settings(ClientSettings(), {}) is None
    found = client_tls_settings(ClientSettings(), environment)
    assert found == ClientTlsSettings(enabled=True, trusted=Path("/a"))
    assert client_tls_settings(ClientSettings(tls=False), environment) is None
    settings = ClientSettings(tls=True, tls_trusted=Path("/b"), tls_check_server=False, tls_server_name="n")
    found = client_tls_settings(settings, environment)
    assert found == ClientTlsSettings(enabled=True, trusted=Path("/b"), check_server=False, server_name="n")
    with pytest.raises(SettingsError, match="unknown setting; did you mean SKYLARK_TLS_TRUSTED"):
        client_tls_settings(ClientSettings(), {"SKYLARK_TLS_TRUST": "/a"})
    with pytest.raises(SettingsError, match="missing"):
        client_tls_settings(ClientSettings(tls=True, tls_key=Path("/k")), {})


def test_a_server_uses_tls_itself_if_it_accepts_nothing_else(files: CertificateFiles, tmp_path: Path) -> None:
    trusting = ClientTlsSettings(trusted=files.authority)
    assert make_outgoing_tls(ServerTlsSettings(), trusting) is None
    assert make_outgoing_tls(files.server(mode=TlsMode.PERMISSIVE), trusting) is None
    assert make_outgoing_tls(files.server(mode=TlsMode.ENFORCING), trusting) is not None
    told = ClientTlsSettings(enabled=False)
    assert make_outgoing_tls(files.server(mode=TlsMode.ENFORCING), told) is None
    file = tmp_path / "tls.properties"
    file.write_text("tls.client.trustCertPath=/missing\n")
    with pytest.raises(SettingsError, match="/missing: No such file"):
        make_outgoing_tls(ServerTlsSettings(config_file=file), ClientTlsSettings(enabled=True))


def test_old_versions_are_refused_by_clients(files: CertificateFiles) -> None:
    assert ClientTls(files.client()).context().minimum_version is ssl.TLSVersion.TLSv1_2


def test_secrets_are_not_shown() -> None:
    settings = ClientTlsSettings(certificate=Path("c"), key=Path("k"), key_password="guarded")
    assert "guarded" not in repr(settings)
    assert "guarded" not in repr(ClientSettings(tls_key_password="guarded"))
