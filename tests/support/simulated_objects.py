"""An object store in memory that stops its client before or after any request: as if the process were killed,
or the reply lost."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from skylark.pipelines.lake.file_store import StoredFile


class Killed(BaseException):
    """The client has ended."""


@dataclass
class SimulatedObjects:
    """Objects by name; `stop_at` is the number of the request, counted from 1, at which the client ends."""

    objects: dict[str, bytes] = field(default_factory=dict)
    prefix: str = ""
    stop_at: int = 0
    is_done_first: bool = False
    """Whether the request at which the client ends has its effect."""
    requests: list[str] = field(default_factory=list)
    where: str = "/nowhere/table"

    def below(self, folder: str) -> SimulatedObjects:
        return SimulatedObjects(
            self.objects,
            f"{self.prefix}{folder}/",
            self.stop_at,
            self.is_done_first,
            self.requests,
            f"{self.where}/{folder}",
        )

    def create(self, name: str, data: bytes) -> bool:
        def put() -> bool:
            is_new = self.prefix + name not in self.objects
            self.objects.setdefault(self.prefix + name, data)
            return is_new

        return bool(self._request(f"create {name}", put))

    def replace(self, name: str, data: bytes) -> None:
        self._request(f"put {name}", lambda: self.objects.update({self.prefix + name: data}))

    def read(self, name: str) -> bytes:
        try:
            return self.objects[self.prefix + name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def exists(self, name: str) -> bool:
        return self.prefix + name in self.objects

    def output(self, name: str) -> Any:
        store = self

        class Output(io.BytesIO):
            def close(self) -> None:
                if not self.closed:
                    data = self.getvalue()
                    super().close()
                    store._request(f"put {name}", lambda: store.objects.update({store.prefix + name: data}))

        return pa.PythonFile(Output(), mode="w")

    def input(self, name: str) -> Any:
        return pa.BufferReader(self.read(name))

    def list(self, folder: str = "") -> Iterator[StoredFile]:
        start = self.prefix + (f"{folder}/" if folder else "")
        for name in sorted(self.objects):
            if name.startswith(start):
                yield StoredFile(name.removeprefix(self.prefix), 0.0)

    def move(self, name: str, target: str) -> None:
        def copy() -> None:
            if self.prefix + name in self.objects:
                self.objects[self.prefix + target] = self.objects[self.prefix + name]

        self._request(f"copy {name}", copy)
        self.delete(name)

    def delete(self, name: str) -> None:
        self._request(f"delete {name}", lambda: self.objects.pop(self.prefix + name, None))

    def _request(self, what: str, act: Any) -> Any:
        self.requests.append(what)
        if len(self.requests) != self.stop_at:
            return act()
        if self.is_done_first:
            act()
        raise Killed(what)
