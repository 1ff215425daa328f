"""The load client with signatures and TLS, on a broker that accepts nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from skylark.bench.load import BadLoad, Load, LoadFailed, LoadKind
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import LoadTarget
from skylark.bench.servers import ServerChoice, running_servers
from skylark.errors import NoPermission
from skylark.settings import ClientTlsSettings, TlsMode
from skylark.settings.auth import AuthSettings
from skylark.settings.credentials import Credentials
from skylark.testing import EmbeddedServers
from tests.support.certificates import CertificateFiles, foreign_authority, make_files
from tests.support.names import fresh_name

ROOT = Credentials("root", "a secret that is longer than the sixty-four bytes of a block of SHA-1")
AUTH = AuthSettings(
    enabled=True,
    authorization=True,
    first_user=f'{{"username":"root","password":"{ROOT.secret_key}"}}',
    failures_max=0,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return make_files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def servers(files: CertificateFiles) -> Iterator[EmbeddedServers]:
    with EmbeddedServers(settings={"auth": AUTH, "tls": files.server(mode=TlsMode.PERMISSIVE)}) as running:
        yield running


@pytest.mark.parametrize("with_tls", [False, True], ids=["signed", "signed and encrypted"])
def test_a_signed_load_is_stored_and_pulled(
    servers: EmbeddedServers, files: CertificateFiles, with_tls: bool
) -> None:
    client = LoadClient(ROOT, files.client() if with_tls else None)
    load = Load(
        address=servers.broker_address, topic=fresh_name("secure"), in_flight=16, warm_up_s=0.1, seconds=0.5,
        is_stamped=True, properties={"KEYS": "key-@NUMBER@"},
    )  # fmt: skip
    loads = {
        "sends": load,
        "sends that are signed ahead": replace(load, is_stamped=False),
        "batches": replace(load, batch=7),
        "pulls": replace(load, kind=LoadKind.PULL, batch=32),
    }
    with LoadTarget(servers.broker_address, client) as target:
        for name, each in loads.items():
            cell = target.measure(name, each)
            assert (cell.wrong, cell.operations > 0) == ([], True), name


def test_a_load_with_another_secret_is_refused(servers: EmbeddedServers) -> None:
    load = Load(address=servers.broker_address, messages_max=20, warm_up_s=0.0, seconds=5.0, in_flight=4)
    counted = LoadClient(Credentials("root", "another")).run(load)
    assert (counted.acknowledged, counted.refusal_code) == (0, 16)


def test_a_server_whose_certificate_is_not_accepted_gets_no_load(
    servers: EmbeddedServers, files: CertificateFiles, tmp_path: Path
) -> None:
    other = tmp_path / "ca.pem"
    other.write_bytes(foreign_authority().certificate)
    for tls in (ClientTlsSettings(enabled=True, trusted=other), files.client(server_name="elsewhere.test")):
        with pytest.raises(LoadFailed, match="its certificate is not accepted"):
            LoadClient(ROOT, tls).run(Load(address=servers.broker_address, seconds=0.2, warm_up_s=0.0))
    with pytest.raises(BadLoad, match="SKYLARK_TLS_TRUSTED"):
        LoadClient(ROOT, ClientTlsSettings(enabled=True))


def test_running_servers_are_measured_with_the_credentials_of_the_environment(
    servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = ServerChoice(namesrv=servers.namesrv)
    load = Load(address="", topic=fresh_name("environment"), queues=2)
    with running_servers(choice) as found, pytest.raises(NoPermission):
        found.with_topic(load)
    monkeypatch.setenv("SKYLARK_ACCESS_KEY", ROOT.access_key)
    monkeypatch.setenv("SKYLARK_SECRET_KEY", ROOT.secret_key)
    with running_servers(choice) as found:
        assert found.with_topic(load).queues == 2
