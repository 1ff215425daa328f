"""Files of a table in Hadoop's file system, by a client that needs no JVM.

Cluster names, Kerberos and the like come from the usual files in `HADOOP_CONF_DIR`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from hdfs_native import Client, WriteOptions

from skylark.pipelines.lake.file_store import StoredFile


class HdfsFiles:
    """A directory. Any number of writers: a rename fails if its target exists."""

    def __init__(self, uri: str) -> None:
        self.where = uri
        parts = urlsplit(uri)
        self._root = parts.path
        self._client = Client(f"hdfs://{parts.netloc}")

    def below(self, folder: str) -> HdfsFiles:
        return HdfsFiles(f"{self.where}/{folder}")

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._publish(name, data, overwrite=False)
        except FileExistsError:
            return False
        except OSError:
            # The rename may have succeeded although its reply was lost.
            with contextlib.suppress(FileNotFoundError):
                if self.read(name) == data:
                    return True
            raise
        return True

    def replace(self, name: str, data: bytes) -> None:
        self._publish(name, data, overwrite=True)

    def _publish(self, name: str, data: bytes, *, overwrite: bool) -> None:
        written = self._path(f"{name}.{uuid4().hex}.tmp")
        with self._failures(name):
            try:
                with self._client.create(written, WriteOptions()) as file:
                    file.write(data)
                    file.hsync()
                self._client.rename(written, self._path(name), overwrite)
            except OSError:
                with contextlib.suppress(OSError):
                    self._client.delete(written)
                raise

    def read(self, name: str) -> bytes:
        with self._failures(name), self._client.read(self._path(name)) as file:
            return bytes(file.readall())

    def exists(self, name: str) -> bool:
        try:
            with self._failures(name):
                self._client.get_file_info(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def output(self, name: str) -> Any:
        with self._failures(name):
            return pa.PythonFile(
                self._client.create(self._path(name), WriteOptions(overwrite=True)), mode="w"
            )

    def input(self, name: str) -> Any:
        with self._failures(name):
            return pa.PythonFile(self._client.read(self._path(name)), mode="r")

    def list(self, folder: str = "") -> Iterator[StoredFile]:
        with contextlib.suppress(FileNotFoundError), self._failures(folder):
            for each in self._client.list_status(self._path(folder), recursive=True):
                if not each.isdir:
                    yield StoredFile(each.path[len(self._root) + 1 :], each.modification_time / 1000)

    def move(self, name: str, target: str) -> None:
        path = self._path(target)
        with contextlib.suppress(FileNotFoundError), self._failures(name):
            self._client.mkdirs(path.rpartition("/")[0], create_parent=True)
            self._client.rename(self._path(name), path, overwrite=True)

    def delete(self, name: str) -> None:
        with self._failures(name):
            self._client.delete(self._path(name))

    @contextlib.contextmanager
    def _failures(self, name: str) -> Iterator[None]:
        """Name the file in errors, without the server's Java stack."""
        try:
            yield
        except OSError as error:
            reason = str(error).partition("\n")[0]
            raise type(error)(f"{self.where}/{name}: {reason}") from None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root
