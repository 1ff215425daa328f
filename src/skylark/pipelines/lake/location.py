"""Where a table is: a local directory, a directory of HDFS or an address in an object store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from skylark.errors import SettingsError
from skylark.pipelines.lake.file_store import DirectoryFiles, FileStore
from skylark.settings.object_store import HDFS, is_uri


def open_files(where: str | Path) -> FileStore:
    """The files of a table. Raises SettingsError."""
    if not is_uri(str(where)):
        return DirectoryFiles(Path(where))
    if urlsplit(str(where)).scheme == HDFS:
        try:
            from skylark.pipelines.lake.hdfs_files import HdfsFiles  # noqa: PLC0415  needs hdfs_native
        except ImportError as error:
            raise SettingsError("to", f"{error}: install skylarkmq[hdfs]") from None
        return HdfsFiles(str(where))
    from skylark.pipelines.lake.object_files import ObjectFiles  # noqa: PLC0415  needs the library obstore

    return ObjectFiles(str(where))
