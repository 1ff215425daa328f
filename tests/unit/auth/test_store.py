"""Users and ACLs on disk: complete, private, encrypted if wanted."""

import base64
import os
from pathlib import Path

import pytest

from skylark.atomic_file import write_file
from skylark.auth.access_control import AccessControl
from skylark.auth.model import Acl, AclEntry, Action, User, topic
from skylark.auth.store import ACLS_FILE, USERS_FILE, AuthStore, SecretBox
from skylark.clock import SystemClock
from skylark.errors import BadStoreFile, SettingsError
from skylark.settings.auth import AuthSettings

SECRET = "a-very-secret-word"
ADMIN = '{"username":"admin","password":"adminsecret"}'


def filled(box: SecretBox | None = None) -> AuthStore:
    store = AuthStore(box)
    store.put_user(User("alice", SECRET))
    store.put_user(User("root", "root-secret", is_super=True, is_enabled=False))
    entry = AclEntry(topic("orders"), frozenset({Action.PUB, Action.GET}), False, ("10.0.0.0/8",))
    store.put_acl(Acl("alice", (entry,), (AclEntry(topic("t"), frozenset({Action.ALL}), True),)))
    return store


def key_file(directory: Path, name: str = "key") -> Path:
    path = directory / name
    path.touch(mode=0o600)
    path.write_bytes(base64.b64encode(os.urandom(32)) + b"\n")
    return path


def control(directory: Path, **settings: object) -> AccessControl:
    made = AuthSettings(enabled=True, **settings)  # type: ignore[arg-type]
    return AccessControl(made, directory, SystemClock(), cluster="C")


def test_what_is_written_is_read_again() -> None:
    store, again = filled(), AuthStore()
    again.load_users(store.users_snapshot()())
    again.load_acls(store.acls_snapshot()())
    assert not store.differs(again)
    assert again.users()[0].secret == SECRET


def test_secrets_are_encrypted_with_a_key_file(tmp_path: Path) -> None:
    box = SecretBox(key_file(tmp_path))
    data = filled(box).users_snapshot()()
    assert SECRET.encode() not in data
    assert b"root-secret" not in data
    again = AuthStore(box)
    again.load_users(data)
    assert [user.secret for user in again.users()] == [SECRET, "root-secret"]
    with pytest.raises(ValueError, match="another key"):
        AuthStore(SecretBox(key_file(tmp_path, "other"))).load_users(data)
    with pytest.raises(ValueError, match="authSecretsKeyFile"):
        AuthStore().load_users(data)
    swapped = data.replace(b"alice", b"malic")
    with pytest.raises(ValueError, match="another key"):
        AuthStore(box).load_users(swapped)


def test_a_key_file_must_hold_a_key_that_nobody_else_reads(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    path.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        SecretBox(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(SettingsError, match="32 random bytes"):
        SecretBox(path)


@pytest.mark.parametrize("name", [USERS_FILE, USERS_FILE + ".bak"])
def test_a_users_file_that_others_may_read_stops_the_start(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_file(path, filled().users_snapshot()(), is_private=True)
    control(tmp_path, first_user=ADMIN).load()
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        control(tmp_path, first_user=ADMIN).load()


@pytest.mark.parametrize("name", [USERS_FILE, ACLS_FILE])
def test_a_damaged_file_stops_the_start(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / name, b"{}", is_private=True)
    with pytest.raises(BadStoreFile):
        control(tmp_path, first_user=ADMIN).load()


def test_the_first_user_is_created_once_and_never_changed(tmp_path: Path) -> None:
    first = control(tmp_path, first_user=ADMIN, inner_credentials='{"accessKey":"in","secretKey":"innersec"}')
    assert first.load()
    users = {user.name: user for user in first.store.users()}
    assert {name: (user.secret, user.is_super) for name, user in users.items()} == {
        "admin": ("adminsecret", True),
        "in": ("innersec", True),
    }
    write_file(first.users_path, first.store.users_snapshot()(), is_private=True)
    again = control(tmp_path, first_user=ADMIN.replace("adminsecret", "anothersecret"))
    assert not again.load()
    admin = again.store.user("admin")
    assert admin is not None
    assert admin.secret == "adminsecret"


def test_a_server_without_a_super_user_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no login is possible"):
        control(tmp_path).load()


def test_files_keep_their_mode_and_private_ones_are_for_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_file(path, b"new")
    assert [path.stat().st_mode & 0o777, path.with_name("file.bak").stat().st_mode & 0o777] == [0o640] * 2
    private = tmp_path / "private"
    private.with_name("private.tmp").touch(mode=0o644)
    for content in (b"1", b"2"):
        write_file(private, content, is_private=True)
        assert {each.stat().st_mode & 0o777 for each in tmp_path.glob("private*")} == {0o600}


def test_no_text_form_shows_a_secret() -> None:
    store = filled()
    settings = AuthSettings(first_user=ADMIN, inner_credentials='{"accessKey":"in","secretKey":"innersec"}')
    shown = repr(store.users()) + repr(store.acls()) + repr(settings)
    assert SECRET not in shown
    assert "adminsecret" not in shown
    assert "innersec" not in shown


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"authorization": True}, "needs authenticationEnabled"),
        ({"provider": "com.example.Mine"}, "unknown class"),
        ({"strategy": "com.example.Mine"}, "unknown class"),
        ({"open_codes": "310,x"}, "invalid request code 'x'"),
        ({"open_codes": "3005"}, "always need a signature"),
        ({"enabled": True, "first_user": '{"username":"a"}'}, "password is missing"),
        ({"enabled": True, "inner_credentials": "nonsense"}, "not a JSON object"),
    ],
)
def test_settings_that_would_not_do_what_they_say_are_refused(
    settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        AuthSettings(**settings)  # type: ignore[arg-type]
