"""Registers keep the documents of groups, and say which controller leads.

`Register` is what a controller needs; `FileRegister` keeps everything in one local file, for one controller.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct, field

from skylark.atomic_file import load_file, write_file
from skylark.controller.group import FORMAT_VERSION, BrokerGroup
from skylark.errors import RocketMQError, SettingsError

log = logging.getLogger(__name__)

FILE_NAME = "groups.json"
LOCK_NAME = "lock"


class NotLeading(RocketMQError):
    """This controller does not lead, or no longer does; nothing was written."""


class StaleGroup(RocketMQError):
    """Another controller changed the document, which has been read again: decide again."""


class RegisterUnavailable(RocketMQError):
    """The register does not answer. A write may have happened nevertheless."""


class Leader(Struct, frozen=True):
    """The controller that decides."""

    id: str
    address: str


class Register(Protocol):
    """Documents of groups by name. Belongs to one controller and its loop."""

    @property
    def leader(self) -> Leader | None:
        """The controller that leads, if that is known."""

    @property
    def is_leading(self) -> bool:
        """Whether this one may decide. Correctness does not depend on it: `put` checks."""

    async def start(self, me: Leader, on_lead: Callable[[], None]) -> None:
        """Open the register and try to lead; `on_lead` is called whenever this controller begins to lead.

        Raises SettingsError, OSError, RocketMQError.
        """

    @property
    def groups(self) -> Mapping[str, BrokerGroup]:
        """All documents, as of the last write or read; exact while this controller leads."""

    async def put(self, name: str, group: BrokerGroup | None) -> None:
        """Replace the document in `groups`, or delete it with None. It is durable when this returns.

        Raises NotLeading, StaleGroup, RegisterUnavailable.
        """

    async def confirm(self) -> None:
        """Return if this controller leads at this moment. Raises NotLeading, RegisterUnavailable."""

    async def close(self) -> None:
        """Stop leading. Also after a failed start."""


class _Documents(Struct):
    version: int = field(default=FORMAT_VERSION, name="v")
    groups: dict[str, BrokerGroup] = field(default_factory=dict)


class FileRegister:
    """One file in a directory that only one process may use. Its controller always leads.

    While the process is down no master is elected; masters continue.
    """

    def __init__(self, directory: Path) -> None:
        self.leader: Leader | None = None
        self.is_leading = False
        self._directory = directory
        self._path = directory / FILE_NAME
        self._groups: dict[str, BrokerGroup] = {}
        self._writer = ThreadPoolExecutor(1, "controller-file")
        self._writing = asyncio.Lock()
        self._lock = -1

    @property
    def groups(self) -> Mapping[str, BrokerGroup]:
        return self._groups

    async def start(self, me: Leader, on_lead: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._groups = await loop.run_in_executor(self._writer, self._open)
        self.leader, self.is_leading = me, True
        on_lead()

    def _open(self) -> dict[str, BrokerGroup]:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SettingsError(
                "controllerStorePath",
                f"another controller uses {self._directory}; give each its own directory, or use etcd",
            ) from None
        documents = load_file(self._path, _decode)
        return {} if documents is None else documents.groups

    async def put(self, name: str, group: BrokerGroup | None) -> None:
        async with self._writing:
            changed = {**self._groups}
            if group is None:
                changed.pop(name, None)
            else:
                changed[name] = group
            write = partial(write_file, self._path, _encode(changed))
            try:
                await asyncio.get_running_loop().run_in_executor(self._writer, write)
            except OSError as error:
                raise RegisterUnavailable(f"cannot write {self._path}: {error.strerror or error}") from error
            self._groups = changed

    async def confirm(self) -> None:
        if not self.is_leading:
            raise NotLeading("the register is closed")

    async def close(self) -> None:
        self.is_leading = False
        self._writer.shutdown(wait=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _encode(groups: dict[str, BrokerGroup]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(_Documents(groups=groups)), indent=1)


def _decode(data: bytes) -> _Documents:
    documents = msgspec.json.decode(data, type=_Documents)
    if documents.version != FORMAT_VERSION:
        raise ValueError(f"format {documents.version} is unknown; use a newer Skylark")
    return documents
