"""Users and ACLs of a server, in memory, and their two files.

`authUsers.json` holds secrets, as the protocol's signatures need them: its mode is 0600, and with a key file
the secrets in it are encrypted.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import DecodeError, Struct, field, json

from skylark.auth.model import (
    Acl,
    AclEntry,
    Action,
    Pattern,
    Resource,
    ResourceKind,
    User,
    group,
    parse_actions,
    topic,
)
from skylark.errors import SettingsError
from skylark.protocol.bodies import AclInfo, Policy, PolicyEntry, UserInfo
from skylark.protocol.signature import SigningKey
from skylark.settings.credentials import check_private, read_private

USERS_FILE = "authUsers.json"
ACLS_FILE = "authAcls.json"
FORMAT_VERSION = 1
SUBJECT_PREFIX = "User:"
SUPER, NORMAL = "Super", "Normal"
ENABLED, DISABLED = "enable", "disable"
CUSTOM, DEFAULT = "Custom", "Default"
USERS_MAX = 100_000
KEY_BYTES = 32
NONCE_BYTES = 12


class _UserRow(Struct, omit_defaults=True):
    username: str
    password: str = ""
    sealed: str = ""
    userType: str = NORMAL
    userStatus: str = ENABLED


class _UsersFile(Struct):
    version: int
    users: list[_UserRow] = field(default_factory=list)


class _AclsFile(Struct):
    version: int
    acls: list[AclInfo] = field(default_factory=list)


class SecretBox:
    """Encrypts the secrets of users with AES-GCM, each with its own nonce and bound to its user."""

    def __init__(self, path: Path, *, checks_mode: bool = True) -> None:
        """Read the key, 32 bytes in Base64. Raises SettingsError."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 (takes a while)

        try:
            key = base64.b64decode(read_private(path, checks_mode=checks_mode).strip(), validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES:
            raise SettingsError(str(path), f"not a key; write {KEY_BYTES} random bytes in Base64 to it")
        self._cipher = AESGCM(key)

    def seal(self, username: str, secret: str) -> str:
        nonce = os.urandom(NONCE_BYTES)
        return base64.b64encode(
            nonce + self._cipher.encrypt(nonce, secret.encode(), username.encode())
        ).decode()

    def unseal(self, username: str, sealed: str) -> str:
        """Raises ValueError if the text was sealed with another key, or was changed."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        data = base64.b64decode(sealed)
        try:
            return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], username.encode()).decode()
        except InvalidTag:
            raise ValueError(f"the secret of {username} is sealed with another key") from None


class AuthStore:
    """The users and ACLs in force. Loop thread; `version` grows with every change."""

    def __init__(self, box: SecretBox | None = None) -> None:
        self.version = 0
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change, for the files to be written."""
        self._box = box
        self._users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}
        self._keys: dict[str, SigningKey] = {}

    # --- Reading ---

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def acl(self, username: str) -> Acl | None:
        return self._acls.get(username)

    def key(self, user: User) -> SigningKey:
        """Return the signing key of a user, kept until the user changes."""
        key = self._keys.get(user.name)
        if key is None:
            key = self._keys[user.name] = SigningKey(user.secret)
        return key

    def users(self) -> list[User]:
        return list(self._users.values())

    def acls(self) -> list[Acl]:
        return list(self._acls.values())

    # --- Changes ---

    def put_user(self, user: User) -> None:
        self._users[user.name] = user
        self._changed()

    def remove_user(self, name: str) -> None:
        """Remove a user with its ACL."""
        if self._users.pop(name, None) is not None:
            self._acls.pop(name, None)
            self._changed()

    def put_acl(self, acl: Acl) -> None:
        """Replace an ACL; one without entries is removed."""
        if acl.custom or acl.default:
            self._acls[acl.username] = acl
        else:
            self._acls.pop(acl.username, None)
        self._changed()

    def replace(self, users: Iterable[User], acls: Iterable[Acl]) -> bool:
        """Take over users and ACLs, as a slave does. Return whether anything changed."""
        new_users = {user.name: user for user in users}
        new_acls = {acl.username: acl for acl in acls}
        if (new_users, new_acls) == (self._users, self._acls):
            return False
        self._users, self._acls = new_users, new_acls
        self._changed()
        return True

    def differs(self, other: AuthStore) -> bool:
        return (self._users, self._acls) != (other._users, other._acls)

    def _changed(self) -> None:
        self.version += 1
        self._keys.clear()
        self.on_change()

    # --- Files ---

    def load_users(self, data: bytes) -> None:
        """Raises ValueError for a file of another kind, or secrets of another key."""
        try:
            rows = json.decode(data, type=_UsersFile).users
        except DecodeError as error:
            raise ValueError(str(error)) from None
        self._users = {row.username: self._user(row) for row in rows}

    def load_acls(self, data: bytes) -> None:
        """Raises ValueError for a file of another kind."""
        try:
            infos = json.decode(data, type=_AclsFile).acls
        except DecodeError as error:
            raise ValueError(str(error)) from None
        self._acls = {acl.username: acl for acl in map(acl_of, infos)}

    def _user(self, row: _UserRow) -> User:
        secret = row.password
        if row.sealed:
            if self._box is None:
                raise ValueError(f"the secret of {row.username} is encrypted; set authSecretsKeyFile")
            secret = self._box.unseal(row.username, row.sealed)
        return User(row.username, secret, row.userType == SUPER, row.userStatus == ENABLED)

    def users_snapshot(self) -> Callable[[], bytes]:
        """Return what encodes the users of this moment, in any thread."""
        users, box = self.users(), self._box
        return lambda: json.format(
            json.encode(_UsersFile(FORMAT_VERSION, [_row(user, box) for user in users]))
        )

    def acls_snapshot(self) -> Callable[[], bytes]:
        """Return what encodes the ACLs of this moment, in any thread."""
        acls = self.acls()
        return lambda: json.format(json.encode(_AclsFile(FORMAT_VERSION, [acl_info(acl) for acl in acls])))


def check_files(directory: Path) -> None:
    """Raise SettingsError if a file with secrets is readable by other users."""
    for name in (USERS_FILE, USERS_FILE + ".bak"):
        path = directory / name
        if path.exists():
            check_private(path)


def _row(user: User, box: SecretBox | None) -> _UserRow:
    kind, status = SUPER if user.is_super else NORMAL, ENABLED if user.is_enabled else DISABLED
    if box is None:
        return _UserRow(user.name, user.secret, "", kind, status)
    return _UserRow(user.name, "", box.seal(user.name, user.secret), kind, status)


# --- Wire forms ---


def user_info(user: User, *, with_secret: bool) -> UserInfo:
    return UserInfo(
        username=user.name,
        password=user.secret if with_secret else None,
        user_type=SUPER if user.is_super else NORMAL,
        user_status=ENABLED if user.is_enabled else DISABLED,
    )


def user_of(info: UserInfo) -> User:
    """Return the user that a complete body describes."""
    return User(
        info.username or "",
        info.password or "",
        (info.user_type or NORMAL).lower() == SUPER.lower(),
        (info.user_status or ENABLED).lower() == ENABLED,
    )


def acl_info(acl: Acl) -> AclInfo:
    policies = [
        Policy(policy_type=kind, entries=[_entry_info(entry) for entry in entries])
        for kind, entries in ((CUSTOM, acl.custom), (DEFAULT, acl.default))
        if entries
    ]
    return AclInfo(subject=SUBJECT_PREFIX + acl.username, policies=policies)


def _entry_info(entry: AclEntry) -> PolicyEntry:
    return PolicyEntry(
        resource=str(entry.resource),
        actions=sorted(action.value for action in entry.actions),
        source_ips=list(entry.sources) or None,
        decision=entry.decision,
    )


def acl_of(info: AclInfo) -> Acl:
    """Return the ACL that a complete and valid body describes. Raises ValueError."""
    entries: dict[str, list[AclEntry]] = {CUSTOM: [], DEFAULT: []}
    for policy in info.policies:
        kind = DEFAULT if (policy.policy_type or CUSTOM).lower() == DEFAULT.lower() else CUSTOM
        entries[kind] += [_entry(each) for each in policy.entries]
    return Acl(username_of(info.subject), tuple(entries[CUSTOM]), tuple(entries[DEFAULT]))


def _entry(info: PolicyEntry) -> AclEntry:
    resource = Resource.parse(info.resource or "")
    if resource is None:
        raise ValueError(f"invalid resource {info.resource!r}")
    return AclEntry(
        resource,
        parse_actions(info.actions),
        (info.decision or "").lower() == "allow",
        tuple(info.source_ips or ()),
    )


def username_of(subject: Any) -> str:
    """Return the name in a subject, `User:name`; empty for any other text."""
    kind, _, name = str(subject or "").partition(":")
    return name if kind.lower() == "user" else ""


# --- Accounts of RocketMQ 4 ---

_PERMISSIONS = {
    "PUB": frozenset({Action.PUB}),
    "SUB": frozenset({Action.SUB}),
    "PUB|SUB": frozenset({Action.PUB, Action.SUB}),
    "SUB|PUB": frozenset({Action.PUB, Action.SUB}),
}


def convert_accounts(document: Any) -> tuple[list[User], list[Acl], list[str]]:
    """Return users, ACLs, and warnings about what has no counterpart. Raises ValueError.

    A permission that is neither PUB nor SUB becomes a Deny. RocketMQ turns an unknown one into Allow.
    """
    if not isinstance(document, dict) or not isinstance(document.get("accounts", []), list):
        raise ValueError("not a plain_acl.yml: there is no list of accounts")  # noqa: TRY004 (of a document)
    users, acls, warnings = list[User](), list[Acl](), list[str]()
    if document.get("globalWhiteRemoteAddresses"):
        warnings.append("globalWhiteRemoteAddresses is not imported: every client needs a user")
    for number, account in enumerate(document.get("accounts", []), 1):
        name, secret = (str(account.get(key) or "") for key in ("accessKey", "secretKey"))
        if not name or not secret:
            raise ValueError(f"account {number} has no accessKey or no secretKey")
        if account.get("whiteRemoteAddress"):
            warnings.append(f"whiteRemoteAddress of {name} is not imported: requests must be signed")
        is_admin = str(account.get("admin", "")).lower() == "true"
        users.append(User(name, secret, is_super=is_admin))
        custom = (*_permissions(account, "topicPerms", name), *_permissions(account, "groupPerms", name))
        default = tuple(_defaults(account))
        if custom or default:
            acls.append(Acl(name, custom, default))
    return users, acls, warnings


def _permissions(account: dict[str, Any], key: str, name: str) -> Iterator[AclEntry]:
    for text in account.get(key) or ():
        resource, equals, permission = str(text).partition("=")
        if not equals:
            raise ValueError(f"{key} of {name}: {text!r} is not NAME=PERMISSION")
        make = topic if key == "topicPerms" else group
        yield _permitted(make(resource.strip()), permission)


def _defaults(account: dict[str, Any]) -> Iterator[AclEntry]:
    for key, kind in (("defaultTopicPerm", ResourceKind.TOPIC), ("defaultGroupPerm", ResourceKind.GROUP)):
        if account.get(key):
            yield _permitted(Resource(kind, pattern=Pattern.ANY), str(account[key]))


def _permitted(resource: Resource, permission: str) -> AclEntry:
    actions = _PERMISSIONS.get(permission.strip().upper().replace(" ", ""))
    if actions is None:
        return AclEntry(resource, frozenset({Action.ALL}), False)
    return AclEntry(resource, actions, True)
