"""The access control of one server: its users, gate and audit log, built from its settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from skylark.atomic_file import load_file, write_file
from skylark.auth.administration import UserAdministration
from skylark.auth.audit import AuditLog
from skylark.auth.gate import Gate
from skylark.auth.model import User
from skylark.auth.store import ACLS_FILE, USERS_FILE, AuthStore, SecretBox, check_files
from skylark.clock import Clock
from skylark.errors import SettingsError
from skylark.protocol.signature import Signer
from skylark.settings.auth import AuthSettings

AUDIT_FILE = "authAudit.log"


class AccessControl:
    """The parts of access control. `gate` is None while authentication is off."""

    def __init__(
        self,
        settings: AuthSettings,
        directory: Path,
        clock: Clock,
        *,
        cluster: str,
        open_codes: frozenset[int] = frozenset(),
    ) -> None:
        """The files are in `directory`. Raises SettingsError."""
        self.settings = settings
        self.users_path = directory / USERS_FILE
        self.acls_path = directory / ACLS_FILE
        key_file, checks_mode = settings.secrets_key_file, settings.check_file_modes
        self.store = AuthStore(None if key_file is None else SecretBox(key_file, checks_mode=checks_mode))
        self.administration = UserAdministration(self.store, settings)
        self.audit = AuditLog(
            settings.audit_path or directory / AUDIT_FILE, bytes_max=settings.audit_bytes_max
        )
        self.gate: Gate | None = None
        if settings.enabled:
            self.gate = Gate(settings, self.store, clock, self.audit, cluster=cluster, open_codes=open_codes)
        inner = settings.inner
        self.signer = None if inner is None else Signer(inner)
        """Signs the requests of the server itself."""

    def load(self) -> bool:
        """Read the files and add the users of the settings; return whether users were added.

        May wait for the disk. Raises SettingsError, BadStoreFile.
        """
        if not self.settings.is_served:
            return False
        self.users_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.settings.check_file_modes:
            check_files(self.users_path.parent)
        store = self.store
        load_file(self.users_path, store.load_users)
        load_file(self.acls_path, store.load_acls)
        added = [user for user in self._configured_users() if store.user(user.name) is None]
        for user in added:
            store.put_user(user)
        if self.settings.enabled and not any(user.is_super for user in store.users()):
            raise SettingsError(
                "initAuthenticationUser",
                'there is no super user, so no login is possible; set {"username":"…","password":"…"}',
            )
        return bool(added)

    def _configured_users(self) -> list[User]:
        first, inner = self.settings.first, self.settings.inner
        given = [] if first is None else [first]
        if inner is not None:
            given.append((inner.access_key, inner.secret_key))
        return [User(name, secret, is_super=True) for name, secret in given]

    def writer(self) -> Callable[[], None]:
        """Return what writes the users and ACLs of this moment, in any thread. It raises OSError."""
        users, acls = self.store.users_snapshot(), self.store.acls_snapshot()

        def write() -> None:
            write_file(self.users_path, users(), is_private=True)
            write_file(self.acls_path, acls(), is_private=True)

        return write

    def close(self) -> None:
        """Write the rest of the audit log."""
        self.audit.close()
