"""Compiles `src/skylark/_compiled.c` beside its source: a broker with it spends less on a send.

python -m scripts.accelerator        does nothing if it is up to date, or without a compiler

The module uses Python's stable ABI from 3.11 on, so one file serves all versions.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "skylark" / "_compiled.c"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
TIMEOUT_S = 120


def compiler() -> str | None:
    """The path of a C compiler for Python's headers, None without one."""
    has_headers = (Path(sysconfig.get_path("include")) / "Python.h").exists()
    return next(filter(None, map(shutil.which, COMPILERS)), None) if has_headers else None


def build(directory: Path, more_flags: Sequence[str] = ()) -> Path:
    """Compile the module into a directory. Raises CalledProcessError; call only with a `compiler`."""
    program = compiler()
    assert program is not None
    built = directory / f"{SOURCE.stem}.abi3.so"
    new = built.with_suffix(".new")
    system = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()
    include = f"-I{sysconfig.get_path('include')}"
    command = [program, *FLAGS, *more_flags, *system, include, "-o", str(new), str(SOURCE)]
    subprocess.run(command, check=True, timeout=TIMEOUT_S, capture_output=True, text=True)  # noqa: S603
    new.replace(built)  # a running broker keeps the old file
    return built


def main() -> None:
    built = SOURCE.with_suffix(".abi3.so")
    if built.exists() and built.stat().st_mtime >= SOURCE.stat().st_mtime:
        return
    if compiler() is None:
        sys.stdout.write(
            "No C compiler, or no headers of Python: brokers send in pure Python, which is complete.\n"
        )
        return
    try:
        build(SOURCE.parent)
    except subprocess.SubprocessError as error:
        detail = getattr(error, "stderr", None) or error
        sys.stdout.write(
            f"{SOURCE.name} was not compiled; brokers send in pure Python, which is complete: {detail}\n"
        )


if __name__ == "__main__":
    main()
