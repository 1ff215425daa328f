"""The replication port with TLS: slaves need a certificate, plain ones an allowed address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.errors import SettingsError
from skylark.protocol.requests.send import SendMessageV2
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.tls_client import ClientTls
from skylark.settings import ReplicationSettings, ServerTlsSettings, TlsMode
from skylark.settings.auth import AuthSettings
from tests.support.broker import broker_settings, until
from tests.support.certificates import CertificateFiles, make_files
from tests.support.replication import connected, in_step, running_master, running_slave


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_files(tmp_path / "certificates")


def master_tls(files: CertificateFiles, mode: TlsMode = TlsMode.ENFORCING) -> ServerTlsSettings:
    return files.server(mode=mode, trusted=files.authority)


async def send(master: Broker, files: CertificateFiles) -> None:
    pool = ConnectionPool(tls=ClientTls(files.client()))
    for number in range(50):
        body = b"%d" % number * 1000
        await pool.call(master.address, SendMessageV2("g", "T", "TBW102", 4, 0, 0, 0, 0, body=body))
    await pool.close()


async def refused(master: Broker, reason: str) -> None:
    await until(lambda: reason in master.replication.last_error)
    assert master.replication.slaves() == []


async def test_a_slave_follows_by_tls(tmp_path: Path, files: CertificateFiles) -> None:
    settings = {"allowed_names": "other;client"}
    async with (
        running_master(
            tmp_path / "m", tls=master_tls(files), tls_client=files.client(), settings=settings
        ) as master,
        running_slave(tmp_path / "s", master.address, tls_client=files.client(own=True)) as slave,
    ):
        await connected(master)
        await send(master, files)
        await in_step(master, slave)
        assert slave.store.appended_offset > 50_000


@pytest.mark.parametrize(
    ("settings", "own", "reason"),
    [
        ({}, False, "TLS handshake failed"),  # without a certificate
        ({"allowed_names": "broker-1;broker-2"}, True, "no accepted name in ['client']"),
    ],
)
async def test_a_slave_without_a_certificate_or_with_another_name_gets_nothing(
    tmp_path: Path, files: CertificateFiles, settings: dict[str, Any], own: bool, reason: str
) -> None:
    async with (
        running_master(
            tmp_path / "m", tls=master_tls(files), tls_client=files.client(), settings=settings
        ) as master,
        running_slave(tmp_path / "s", master.address, tls_client=files.client(own=own)) as slave,
    ):
        await refused(master, reason)
        assert slave.store.appended_offset == 0


async def test_a_plain_slave_needs_an_allowed_address_when_tls_is_enforced(
    tmp_path: Path, files: CertificateFiles
) -> None:
    plain = {"plain_text": True}
    client = files.client(own=True)
    async with (
        running_master(tmp_path / "m", tls=master_tls(files), tls_client=client) as master,
        running_slave(tmp_path / "s", master.address, tls_client=client, settings=plain),
    ):
        await refused(master, "plain text, but TLS is required")
    allowed = {"allowed_addresses": "10.0.0.0/8; 127.0.0.1"}
    async with (
        running_master(tmp_path / "m2", tls=master_tls(files), tls_client=client, settings=allowed) as master,
        running_slave(tmp_path / "s2", master.address, tls_client=client, settings=plain),
    ):
        await connected(master)


@pytest.mark.parametrize(("addresses", "is_allowed"), [("127.0.0.0/8", True), ("10.0.0.1", False)])
async def test_addresses_are_checked_without_tls_too(
    tmp_path: Path, addresses: str, is_allowed: bool
) -> None:
    async with (
        running_master(tmp_path / "m", settings={"allowed_addresses": addresses}) as master,
        running_slave(tmp_path / "s", master.address),
    ):
        if is_allowed:
            await connected(master)
        else:
            await refused(master, "not in haAllowedAddresses")


async def test_with_permissive_tls_plain_slaves_still_follow(tmp_path: Path, files: CertificateFiles) -> None:
    async with (
        running_master(tmp_path / "m", tls=master_tls(files, TlsMode.PERMISSIVE)) as master,
        running_slave(tmp_path / "s", master.address),
    ):
        await connected(master)


def test_an_invalid_list_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"allowed_addresses.*use addresses such as"):
        ReplicationSettings(allowed_addresses="10.0.0.0/33")


async def test_a_broker_with_users_does_not_give_its_log_to_everybody(tmp_path: Path) -> None:
    user = '{"username":"admin","password":"12345678"}'
    settings = broker_settings(
        tmp_path,
        host="0.0.0.0",  # noqa: S104 (what the test is about)
        advertised_host="127.0.0.1",
        auth=AuthSettings(enabled=True, first_user=user),
    )
    broker = Broker(settings)
    try:
        with pytest.raises(SettingsError, match="the replication port would give the whole log to everybody"):
            await broker.start()
    finally:
        await broker.stop()
