"""Certificates for tests: one CA, a pair for servers and one for clients, and a CA that nobody trusts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from skylark.certificates import CertificatePair, issue, make_authority
from skylark.settings import ClientTlsSettings, ServerTlsSettings

NAMES = ("localhost", "127.0.0.1", "broker.test")
DAYS = 30


@cache
def authority() -> CertificatePair:
    return make_authority("test CA", days=DAYS)


@cache
def foreign_authority() -> CertificatePair:
    return make_authority("another CA", days=DAYS)


@dataclass(frozen=True)
class CertificateFiles:
    """Files of one test; they may be replaced."""

    directory: Path

    @property
    def authority(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.directory / "server.pem"

    @property
    def key(self) -> Path:
        return self.directory / "server.key"

    @property
    def client_certificate(self) -> Path:
        return self.directory / "client.pem"

    @property
    def client_key(self) -> Path:
        return self.directory / "client.key"

    def server(self, **more: object) -> ServerTlsSettings:
        return ServerTlsSettings(certificate=self.certificate, key=self.key, **more)  # type: ignore[arg-type]

    def client(self, *, own: bool = False, **more: object) -> ClientTlsSettings:
        """With a certificate of its own if asked."""
        pair = {"certificate": self.client_certificate, "key": self.client_key} if own else {}
        return ClientTlsSettings(enabled=True, trusted=self.authority, **pair, **more)  # type: ignore[arg-type]

    def client_context(self, *, own: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        if own:
            context.load_cert_chain(self.client_certificate, self.client_key)
        return context

    def renew(self, name: str = "renewed") -> None:
        """Replace the server's certificate and key."""
        pair = issue(authority(), name, NAMES, days=DAYS, is_server=True)
        self.certificate.write_bytes(pair.certificate)
        self.key.touch(mode=0o600)
        self.key.write_bytes(pair.key)


def make_files(directory: Path) -> CertificateFiles:
    files = CertificateFiles(directory)
    files.directory.mkdir(exist_ok=True)
    files.authority.write_bytes(authority().certificate)
    files.renew("server")
    client = issue(authority(), "client", days=DAYS, is_server=False)
    files.client_certificate.write_bytes(client.certificate)
    files.client_key.touch(mode=0o600)
    files.client_key.write_bytes(client.key)
    return files
