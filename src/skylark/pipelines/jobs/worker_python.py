"""The Python that `--pack` sends to workers: the driver's interpreter with its packages, for any path.

Workers need neither Python nor any package of ours: the archive has the interpreter, its modules and the
shared libraries that these load. What it cannot have, `needs` says before the job starts.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from io import BytesIO
from pathlib import Path

import skylark
from skylark.errors import SettingsError

EXECUTABLE = f"python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = f"lib/{EXECUTABLE}"
COMPRESSION = 1
"""The archive travels once, over a network that is faster than better compression."""
NOT_PACKED = frozenset({"pyspark", "py4j", "pip", "setuptools", "test", "idlelib", "turtledemo", "ensurepip"})
"""Spark brings its own Python files; the rest is not used by jobs."""
OWN_PACKAGES = ("skylark", "pyspark_rocketmq")
LAUNCHER = f"""#!/bin/sh
here=$(dirname -- "$(readlink -f -- "$0")")
LD_LIBRARY_PATH="$here/../lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export LD_LIBRARY_PATH
exec "$here/{EXECUTABLE}" "$@"
"""
LINKED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)
C_LIBRARY = re.compile(r"(lib(c|m|dl|rt|util|pthread|resolv|anl)|ld-linux[\w-]*)\.so[\d.]*")
"""Belongs to the worker's system: a program runs with one version of these."""
SCREENS = "_tkinter"
"""A module that would bring the libraries of a graphical screen."""
TOOL_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file of the archive, by its place there."""

    name: str
    path: Path


def pack(archive: Path) -> None:
    """Write the driver's Python as a compressed archive. Raises SettingsError if it cannot be packed."""
    files = list(packed_files())
    with tarfile.open(archive, "w:gz", compresslevel=COMPRESSION) as tar:
        launcher = tarfile.TarInfo("bin/python")
        launcher.size, launcher.mode = len(LAUNCHER), 0o755
        tar.addfile(launcher, BytesIO(LAUNCHER.encode()))
        for file in files:
            tar.add(file.path, file.name, recursive=False)


def packed_files() -> Iterator[PackedFile]:
    """The interpreter, its library, its modules and the packages. Raises SettingsError."""
    if sys.platform != "linux":
        raise SettingsError(
            "pack", f"packs Python for Linux only, not for {sys.platform}; use an image instead"
        )
    yield PackedFile(f"bin/{EXECUTABLE}", _interpreter())
    yield from _shared_libraries()
    places = sysconfig.get_paths(vars={"base": sys.base_prefix, "installed_base": sys.base_prefix})
    yield from _below(Path(places["stdlib"]), LIBRARY, but={"site-packages", "dist-packages"})
    packages = f"{LIBRARY}/site-packages"
    for folder in dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")):
        yield from _below(Path(folder), packages, but=OWN_PACKAGES)
    # Ours may be installed as links to its sources.
    for package in OWN_PACKAGES:
        yield from _below(Path(skylark.__file__).parents[1] / package, f"{packages}/{package}")


def _interpreter() -> Path:
    found: str = getattr(sys, "_base_executable", sys.executable)
    return Path(found).resolve()


def _shared_libraries() -> Iterator[PackedFile]:
    """What the interpreter and its modules load. Raises SettingsError."""
    ldd = shutil.which("ldd")
    if ldd is None:
        raise SettingsError("pack", "needs the program ldd to find shared libraries; install it")
    modules = sorted((Path(sysconfig.get_path("stdlib")) / "lib-dynload").glob("*.so"))
    command = [ldd, str(_interpreter()), *(str(each) for each in modules if SCREENS not in each.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL_TIMEOUT_S)  # noqa: S603
    for name, path in sorted(set(LINKED.findall(done.stdout))):
        if not C_LIBRARY.fullmatch(name):
            yield PackedFile(f"lib/{name}", Path(path).resolve())


def _below(folder: Path, name: str, but: Iterable[str] = ()) -> Iterator[PackedFile]:
    left_out = {*but, *NOT_PACKED}
    for parent, folders, files in os.walk(folder):
        at = Path(parent)
        is_top = at == folder
        folders[:] = [
            each for each in folders if not each.startswith("config-") and not (is_top and each in left_out)
        ]
        for each in files:
            if not each.startswith(("__editable__", SCREENS)):
                place = at / each
                yield PackedFile(f"{name}/{place.relative_to(folder)}", place)


# --- What workers must have ---


def needs(*, is_packed: bool) -> list[str]:
    """What every worker must have, as sentences."""
    if not is_packed:
        python = os.environ.get("PYSPARK_PYTHON", sys.executable)
        return [_spark(), f"{_python()} at {python} (or pass --pack)"]
    libc = " ".join(platform.libc_ver()).strip() or "the same C library"
    found = [_spark(), f"Linux on {platform.machine()}, {libc} or newer, and /bin/sh; no Python"]
    if linked := _linked_distributions():
        found.append(f"{', '.join(linked)}: only linked here to their sources, so not in the archive")
    return found


def server_needs() -> list[str]:
    """What a Connect server must have, as sentences."""
    return [_spark(), _python()]


def _spark() -> str:
    import pyspark  # noqa: PLC0415

    return f"Spark {pyspark.__version__} with Java 17 or newer"


def _python() -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"Python {version} with skylarkmq[spark] {skylark.__version__}"


def _linked_distributions() -> list[str]:
    return sorted({each.name for each in distributions() if each.name != "skylarkmq" and _is_linked(each)})


def _is_linked(found: Distribution) -> bool:
    text = found.read_text("direct_url.json")
    return text is not None and bool(json.loads(text).get("dir_info", {}).get("editable"))
