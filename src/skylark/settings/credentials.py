"""Credentials of clients and servers: from settings, a file or the environment."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from skylark.errors import SettingsError
from skylark.settings.properties import read_properties

ACCESS_KEY_VARIABLE = "SKYLARK_ACCESS_KEY"
SECRET_KEY_VARIABLE = "SKYLARK_SECRET_KEY"  # noqa: S105 (the name of a variable)
SECURITY_TOKEN_VARIABLE = "SKYLARK_SECURITY_TOKEN"  # noqa: S105 (the name of a variable)
CREDENTIALS_FILE_VARIABLE = "SKYLARK_CREDENTIALS_FILE"

_FILE_MARK = "@"
"""A secret that starts with it names the file that holds the secret."""


@dataclass(frozen=True)
class Credentials:
    """What a client signs its requests with. The secrets are in no `repr`."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)


class CredentialSettings(Protocol):
    """Settings or options from which the credentials of a client are found."""

    @property
    def access_key(self) -> str | None: ...

    @property
    def secret_key(self) -> str | None: ...

    @property
    def security_token(self) -> str | None: ...

    @property
    def credentials_file(self) -> Path | str | None: ...


def client_credentials(
    settings: CredentialSettings, environment: Mapping[str, str] | None = None
) -> Credentials | None:
    """Return the credentials of a client, None if it has none.

    The settings win over the environment, and in each the keys win over the file. Raises SettingsError.
    """
    if settings.access_key or settings.secret_key:
        given = (settings.access_key, settings.secret_key, settings.security_token)
        return _complete(*(value or "" for value in given), name="access_key")
    if settings.credentials_file:
        return read_credentials(Path(settings.credentials_file))
    variables = os.environ if environment is None else environment
    names = (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE)
    access_key, secret_key, token = (variables.get(name, "") for name in names)
    if access_key or secret_key:
        return _complete(access_key, secret_key, token, name=ACCESS_KEY_VARIABLE)
    file = variables.get(CREDENTIALS_FILE_VARIABLE, "")
    return read_credentials(Path(file)) if file else None


def read_credentials(path: Path, *, checks_mode: bool = True) -> Credentials:
    """Read a file with the keys `accessKey`, `secretKey` and, if needed, `securityToken`.

    It is JSON or has one `key=value` or `key: value` a line, as mqadmin's `tools.yml`. Raises SettingsError
    if others may read it and that is checked.
    """
    text = read_private(path, checks_mode=checks_mode)
    if text.lstrip().startswith("{"):
        return parse_credentials(text, str(path), checks_mode=checks_mode)
    return _of_values({key: value.strip("\"'") for key, value, _ in read_properties(text)}, str(path))


def parse_credentials(text: str, name: str, *, checks_mode: bool = True) -> Credentials:
    """Parse `{"accessKey":"…","secretKey":"…"}`, or `@FILE` with such a text. Raises SettingsError."""
    if text.startswith(_FILE_MARK):
        return read_credentials(Path(text[1:]), checks_mode=checks_mode)
    return _of_values(parse_texts(text, name), name, checks_mode=checks_mode)


def parse_texts(text: str, name: str) -> dict[str, str]:
    """Parse a JSON object whose values are texts. Raises SettingsError, without the text: it has secrets."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise SettingsError(name, "not a JSON object of texts")
    return values


def secret_text(value: str, *, checks_mode: bool = True) -> str:
    """Return a secret, read from its file if it is given as `@FILE`. Raises SettingsError."""
    if not value.startswith(_FILE_MARK):
        return value
    return read_private(Path(value[1:]), checks_mode=checks_mode).strip()


def read_private(path: Path, *, checks_mode: bool = True) -> str:
    """Read a file with secrets. Raises SettingsError if it is unreadable, or readable by others."""
    try:
        if checks_mode:
            check_private(path)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise SettingsError(str(path), f"cannot read the file: {reason}") from error


def check_private(path: Path) -> None:
    """Raise SettingsError if other users may read or write the file, OSError if there is none.

    The group may read a file of root's: secrets of a service that runs as another user are given to it so.
    """
    if os.name == "nt":
        return
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    is_given = found.st_uid == 0 != os.geteuid()
    if mode & (0o037 if is_given else 0o077):
        raise SettingsError(
            str(path), f"holds secrets, but its mode is {mode:04o}: other users may read it; chmod 600 it"
        )


def _of_values(values: Mapping[str, str], name: str, *, checks_mode: bool = True) -> Credentials:
    keys = ("accessKey", "secretKey", "securityToken")
    return _complete(*(values.get(key, "") for key in keys), name=name, checks_mode=checks_mode)


def _complete(
    access_key: str, secret_key: str, token: str, *, name: str, checks_mode: bool = True
) -> Credentials:
    if not access_key:
        raise SettingsError(name, "the secret key has no access key; give both")
    if not secret_key:
        raise SettingsError(name, f"the access key {access_key!r} has no secret key; give both")
    return Credentials(access_key, secret_text(secret_key, checks_mode=checks_mode), token)
