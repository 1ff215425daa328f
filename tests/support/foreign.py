"""Clients from other registries than Maven's, installed once below the cache that the jars lie in.

Missing programs, or a registry out of reach, skip the test; where `CI` is set they fail it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from skylark.bench.build_cache import build_once, cache_dir, digest
from skylark.processes import ProcessFailed, run
from tests.support.java import missing

INSTALL_TIMEOUT_S = 180
BUILD_TIMEOUT_S = 1800


def node_modules(package: Path) -> Path:
    """The `node_modules` of a `package.json` with exact versions."""
    directory = cache_dir("interop") / f"node-{digest(package)}"

    def install(target: Path) -> None:
        shutil.copy(package, target)
        options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
        _run(["npm", "install", "--prefix", str(target), *options], INSTALL_TIMEOUT_S)

    _build(directory, install, f"the packages of {package}")
    return directory / "node_modules"


def virtualenv(requirements: Path) -> Path:
    """The interpreter of a virtual environment with these requirements and nothing else."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    directory = cache_dir("interop") / f"python{version}-{digest(requirements)}"

    def install(target: Path) -> None:
        _run([sys.executable, "-m", "venv", str(target)], INSTALL_TIMEOUT_S)
        pip = [str(target / "bin/python"), "-m", "pip", "install", "-q", "--only-binary", ":all:"]
        _run([*pip, "-r", str(requirements)], INSTALL_TIMEOUT_S)

    _build(directory, install, f"the packages of {requirements}")
    return directory / "bin/python"


def cargo_binary(crate: Path) -> Path:
    """The program of a crate, built without optimisation: minutes and a gigabyte on the first call."""
    directory = cache_dir("interop") / f"rust-{digest(*crate.rglob('*.rs'), crate / 'Cargo.toml')}"

    def build(target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix="cargo-") as scratch:
            shutil.copytree(crate, Path(scratch) / "crate")
            cargo = ["cargo", "build", "-q", "--manifest-path", f"{scratch}/crate/Cargo.toml"]
            _run([*cargo, "--target-dir", f"{scratch}/target"], BUILD_TIMEOUT_S)
            shutil.copy(Path(scratch) / "target/debug/driver", target)

    _build(directory, build, f"the crate {crate.name}")
    return directory / "driver"


def go_binary(module: str, version: str) -> Path:
    """The program of a Go module: minutes on the first call."""
    name = module.rpartition("/")[2]
    directory = cache_dir("interop") / f"go-{name}-{version}"

    def build(target: Path) -> None:
        _run(["env", f"GOBIN={target}", "go", "install", f"{module}@{version}"], BUILD_TIMEOUT_S)

    _build(directory, build, f"the program {name} {version}")
    return directory / name


def go_program(source: Path) -> Path:
    """The program of a directory with a `go.mod`: a minute on the first call."""
    directory = cache_dir("interop") / f"go-{digest(*sorted(source.iterdir()))}"

    def build(target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix="go-") as scratch:
            copy = shutil.copytree(source, Path(scratch) / "source")
            _run(["go", "build", "-C", str(copy), "-o", str(target / "driver"), "."], BUILD_TIMEOUT_S)

    _build(directory, build, f"the program {source.name}")
    return directory / "driver"


def _build(directory: Path, build: Callable[[Path], None], what: str) -> None:
    try:
        build_once(directory, build)
    except (ProcessFailed, OSError) as error:
        missing(f"{what} cannot be had: {error}")


def _run(command: Sequence[str], timeout_s: float) -> None:
    with tempfile.TemporaryDirectory(prefix="skylark-foreign-") as scratch:
        run(command, log=Path(scratch) / "output.log", timeout_s=timeout_s)
