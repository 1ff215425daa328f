"""`skylark tls init`: the files, who may read them, and the servers and clients that use them."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from skylark import health
from skylark.certificates import expires_at, issue, make_authority, make_directory
from skylark.cli.tls import app
from skylark.errors import SettingsError
from skylark.health import HealthState
from skylark.remoting.tls import ServerTls
from skylark.remoting.tls_client import ClientTls
from skylark.settings import ClientTlsSettings, ServerTlsSettings
from skylark.settings.properties import read_properties
from skylark.settings.tls import with_config_file

FILES = {"ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key", "tls.properties"}


def names_of(certificate: Path) -> set[str]:
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def test_a_directory_for_servers_and_clients_that_nobody_else_reads(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "certificates"
    done = CliRunner().invoke(app, [str(directory), "--name", "10.0.0.5", "--name", "mq.example.org"])
    assert done.exit_code == 0, done.output
    assert {file.name for file in directory.iterdir()} == FILES
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}
    assert {"localhost", "127.0.0.1", "10.0.0.5", "mq.example.org"} <= names_of(directory / "server.pem")
    assert f"tls.config.file={directory}/tls.properties" in done.output
    assert "BEGIN" not in done.output


def test_the_properties_are_enough_for_a_server_and_for_a_client(tmp_path: Path) -> None:
    files = make_directory(tmp_path / "c", ["127.0.0.1"], days=10)
    server = ServerTls(ServerTlsSettings(config_file=files.properties))
    assert server.settings.certificate == files.pair("server")[0]
    client = with_config_file(ClientTlsSettings(enabled=True), files.properties)
    assert (client.trusted, client.check_server) == (files.authority, True)
    ClientTls(client)  # loads certificate and key
    keys = {item.key for item in read_properties(files.properties.read_text())}
    assert "tls.client.authServer" in keys  # what Java needs to check the server


def test_renewal_keeps_the_authority(tmp_path: Path) -> None:
    files = make_directory(tmp_path, ["a.test"], days=10)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    with pytest.raises(SettingsError, match="it has a CA already"):
        make_directory(tmp_path, ["a.test"], days=10)
    make_directory(tmp_path, ["a.test"], days=20, renew=True)
    after = {name: (tmp_path / name).read_bytes() for name in FILES}
    changed = {name for name in FILES if before[name] != after[name]}
    assert changed == {"server.pem", "server.key", "client.pem", "client.key"}
    assert expires_at(files.pair("server")[0].read_bytes()) > datetime.now(UTC) + timedelta(days=19)
    with pytest.raises(SettingsError, match="it has no CA"):
        make_directory(tmp_path / "other", ["a.test"], days=10, renew=True)


def test_what_can_be_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is no host name"):
        make_directory(tmp_path, ["bücher.test"], days=10)


@pytest.mark.parametrize(
    ("days", "state", "found"),
    [
        (100, HealthState.OK, "valid until"),
        (29, HealthState.NOTE, "valid until"),
        (-1, HealthState.FAULT, "expired"),
    ],
)
def test_the_doctor_tells_when_a_certificate_expires(days: int, state: HealthState, found: str) -> None:
    now = datetime.now(UTC)
    start = now - timedelta(days=10)
    authority = make_authority("CA", days=500, now=start)
    pair = issue(authority, "server", ["a.test"], days=days + 10, is_server=True, now=start)
    check = health._certificate("certificate", lambda: pair.certificate, now)
    assert (check.state, check.found.startswith(found)) == (state, True)
    assert bool(check.advice) == (state is not HealthState.OK)
    both = health._certificate("chain", lambda: authority.certificate + pair.certificate, now)
    assert both.state is state  # the first to expire counts


def test_the_doctor_reports_what_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYLARK_TLS_ENABLED", "true")
    monkeypatch.setenv("SKYLARK_TLS_TRUSTED", str(tmp_path / "missing"))
    found = list(health.certificates("127.0.0.1:1", [], datetime.now(UTC)))
    assert [(check.name, check.state) for check in found] == [
        (f"certificate {tmp_path}/missing", HealthState.FAULT),
        ("certificate of 127.0.0.1:1", HealthState.FAULT),
    ]
    monkeypatch.setenv("SKYLARK_TLS_ENABLED", "false")
    assert list(health.certificates("127.0.0.1:1", [], datetime.now(UTC))) == []
