"""TLS with Apache's programs: Java clients and mqadmin with our servers, our clients with Apache's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark import Admin, ClientSettings, Message, Producer, ProducerSettings, SendStatus
from skylark.certificates import CertificateDirectory, make_directory
from skylark.errors import ConnectFailed
from skylark.settings import ClientTlsSettings, ServerTlsSettings, TlsMode
from tests.interop.client_driver import ClientDriver
from tests.interop.mqadmin import MqAdmin, admin_classpath
from tests.interop.servers import SETTINGS, ApacheServers, create_topic
from tests.interop.test_java_clients import SCENARIOS
from tests.interop.verdict import Results
from tests.interop.versions import CLIENTS
from tests.support.broker import running_broker, running_name_server, until

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.timeout(600)]

NAMES = ("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateDirectory:
    """What `skylark tls init` writes: one file of properties for servers and clients of both makes."""
    return make_directory(tmp_path_factory.mktemp("certificates"), NAMES, days=2)


def java_options(certificates: CertificateDirectory, *more: str) -> tuple[str, ...]:
    return (
        "-Dtls.test.mode.enable=false",
        f"-Dtls.config.file={certificates.properties}",
        *more,
    )


async def with_java(
    directory: Path, certificates: CertificateDirectory, scenarios: tuple[str, ...], version: str = "5.3.3"
) -> tuple[Results, list[str]]:
    """Run scenarios, and two commands of mqadmin, with servers that accept nothing but TLS."""
    server = ServerTlsSettings(mode=TlsMode.ENFORCING, config_file=certificates.properties)
    client = ClientTlsSettings(trusted=certificates.authority)
    options = java_options(certificates, "-Dtls.enable=true")
    store = {"delay_levels": SETTINGS["messageDelayLevel"]}
    async with (
        running_name_server(directory, tls=server) as name_server,
        running_broker(
            directory / "store", store=store, name_servers=name_server.address, tls=server, tls_client=client
        ) as broker,
    ):
        await until(lambda: bool(broker.registration.registered))

        def run() -> tuple[Results, list[str]]:
            driver = ClientDriver(version, name_server.address, directory)
            found = driver.run("all", *scenarios, options=options)
            admin = MqAdmin(admin_classpath(), name_server.address, directory, options=options)
            return found, admin.run(["clusterList"], ["brokerStatus", "-b", broker.address])

        return await asyncio.to_thread(run)


@pytest.mark.parametrize("version", CLIENTS)
async def test_java_clients_and_mqadmin_with_our_servers(
    tmp_path: Path, certificates: CertificateDirectory, version: str
) -> None:
    scenarios = ("send_sync", "push_tag_filter")
    found, (clusters, status) = await with_java(tmp_path, certificates, scenarios, version)
    assert found == {"send_sync": None, "push_tag_filter": None}
    assert "broker-a" in clusters
    assert "brokerVersionDesc" in status


@pytest.mark.nightly
async def test_every_scenario_of_java_clients_with_our_servers(
    tmp_path: Path, certificates: CertificateDirectory
) -> None:
    found, _ = await with_java(tmp_path, certificates, SCENARIOS)
    assert found == dict.fromkeys(SCENARIOS)


@pytest.mark.nightly
def test_our_clients_with_apaches_servers(tmp_path: Path, certificates: CertificateDirectory) -> None:
    settings = ClientSettings(tls=True, tls_trusted=certificates.authority)
    patient = ProducerSettings(send_timeout_ms=60_000)
    with ApacheServers(tmp_path, SETTINGS, options=java_options(certificates)) as apache:
        create_topic(apache.broker, "orders")  # by plain text: Apache's servers are permissive
        with Producer("P", namesrv=apache.name_server, settings=patient, client=settings) as producer:
            for number in range(10):
                assert producer.send(Message("orders", b"%d" % number)).status is SendStatus.OK
        with Admin(namesrv=apache.name_server, client=settings, timeout_ms=30_000) as admin:
            assert "orders" in admin.topics.names()
        wrong = ClientSettings(tls=True, tls_trusted=certificates.authority, tls_server_name="other.test")
        with (
            Admin(namesrv=apache.name_server, client=wrong) as admin,
            pytest.raises(ConnectFailed, match="its certificate is not accepted"),
        ):
            admin.topics.names()
