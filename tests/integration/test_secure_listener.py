"""Listening beyond loopback: warned of, or refused; and the metrics page with TLS and a token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark import health
from skylark.errors import NoPermission, SettingsError
from skylark.health import HealthState
from skylark.namesrv.server import METRICS
from skylark.protocol.requests.admin import GetBrokerRuntimeInfo
from skylark.protocol.requests.name_server import GetBrokerClusterInfo
from skylark.remoting.address import check_listener, free_port, local_ip
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.tls_client import ClientTls
from skylark.settings import ClientCertificate, TlsMode
from skylark.settings.auth import AuthSettings
from tests.support.broker import BrokerClient, running_broker, running_cluster, running_name_server, until
from tests.support.certificates import CertificateFiles, make_files

ANYWHERE = "0.0.0.0"  # noqa: S104 (what the tests are about)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_files(tmp_path / "certificates")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "anybody who reaches it may read, write and delete" in line]


async def page(
    address: str, path: str = "/metrics", *, token: str = "", tls: ssl.SSLContext | None = None
) -> str:
    scheme = "http" if tls is None else "https"
    request = urllib.request.Request(f"{scheme}://{address}{path}")  # noqa: S310 (http and https)
    if token:
        request.add_header("Authorization", f"Bearer {token}")

    def read() -> str:
        with urllib.request.urlopen(request, timeout=30, context=tls) as answer:  # noqa: S310
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


def value_of(name: str, metrics: str) -> float:
    (line,) = [text for text in metrics.splitlines() if re.match(rf"{re.escape(name)}[ {{]", text)]
    return float(line.split()[-1])


@contextlib.contextmanager
def refused_with(code: int) -> Iterator[None]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        yield
    with caught.value as answer:
        assert answer.code == code


async def test_one_warning_and_a_metric_beyond_loopback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path / "a", host=ANYWHERE, advertised_host="127.0.0.1") as broker:
        async with BrokerClient(f"127.0.0.1:{broker.port}") as client:
            assert (await client.ask(GetBrokerRuntimeInfo())).table[
                "insecureListener"
            ] == ANYWHERE  # for the doctor
        (line,) = warnings(caplog)
        assert f"{ANYWHERE}:{broker.port}" in line
        metrics = await page(f"127.0.0.1:{broker.monitor.address.rpartition(':')[2]}")
        assert value_of("skylark_insecure_listener", metrics) == 1.0
        first_page = await page(f"127.0.0.1:{broker.monitor.address.rpartition(':')[2]}", "/")
        assert f"warning: {ANYWHERE} is open" in first_page
    caplog.clear()
    async with running_name_server(tmp_path, host=ANYWHERE):
        assert len(warnings(caplog)) == 1
    caplog.clear()
    async with running_broker(tmp_path / "b") as broker:
        assert warnings(caplog) == []
        metrics = await page(broker.monitor.address)
        assert value_of("skylark_insecure_listener", metrics) == 0.0
        assert "warning" not in await page(broker.monitor.address, "/")


async def test_the_doctor_tells_of_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, host=ANYWHERE, advertised_host="127.0.0.1") as (name_server, broker):
        await until(lambda: bool(broker.registration.registered))
        checks = await asyncio.to_thread(lambda: list(health.servers(name_server.address)))
        (found,) = [check for check in checks if check.name == "access to broker broker-a"]
        assert (found.state, ANYWHERE in found.found) == (HealthState.NOTE, True)


async def test_a_certificate_that_cannot_be_reloaded_is_told_everywhere(
    tmp_path: Path, files: CertificateFiles
) -> None:
    tls = files.server()
    async with (
        running_name_server(tmp_path, tls=tls) as name_server,
        running_broker(tmp_path / "store", name_servers=name_server.address, tls=tls) as broker,
    ):
        await until(lambda: bool(broker.registration.registered))
        files.key.write_text("no key")

        async def is_noticed() -> bool:
            return "warning: the old certificate is in use" in await page(broker.monitor.address, "/")

        await until(is_noticed)
        metrics = await page(broker.monitor.address)
        assert value_of("skylark_tls_reload_failed", metrics) == 1.0

        async def is_told() -> bool:
            checks = await asyncio.to_thread(lambda: list(health.servers(name_server.address)))
            about = {check.name: check for check in checks if check.name.startswith("certificate files of")}
            assert all(check.state is HealthState.FAULT for check in about.values())
            assert all(str(files.key) in check.found for check in about.values())
            names = ("broker broker-a", f"name server {name_server.address}")
            return about.keys() == {f"certificate files of {name}" for name in names}

        await until(is_told)
        files.renew()
        await until(lambda: broker._tls is not None and not broker._tls.reload_failure)
        assert "warning" not in await page(broker.monitor.address, "/")


async def test_it_may_be_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not a loopback address and authentication is off"):
        async with running_broker(
            tmp_path, host=ANYWHERE, advertised_host="127.0.0.1", require_secure_listener=True
        ):
            pass
    with pytest.raises(SettingsError, match="is not a loopback address and authentication is off"):
        async with running_name_server(tmp_path, host=ANYWHERE, require_secure_listener=True):
            pass
    async with running_broker(tmp_path / "b", require_secure_listener=True):
        pass  # loopback


def test_authentication_without_tls_is_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for address, is_encrypted, lines in [
            ("10.0.0.5:1", False, 1),
            ("10.0.0.5:1", True, 0),
            ("[::1]:1", False, 0),
        ]:
            caplog.clear()
            assert not check_listener(
                address, is_authenticated=True, is_encrypted=is_encrypted, is_secure_required=True
            )
            assert len(caplog.messages) == lines


async def test_the_metrics_page_needs_its_token(tmp_path: Path) -> None:
    async with running_broker(tmp_path, metrics_token="a long token") as broker:
        for path in ("/metrics", "/health", "/ready"):
            with refused_with(401):
                await page(broker.monitor.address, path)
            with refused_with(401):
                await page(broker.monitor.address, path, token="a long toke")
            assert await page(broker.monitor.address, path, token="a long token")


async def test_the_metrics_page_by_tls(tmp_path: Path, files: CertificateFiles) -> None:
    async with running_broker(tmp_path / "store", tls=files.server()) as broker:
        address = broker.monitor.address
        assert "rocketmq_" in await page(address, tls=files.client_context())
        assert "rocketmq_" in await page(address)
        assert 'result="completed"' in await page(address)


async def test_the_metrics_page_enforces_tls_beyond_loopback(tmp_path: Path, files: CertificateFiles) -> None:
    tls = files.server(
        mode=TlsMode.ENFORCING, client_certificate=ClientCertificate.REQUIRE, trusted=files.authority
    )
    async with running_broker(
        tmp_path / "store",
        tls=tls,
        tls_client=files.client(own=True),
        host=ANYWHERE,
        advertised_host=local_ip(),
    ) as broker:
        address = f"127.0.0.1:{broker.monitor.address.rpartition(':')[2]}"
        assert "rocketmq_" in await page(address, tls=files.client_context(own=True))
        with pytest.raises(OSError):
            await page(address)
        with pytest.raises(OSError):
            await page(address, tls=files.client_context())


async def test_the_page_of_a_name_server(tmp_path: Path, files: CertificateFiles) -> None:
    credentials = {"accessKey": "inner", "secretKey": "inner-secret"}
    auth = AuthSettings(enabled=True, inner_credentials=json.dumps(credentials))
    async with running_name_server(
        tmp_path,
        host=ANYWHERE,
        metrics_port=free_port(ANYWHERE),
        metrics_token="a long token",
        tls=files.server(mode=TlsMode.ENFORCING),
        auth=auth,
    ) as server:
        tls, at = files.client_context(), f"127.0.0.1:{server.monitor.address.rpartition(':')[2]}"
        with refused_with(401):
            await page(at, tls=tls)
        with pytest.raises(OSError):
            await page(at, token="a long token")
        for path in ("/", "/health", "/ready"):
            assert "warning" not in await page(at, path, tls=tls, token="a long token")
        pool = ConnectionPool(tls=ClientTls(files.client()))
        with pytest.raises(NoPermission):
            await pool.call(f"127.0.0.1:{server.port}", GetBrokerClusterInfo(), timeout_s=30)
        await pool.close()
        metrics = await page(at, tls=tls, token="a long token")
        assert value_of("skylark_insecure_listener", metrics) == 0.0
        assert value_of('skylark_auth_refused_total{reason="anonymous"}', metrics) == 1.0
        assert value_of('skylark_tls_handshakes_total{result="completed"}', metrics) == 1.0
        assert value_of("skylark_namesrv_brokers", metrics) == 0.0
        assert value_of("skylark_namesrv_connections", metrics) <= 1.0


async def test_a_name_server_counts_brokers_topics_and_requests(tmp_path: Path) -> None:
    async with (
        running_name_server(tmp_path, metrics_port=free_port("127.0.0.1")) as server,
        running_broker(tmp_path / "store", name_servers=server.address) as broker,
    ):
        await until(lambda: bool(broker.registration.registered))
        metrics = await page(server.monitor.address)
        assert value_of("skylark_namesrv_brokers", metrics) == 1.0
        assert value_of("skylark_namesrv_topics", metrics) > 0
        registered = 'skylark_namesrv_request_total{request_type="REGISTER_BROKER",response_code="0"}'
        assert value_of(registered, metrics) >= 1.0
        names = {line.split()[2] for line in metrics.splitlines() if line.startswith("# TYPE")}
        assert names == METRICS.keys()


async def test_a_broken_pair_is_told_by_metric_and_runtime_information(
    tmp_path: Path, files: CertificateFiles
) -> None:
    async with running_broker(tmp_path / "store", tls=files.server()) as broker:
        files.key.write_text("broken")

        async def is_told() -> bool:
            async with BrokerClient(broker.address) as client:
                return "tlsReloadFailure" in (await client.ask(GetBrokerRuntimeInfo())).table

        await until(is_told)
        assert value_of("skylark_tls_reload_failed", await page(broker.monitor.address)) == 1.0
