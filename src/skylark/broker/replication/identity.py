"""The identity of a replica: its id at the controller, in RocketMQ's files, and the boot of its store.

brokerIdentity          cluster#name#id
brokerIdentity-temp     cluster#name#id#check_code, while the id is applied for
skylark-boot            the boot of the machine during which the store was last opened; Skylark's own
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from skylark.atomic_file import load_file, write_file
from skylark.errors import BadStoreFile

IDENTITY_FILE = "brokerIdentity"
APPLICATION_FILE = "brokerIdentity-temp"
BOOT_FILE = "skylark-boot"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SEPARATOR = "#"


class Application(NamedTuple):
    """An id that is applied for. The same check code gets it again."""

    broker_id: int
    check_code: str


class IdentityFiles:
    """Identity files of one store. Blocking; one thread at a time."""

    def __init__(self, directory: Path, cluster: str, name: str) -> None:
        self._directory = directory
        self._cluster = cluster
        self._name = name

    def load(self) -> int | None:
        """Return the id that was granted, or None. Raises BadStoreFile for another broker's, OSError."""
        parts = self._read(IDENTITY_FILE, 3)
        return None if parts is None else int(parts[2])

    def load_application(self) -> Application | None:
        """Return what was applied for before the broker ended, or None. Raises as `load`."""
        parts = self._read(APPLICATION_FILE, 4)
        return None if parts is None else Application(int(parts[2]), parts[3])

    def apply(self, application: Application) -> None:
        """Remember an application before it is made. Raises OSError."""
        self._write(APPLICATION_FILE, str(application.broker_id), application.check_code)

    def grant(self, broker_id: int) -> None:
        """Keep an id that was granted. Raises OSError."""
        self._write(IDENTITY_FILE, str(broker_id))
        self._delete(APPLICATION_FILE)

    def drop(self) -> None:
        """Forget the id: the log that belonged to it is lost. Raises OSError."""
        self._delete(IDENTITY_FILE)
        self._delete(APPLICATION_FILE)

    def is_same_boot(self) -> bool:
        """Whether the machine has not been restarted since the store was last opened; notes this boot.

        What a process has written survives its own end, and not that of the machine. Raises OSError.
        """
        path = self._directory / BOOT_FILE
        boot = BOOT_ID.read_bytes().strip() if BOOT_ID.exists() else b""
        known = path.read_bytes().strip() if path.exists() else b""
        if boot != known:
            write_file(path, boot + b"\n")
        return bool(boot) and boot == known

    def _read(self, file: str, count: int) -> list[str] | None:
        path = self._directory / file

        def parse(data: bytes) -> list[str]:
            parts = data.decode().strip().split(SEPARATOR)
            if len(parts) != count or not parts[2].isdecimal():
                raise ValueError(f"{data[:80]!r} is not cluster#name#id")
            return parts

        parts = load_file(path, parse)
        if parts is not None and parts[:2] != [self._cluster, self._name]:
            raise BadStoreFile(
                path,
                f"the store belongs to broker {parts[1]} of cluster {parts[0]}, not to {self._name} of "
                f"{self._cluster}: use another directory, or delete this file",
            )
        return parts

    def _write(self, file: str, *parts: str) -> None:
        write_file(self._directory / file, SEPARATOR.join((self._cluster, self._name, *parts)).encode())

    def _delete(self, file: str) -> None:
        for name in (file, file + ".bak"):
            (self._directory / name).unlink(missing_ok=True)
