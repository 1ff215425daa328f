"""TLS of servers and of clients, under RocketMQ's property names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from skylark.errors import SettingsError
from skylark.settings.fields import check_ranges, setting
from skylark.settings.loader import given_in, known_settings, load_settings, replaced


class TlsMode(Enum):
    """Which connections a server accepts on its ports. The first byte tells TLS from plain text."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientCertificate(Enum):
    """Whether a server asks its clients for a certificate. One that is sent must be of a trusted CA."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, kw_only=True)
class ServerTlsSettings:
    """TLS on the ports of a server. Without a certificate it is disabled.

    RocketMQ accepts any client certificate unless `tls.server.authClient` is true. Here that is its default.
    """

    mode: TlsMode | None = setting(None, "tls.server.mode")  # None: permissive with a certificate
    certificate: Path | None = setting(None, "tls.server.certPath")
    key: Path | None = setting(None, "tls.server.keyPath")
    key_password: str = setting("", "tls.server.keyPassword", secret=True)
    check_key_mode: bool = setting(True, "tls.server.checkKeyMode")  # RocketMQ: false
    client_certificate: ClientCertificate = setting(ClientCertificate.NONE, "tls.server.need.client.auth")
    check_client: bool = setting(True, "tls.server.authClient")
    trusted: Path | None = setting(None, "tls.server.trustCertPath")
    test_mode: bool = setting(False, "tls.test.mode.enable")  # a self-signed certificate for this run
    config_file: Path | None = setting(None, "tls.config.file")  # overrides all of these but the mode
    handshake_timeout_ms: int = setting(10_000, "tlsHandshakeTimeout", 1)
    handshakes_max: int = setting(2_000, "tlsHandshakesMax", 1)  # unfinished ones on a server's ports
    handshakes_per_s: int = setting(200, "tlsHandshakesPerSecondMax", 0)  # of an address; 0: no limit

    def __post_init__(self) -> None:
        check_ranges(self)
        if (self.certificate is None) != (self.key is None):
            given, missing = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise SettingsError(f"tls.{missing}", f"missing; tls.{given} needs it")
        if self.config_file is None:
            self._check()

    def _check(self) -> None:
        if self.mode in (TlsMode.PERMISSIVE, TlsMode.ENFORCING) and not self.has_certificate:
            raise SettingsError(
                "tls.certificate",
                f"missing; tls.mode {self.mode.value} needs tls.certificate and tls.key (`skylark tls init`)",
            )
        if self.client_certificate is not ClientCertificate.NONE:
            if self.trusted is None:
                raise SettingsError(
                    "tls.trusted", "missing; set the file of the CAs whose client certificates are accepted"
                )
            if not self.check_client:
                raise SettingsError(
                    "tls.check_client",
                    "client certificates are always checked; set true, or tls.client_certificate to none",
                )

    @property
    def has_certificate(self) -> bool:
        return self.certificate is not None or self.test_mode

    @property
    def effective_mode(self) -> TlsMode:
        if self.mode is not None:
            return self.mode
        return TlsMode.PERMISSIVE if self.has_certificate else TlsMode.DISABLED


@dataclass(frozen=True, kw_only=True)
class ClientTlsSettings:
    """TLS of outgoing connections: which servers are trusted, and the client's own certificate."""

    enabled: bool | None = setting(None, "tls.enable")  # None: a server does what it expects of its clients
    trusted: Path | None = setting(None, "tls.client.trustCertPath")  # None: the CAs of the system
    check_server: bool = setting(True, "tls.client.authServer")
    server_name: str = setting("", "tls.client.serverName")  # expected in certificates; empty: the address
    certificate: Path | None = setting(None, "tls.client.certPath")
    key: Path | None = setting(None, "tls.client.keyPath")
    key_password: str = setting("", "tls.client.keyPassword", secret=True)
    check_key_mode: bool = setting(True, "tls.client.checkKeyMode")  # RocketMQ: false

    def __post_init__(self) -> None:
        check_ranges(self)
        if (self.certificate is None) != (self.key is None):
            given, missing = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise SettingsError(f"tls.{missing}", f"missing; tls.{given} needs it")


T = TypeVar("T", ServerTlsSettings, ClientTlsSettings)
_NOT_IN_FILE = ("tls.server.mode", "tls.enable", "tls.config.file")


def with_config_file(settings: T, file: Path | None) -> T:
    """Return the settings changed by a file such as RocketMQ's `tls.properties`. Raises SettingsError.

    Keys of the other side are ignored: one file serves servers and clients.
    """
    if file is None:
        return settings
    known = known_settings(type(settings))
    given = {key: value for key, value in given_in(file).items() if key in known and key not in _NOT_IN_FILE}
    return replaced(settings, {known[key]: known[key].parse(key, value) for key, value in given.items()})


# --- Clients ---

CLIENT_VARIABLES = "SKYLARK_TLS_"
"""Prefix of environment variables: SKYLARK_TLS_ENABLED, SKYLARK_TLS_TRUSTED."""


class TlsOptions(Protocol):
    """Settings of a client with TLS. The others are `tls_` with a name of ClientTlsSettings."""

    @property
    def tls(self) -> bool | None:
        """None: as the environment says, else no."""


def client_tls_settings(
    options: TlsOptions, environment: Mapping[str, str] | None = None
) -> ClientTlsSettings | None:
    """Return the TLS settings of a client, None for plain text: its own, else those of the environment.

    Raises SettingsError.
    """
    given: dict[str, Any] = {"enabled": options.tls}
    given |= {each.name: getattr(options, f"tls_{each.name}", None) for each in fields(ClientTlsSettings)[1:]}
    loaded = load_settings(
        ClientTlsSettings,
        environment=os.environ if environment is None else environment,
        prefix=CLIENT_VARIABLES,
        flags={name: value for name, value in given.items() if value not in (None, "")},
    )
    return loaded.settings if loaded.settings.enabled else None
