"""What a simulated disk holds: files as sectors with versions, directories; and what a power loss leaves."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TypeVar

from skylark.store.disk import Part

PAGE_BYTES = 4096
SECTOR_BYTES = 512
ZERO_SECTOR = bytes(SECTOR_BYTES)
END = 1 << 62

Value = TypeVar("Value")
# What a thing was after which operation, since it was last durable.
Versions = list[tuple[int, Value]]


@dataclass(eq=False)
class Inode:
    """A file's cached content, and what the medium holds of it."""

    modified_ms: int
    length: int = 0
    data: bytearray = field(default_factory=bytearray)
    allocated: set[int] = field(default_factory=set)
    durable_length: int = 0
    durable: dict[int, bytes] = field(default_factory=dict)
    lengths: Versions[int] = field(default_factory=list)
    sectors: dict[int, Versions[bytes]] = field(default_factory=dict)

    def put(self, number: int, data: Part, position: int) -> None:
        end = position + len(data)
        self.data[position:end] = data
        for sector in range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            start = sector * SECTOR_BYTES
            content = bytes(self.data[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")
            self.sectors.setdefault(sector, []).append((number, content))

    def resize(self, number: int, length: int) -> None:
        """Views taken before the file grew beyond its first size keep the old bytes."""
        if length < self.length:
            self.put(number, bytes(self.length - length), length)
        if length > len(self.data):
            self.data = self.data + bytes(length - len(self.data))
        self.length = length
        self.lengths.append((number, length))
        self.allocated = {page for page in self.allocated if page * PAGE_BYTES < length}

    def settle(self, number: int) -> None:
        """All changes up to this operation are on the medium."""
        self.durable_length = _as_of(self.lengths, number, self.durable_length)
        self.lengths = [version for version in self.lengths if version[0] > number]
        for sector, versions in list(self.sectors.items()):
            self.durable[sector] = _as_of(versions, number, self.durable.get(sector, ZERO_SECTOR))
            self._forget(sector, number)

    def lose(self, number: int) -> None:
        """Changes up to this operation will never be written, whatever is synced later."""
        for sector in list(self.sectors):
            self._forget(sector, number)

    def _forget(self, sector: int, number: int) -> None:
        self.sectors[sector] = [version for version in self.sectors[sector] if version[0] > number]
        if not self.sectors[sector]:
            del self.sectors[sector]

    def copy(self) -> Inode:
        sectors = {sector: list(versions) for sector, versions in self.sectors.items()}
        return Inode(
            self.modified_ms, self.length, bytearray(self.data), set(self.allocated),
            self.durable_length, dict(self.durable), list(self.lengths), sectors,
        )  # fmt: skip

    def after(self, loss: PowerLoss) -> Inode:
        """The file as a power loss leaves it: all of it durable."""
        length = _as_of(self.lengths, loss.last_kept(), self.durable_length)
        pages: dict[int, int | None] = {}
        durable = {}
        for sector in sorted(self.durable.keys() | self.sectors.keys()):
            if sector * SECTOR_BYTES >= length:
                break
            page = sector * SECTOR_BYTES // PAGE_BYTES
            if page not in pages:
                pages[page] = loss.last_kept_of_page()
            kept = pages[page]
            number = loss.last_kept() if kept is None else kept
            durable[sector] = _as_of(
                self.sectors.get(sector, []), number, self.durable.get(sector, ZERO_SECTOR)
            )
        data = bytearray(length)
        for sector, content in durable.items():
            start = sector * SECTOR_BYTES
            data[start : start + SECTOR_BYTES] = content[: length - start]
        allocated = {sector * SECTOR_BYTES // PAGE_BYTES for sector in durable}
        return Inode(self.modified_ms, length, data, allocated, length, durable)


@dataclass(eq=False)
class Directory:
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    changes: dict[str, Versions[Node | None]] = field(default_factory=dict)

    def set(self, number: int, name: str, node: Node | None) -> None:
        if node is None:
            self.entries.pop(name, None)
        else:
            self.entries[name] = node
        self.changes.setdefault(name, []).append((number, node))

    def settle(self) -> None:
        self.durable = dict(self.entries)
        self.changes = {}

    def copy(self) -> Directory:
        copies: dict[Node, Node] = {}

        def copied(node: Node) -> Node:
            if node not in copies:
                copies[node] = node.copy()
            return copies[node]

        return Directory(
            {name: copied(node) for name, node in self.entries.items()},
            {name: copied(node) for name, node in self.durable.items()},
            {
                name: [(number, node and copied(node)) for number, node in versions]
                for name, versions in self.changes.items()
            },
        )

    def after(self, loss: PowerLoss) -> Directory:
        left: dict[str, Node] = {}
        for name in sorted(self.durable.keys() | self.changes.keys()):
            node = _as_of(self.changes.get(name, []), loss.last_kept(), self.durable.get(name))
            if node is not None:
                left[name] = node.after(loss)
        return Directory(left, dict(left))


Node = Inode | Directory


def _as_of(versions: Versions[Value], number: int, older: Value) -> Value:
    for at, value in reversed(versions):
        if at <= number:
            return value
    return older


class PowerLoss:
    """Decides how far each unsynced thing (page, length, name) had got to the medium."""

    STYLES = ("nothing", "everything", "prefix", "scattered", "scattered", "torn")

    def __init__(self, rng: random.Random, operations: int) -> None:
        self._rng = rng
        self._operations = operations
        self._style = rng.choice(self.STYLES)
        self._prefix = rng.randint(0, operations)

    def last_kept(self) -> int:
        """The last operation whose change to one thing was written."""
        if self._style == "prefix":
            return self._prefix
        if self._style in ("nothing", "everything"):
            return 0 if self._style == "nothing" else END
        return self._rng.choice((0, END, self._rng.randint(0, self._operations)))

    def last_kept_of_page(self) -> int | None:
        """As above, or None for a torn page: ask for each of its sectors."""
        return None if self._style == "torn" else self.last_kept()
