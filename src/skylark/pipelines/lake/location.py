"""Where a table is: a local directory or an address in an object store."""

from __future__ import annotations

from pathlib import Path

from skylark.pipelines.lake.file_store import DirectoryFiles, FileStore
from skylark.settings.object_store import is_uri


def open_files(where: str | Path) -> FileStore:
    """The files of a table. Raises SettingsError."""
    if not is_uri(str(where)):
        return DirectoryFiles(Path(where))
    from skylark.pipelines.lake.object_files import ObjectFiles  # noqa: PLC0415  needs the library obstore

    return ObjectFiles(str(where))
