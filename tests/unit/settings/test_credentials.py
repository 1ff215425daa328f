"""Credentials of clients: where they come from, and that nobody else sees them."""

from pathlib import Path

import pytest

from skylark.errors import SettingsError
from skylark.settings.client import ClientSettings
from skylark.settings.credentials import Credentials, client_credentials, parse_credentials

SECRET = "s3cret-value"


def private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        f'{{"accessKey": "alice", "secretKey": "{SECRET}"}}',
        f"accessKey=alice\nsecretKey={SECRET}\n",
        f'accessKey: alice\nsecretKey: "{SECRET}"\n',
    ],
)
def test_a_file_of_any_known_form_is_read(tmp_path: Path, text: str) -> None:
    settings = ClientSettings(credentials_file=private(tmp_path / "file", text))
    assert client_credentials(settings, {}) == Credentials("alice", SECRET)


def test_settings_win_over_the_environment(tmp_path: Path) -> None:
    other = private(tmp_path / "file", "accessKey=file\nsecretKey=fromfile")
    environment = {"SKYLARK_ACCESS_KEY": "env", "SKYLARK_SECRET_KEY": "fromenv"}
    given = ClientSettings(access_key="alice", secret_key=SECRET, credentials_file=other)
    assert client_credentials(given, environment) == Credentials("alice", SECRET)
    assert client_credentials(ClientSettings(), environment) == Credentials("env", "fromenv")
    in_file = {"SKYLARK_CREDENTIALS_FILE": str(other)}
    assert client_credentials(ClientSettings(), in_file) == Credentials("file", "fromfile")
    assert client_credentials(ClientSettings(), {}) is None


def test_a_secret_may_be_in_its_own_file(tmp_path: Path) -> None:
    file = private(tmp_path / "secret", SECRET + "\n")
    settings = ClientSettings(access_key="alice", secret_key=f"@{file}")
    assert client_credentials(settings, {}) == Credentials("alice", SECRET)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = private(tmp_path / "file", f"accessKey=alice\nsecretKey={SECRET}")
    file.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        client_credentials(ClientSettings(credentials_file=file), {})


def test_half_credentials_are_refused_without_showing_them() -> None:
    with pytest.raises(SettingsError, match="no secret key"):
        client_credentials(ClientSettings(access_key="alice"), {})
    with pytest.raises(SettingsError) as refused:
        client_credentials(ClientSettings(secret_key=SECRET), {})
    assert SECRET not in str(refused.value)
    with pytest.raises(SettingsError) as refused:
        parse_credentials(f'{{"secretKey": "{SECRET}"', "inner")
    assert SECRET not in str(refused.value)


def test_no_text_form_shows_a_secret() -> None:
    settings = ClientSettings(access_key="alice", secret_key=SECRET, security_token=SECRET)
    assert SECRET not in repr(settings)
    assert SECRET not in repr(client_credentials(settings, {}))
