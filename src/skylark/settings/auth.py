"""Settings of authentication and authorization, under RocketMQ's keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from skylark.errors import SettingsError
from skylark.settings.credentials import Credentials, parse_credentials, parse_texts, secret_text
from skylark.settings.fields import check_ranges, setting

STATEFUL = "StatefulAuthenticationStrategy"
SECRET_CHARS_MIN = 8
_CLASSES = {
    "provider": ("DefaultAuthenticationProvider",),
    "authorization_provider": ("DefaultAuthorizationProvider",),
    "metadata_provider": ("LocalAuthenticationMetadataProvider",),
    "authorization_metadata_provider": ("LocalAuthorizationMetadataProvider",),
    "strategy": ("StatelessAuthenticationStrategy", STATEFUL),
    "authorization_strategy": ("StatelessAuthorizationStrategy", "StatefulAuthorizationStrategy"),
}
"""The classes of RocketMQ that stand for what is done here."""


_USER_CODES = frozenset(range(3001, 3011))


@dataclass(frozen=True, kw_only=True)
class AuthSettings:
    """Who may use a server. Users and ACLs are administered while it runs."""

    enabled: bool = setting(False, "authenticationEnabled")
    authorization: bool = setting(False, "authorizationEnabled")
    first_user: str = setting("", "initAuthenticationUser", secret=True)
    inner_credentials: str = setting("", "innerClientAuthenticationCredentials", secret=True)
    open_codes: str = setting("", "authenticationWhitelist")  # request codes, separated by commas
    unrestricted_codes: str = setting("", "authorizationWhitelist")
    cluster: str = setting("", "clusterName")  # of a name server, whose requests name no cluster

    provider: str = setting("", "authenticationProvider")
    authorization_provider: str = setting("", "authorizationProvider")
    metadata_provider: str = setting("", "authenticationMetadataProvider")
    authorization_metadata_provider: str = setting("", "authorizationMetadataProvider")
    strategy: str = setting("", "authenticationStrategy")
    authorization_strategy: str = setting("", "authorizationStrategy")
    signature_valid_s: int = setting(60, "statefulAuthenticationCacheExpiredSecond", 1)

    failures_max: int = setting(10, "authenticationFailuresMax", 0)  # of an address in 10 s; 0: no limit
    secret_chars_min: int = setting(SECRET_CHARS_MIN, "authSecretCharsMin", 1)  # RocketMQ: 1
    secrets_key_file: Path | None = setting(None, "authSecretsKeyFile")
    check_file_modes: bool = setting(True, "authCheckFileModes")  # RocketMQ: false
    audit_path: Path | None = setting(None, "authAuditLogPath")
    audit_bytes_max: int = setting(10 << 20, "authAuditLogBytesMax", 4096)
    audit_all: bool = setting(False, "authAuditAll")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.authorization and not self.enabled:
            raise SettingsError(
                "authorizationEnabled",
                "needs authenticationEnabled=true: without it, clients could claim any name",
            )
        for name, classes in _CLASSES.items():
            value = getattr(self, name)
            if value and value.rpartition(".")[2] not in classes:
                raise SettingsError(
                    name, f"unknown class {value!r}; use {' or '.join(classes)}, or leave it out"
                )
        _ = self.unrestricted_numbers
        if self.open_numbers & _USER_CODES:
            raise SettingsError(
                "authenticationWhitelist",
                "requests about users always need a signature; leave out 3001 to 3010",
            )
        if self.enabled:
            _ = self.inner, self.first

    @property
    def is_served(self) -> bool:
        """Whether users and ACLs can be administered, also before authentication is switched on."""
        return self.enabled or bool(self.metadata_provider)

    @property
    def is_stateful(self) -> bool:
        """Whether a connection's signature is checked once in `signature_valid_s`, not for each request."""
        return self.strategy.rpartition(".")[2] == STATEFUL

    @property
    def inner(self) -> Credentials | None:
        """What the server signs its own requests with. Raises SettingsError."""
        text = self.inner_credentials
        if not text:
            return None
        name = "innerClientAuthenticationCredentials"
        return parse_credentials(text, name, checks_mode=self.check_file_modes)

    @property
    def first(self) -> tuple[str, str] | None:
        """Name and secret of the super user that exists from the start. Raises SettingsError."""
        name = "initAuthenticationUser"
        if not self.first_user:
            return None
        text = secret_text(self.first_user, checks_mode=self.check_file_modes)
        values = parse_texts(text, name)
        username, password = values.get("username", ""), values.get("password", "")
        if not username or not password:
            raise SettingsError(name, 'username or password is missing; use {"username":"…","password":"…"}')
        return username, secret_text(password, checks_mode=self.check_file_modes)

    @property
    def open_numbers(self) -> frozenset[int]:
        """Request codes that need no signature."""
        return _numbers(self.open_codes, "authenticationWhitelist")

    @property
    def unrestricted_numbers(self) -> frozenset[int]:
        """Request codes that need no rights."""
        return _numbers(self.unrestricted_codes, "authorizationWhitelist")


def _numbers(text: str, name: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not word.isdecimal():
            raise SettingsError(name, f"invalid request code {word!r}; use numbers separated by commas")
    return frozenset(map(int, words))
