"""Settings of the console: clusters, address, and who may do what."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skylark.errors import SettingsError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})
RESERVED = frozenset({"api", "login", "logout", "static"})
"""First words of addresses that are not clusters."""
PORT = 8088
BodyDecoder = Callable[[bytes], Any]
"""Takes a body; returns text, or a value that becomes JSON."""
_ALIAS = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings:
    """`clusters` maps an alias, which is part of every address, to name servers. Raises SettingsError."""

    clusters: Mapping[str, str]
    host: str = "127.0.0.1"
    port: int = PORT
    token: str = field(default="", repr=False)
    login: bool = False
    """People log in as users of the cluster; every request to it is signed as that user."""
    public_url: str = ""
    read_only: bool = False
    hide_bodies: bool = False
    pages: bool = True
    """False: only the HTTP API."""
    state: Path | None = None
    """The directory of the audit log; None: it is only in memory."""
    store: Path | None = None
    """A store directory whose topics SQL can query, whoever asks."""
    lake: Mapping[str, str] = field(default_factory=dict)
    """Tables for SQL, by name: `delta:DIR`, `parquet:DIR`, `iceberg:TABLE`. Every user can query them."""

    proxies: Mapping[str, str] = field(default_factory=dict)
    """Metrics pages of gRPC proxies, by name."""
    decoders: Sequence[tuple[str, BodyDecoder]] = ()
    """Functions that turn bodies into values, each with a pattern of whole topic names; the first counts."""

    def __post_init__(self) -> None:
        if not self.clusters:
            raise SettingsError("clusters", "no cluster given")
        for alias in self.clusters:
            if not _ALIAS.fullmatch(alias) or alias in RESERVED:
                raise SettingsError(
                    "clusters", f"invalid name {alias!r} of a cluster; use small letters, digits, - and _"
                )
        for name, place in self.lake.items():
            if place.partition(":")[0] not in ("delta", "parquet", "iceberg"):
                raise SettingsError(
                    "lake",
                    f"invalid table {name}={place}; use NAME=delta:DIR, parquet:DIR or iceberg:TABLE",
                )
        for name, url in self.proxies.items():
            if urlsplit(url).scheme not in ("http", "https"):
                raise SettingsError(
                    "proxy", f"invalid address {name}={url}; use NAME=http://HOST:PORT/metrics"
                )
        if not self.is_local and not (self.token or self.login):
            raise SettingsError(
                "host",
                f"the console would be open to everybody who reaches {self.host}; pass --token or --login,"
                " or bind it to 127.0.0.1",
            )

    def decoder_of(self, topic: str) -> BodyDecoder | None:
        return next((decode for names, decode in self.decoders if re.fullmatch(names, topic)), None)

    @property
    def is_local(self) -> bool:
        return self.host in LOOPBACK

    @property
    def hosts(self) -> frozenset[str] | None:
        """The host names that requests may name; None: any."""
        if not self.is_local:
            return None
        public = urlsplit(self.public_url).hostname
        return LOOPBACK | {public} if public else LOOPBACK

    @property
    def needs_login(self) -> bool:
        return bool(self.token) or self.login
