"""Files of a table in an object store: S3, Google Cloud Storage or Azure.

A store has no rename, and a reply may be lost after the store has done what was asked. So a decision is a
conditional put (`create`), which is read back if its outcome is unknown; everything else may be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import from_url

from skylark.pipelines.lake.file_store import StoredFile
from skylark.settings.object_store import client_settings

PART_BYTES = 8 << 20
PARTS_AT_ONCE = 4


class ObjectFiles:
    """A prefix of a bucket. Any number of writers."""

    def __init__(self, uri: str) -> None:
        self.where = uri
        settings = client_settings(uri)
        clear = {"allow_http": True} if settings.pop("allow_http", "") else {}
        open_store: Any = from_url  # its annotations list the settings of every store one by one
        self._store = open_store(uri, config=settings, client_options=clear)

    def below(self, folder: str) -> ObjectFiles:
        return ObjectFiles(f"{self.where}/{folder}")

    def create(self, name: str, data: bytes) -> bool:
        try:
            obstore.put(self._store, name, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            pass
        except BaseError as error:
            # The put may have succeeded although its reply is an error, or none came.
            with contextlib.suppress(FileNotFoundError):
                return self.read(name) == data
            raise self._failure(name, error) from error
        else:
            return True
        # The client repeats a put whose reply was lost, and then finds its own object.
        return self.read(name) == data

    def replace(self, name: str, data: bytes) -> None:
        with self._failures(name):
            obstore.put(self._store, name, data, use_multipart=False)

    def read(self, name: str) -> bytes:
        with self._failures(name):
            return bytes(obstore.get(self._store, name).bytes())

    def exists(self, name: str) -> bool:
        try:
            with self._failures(name):
                obstore.head(self._store, name)
        except FileNotFoundError:
            return False
        return True

    def output(self, name: str) -> Any:
        return pa.PythonFile(_Upload(self, self._store, name), mode="w")

    def input(self, name: str) -> Any:
        with self._failures(name):
            return pa.PythonFile(_Download(self, self._store, name), mode="r")

    def list(self, folder: str = "") -> Iterator[StoredFile]:
        with self._failures(folder):
            for chunk in obstore.list(self._store, prefix=folder or None):
                for each in chunk:
                    yield StoredFile(each["path"], each["last_modified"].timestamp())

    def move(self, name: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._failures(name):
            obstore.copy(self._store, name, target)
        self.delete(name)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._failures(name):
            obstore.delete(self._store, name)

    @contextlib.contextmanager
    def _failures(self, name: str) -> Iterator[None]:
        """Turn the errors of the library into OSError."""
        try:
            yield
        except (FileNotFoundError, NotFoundError):
            raise FileNotFoundError(f"{self.where}/{name}") from None
        except BaseError as error:
            raise self._failure(name, error) from error

    def _failure(self, name: str, error: BaseError) -> OSError:
        return OSError(f"{self.where}/{name}: {' '.join(str(error).split())}")


class _Upload:
    """A file being written, in parts. The object appears when it is closed."""

    def __init__(self, files: ObjectFiles, store: Any, name: str) -> None:
        self.closed = False
        self._files, self._name = files, name
        self._writer = obstore.open_writer(store, name, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

    def write(self, data: Any) -> int:
        with self._files._failures(self._name):
            self._writer.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing: the store decides when a part is sent."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._files._failures(self._name):
                self._writer.close()


class _Download:
    """A file being read, by ranges."""

    def __init__(self, files: ObjectFiles, store: Any, name: str) -> None:
        self.closed = False
        self._files, self._store, self._name = files, store, name
        self._size = int(obstore.head(store, name)["size"])
        self._at = 0

    def read(self, count: int = -1) -> bytes:
        end = self._size if count < 0 else min(self._at + count, self._size)
        if end <= self._at:
            return b""
        with self._files._failures(self._name):
            data = bytes(obstore.get_range(self._store, self._name, start=self._at, end=end))
        self._at = end
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self.closed = True
