"""Certificates for a trial: a private CA, and pairs of certificate and key that it signs, as PEM.

Imports `cryptography`, which takes a while: import this module where it is needed.
"""

from __future__ import annotations

import ipaddress
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skylark.errors import SettingsError
from skylark.settings.properties import write_properties

CLOCK_TOLERANCE = timedelta(hours=1)
"""Certificates are valid from this long ago: clocks differ."""


@dataclass(frozen=True)
class CertificatePair:
    """A certificate and its private key, PKCS#8 without a password."""

    certificate: bytes
    key: bytes


def make_authority(name: str, *, days: int, now: datetime | None = None) -> CertificatePair:
    """Make a CA that signs certificates of servers and clients, but no further CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, key, days, now).issuer_name(_subject(name))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return _signed(builder, key, key)


def issue(
    authority: CertificatePair,
    name: str,
    addresses: Iterable[str] = (),
    *,
    days: int,
    is_server: bool,
    now: datetime | None = None,
) -> CertificatePair:
    """Make a certificate for a server or a client.

    A server is known by `addresses`: host names, IP addresses, `*.example.org`. It may be a client, too: a
    broker is one to its master and its name servers. Raises SettingsError for what can be no name.
    """
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signer_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, key, days, now).issuer_name(signer.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if is_server:
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = [_alternative(address) for address in addresses]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key())
    return _signed(builder.add_extension(identifier, critical=False), key, signer_key)


def expires_at(pem: bytes) -> datetime:
    """Return when the first of these certificates to expire does. Raises ValueError if there is none."""
    return min(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(pem))


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, days: int, now: datetime | None
) -> x509.CertificateBuilder:
    start = now or datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - CLOCK_TOLERANCE)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(identifier, critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        pass
    try:
        return x509.DNSName(address)
    except ValueError:
        raise SettingsError("names", f"{address!r} is no host name; write it in ASCII, as in DNS") from None


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer_key: ec.EllipticCurvePrivateKey,
) -> CertificatePair:
    certificate = builder.sign(signer_key, hashes.SHA256())
    return CertificatePair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


# --- A directory of certificates ---

AUTHORITY_DAYS = 3650
TRIAL_DAYS = 365
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class CertificateDirectory:
    """The files that `make_directory` writes."""

    path: Path

    @property
    def authority(self) -> Path:
        return self.path / "ca.pem"

    @property
    def authority_key(self) -> Path:
        return self.path / "ca.key"

    @property
    def properties(self) -> Path:
        """The other files under RocketMQ's keys, for `tls.config.file` of servers and Java clients."""
        return self.path / "tls.properties"

    def pair(self, kind: str) -> tuple[Path, Path]:
        """Certificate and key of `server` or `client`."""
        return self.path / f"{kind}.pem", self.path / f"{kind}.key"


def names_of_machine(more: Iterable[str]) -> list[str]:
    """Return the names that a certificate of this machine has: loopback, the host name, and these."""
    return [name for name in dict.fromkeys([*LOOPBACK, platform.node(), *more]) if name]


def make_directory(
    path: Path, names: Iterable[str], *, days: int, renew: bool = False
) -> CertificateDirectory:
    """Make a CA, certificates for servers with these names and for clients; only this user may read them.

    With `renew` the CA stays and the certificates are replaced. Raises SettingsError, OSError.
    """
    path = path.absolute()
    files = CertificateDirectory(path)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if files.authority_key.exists():
        if not renew:
            raise SettingsError(str(path), "it has a CA already; pass --renew, or choose another directory")
        authority = CertificatePair(files.authority.read_bytes(), files.authority_key.read_bytes())
    elif renew:
        raise SettingsError(str(path), "it has no CA to renew certificates with; leave out --renew")
    else:
        authority = make_authority("skylark CA", days=AUTHORITY_DAYS)
        write_private(files.authority_key, authority.key)
        write_private(files.authority, authority.certificate)
    made = {
        "server": issue(authority, "skylark server", names, days=days, is_server=True),
        "client": issue(authority, "skylark client", days=days, is_server=False),
    }
    lines = {"tls.test.mode.enable": "false", "tls.client.authServer": "true"}
    for kind, pair in made.items():
        certificate, key = files.pair(kind)
        write_private(key, pair.key)
        write_private(certificate, pair.certificate)
        lines |= {
            f"tls.{kind}.certPath": str(certificate),
            f"tls.{kind}.keyPath": str(key),
            f"tls.{kind}.trustCertPath": str(files.authority),
        }
    write_private(files.properties, write_properties(lines).encode())
    return files


def write_private(file: Path, data: bytes) -> None:
    """Replace a file at once, readable only by this user."""
    new = file.with_name(file.name + ".tmp")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
    new.replace(file)
