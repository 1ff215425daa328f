"""Cache of fetched and compiled programs, shared by processes and kept outside any checkout.

The root is `$SKYLARK_CACHE`, or `~/.cache/skylark`. An entry is named by a hash of its sources and appears
by one rename: it is complete or absent.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BUILD_TIMEOUT_S = 480
LOCK_POLL_S = 0.1


def cache_dir(name: str) -> Path:
    """The directory of one kind of things; it may not exist yet."""
    root = os.environ.get("SKYLARK_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "skylark") / name


def digest(*files: Path) -> str:
    """A short hash over the names and contents of files, in the order of their names."""
    state = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        state.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return state.hexdigest()[:16]


def build_once(directory: Path, build: Callable[[Path], None]) -> None:
    """Make `directory` exist with what `build` writes into it; one process builds, the others wait for it.

    `build` gets an empty directory beside the final one, renamed when it returns: what exists is complete.
    Raises what `build` raises, and TimeoutError if another builder holds on for too long.
    """
    if directory.is_dir():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_name(f"{directory.name}.lock")):
        if directory.is_dir():
            return
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f"{directory.name}.tmp-") as scratch:
            target = Path(scratch) / "built"
            target.mkdir()
            build(target)
            target.rename(directory)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + BUILD_TIMEOUT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path} is still locked by another process") from None
                time.sleep(LOCK_POLL_S)
        yield
