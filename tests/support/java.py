"""Java for the interop tests: what `benchmarks.peers.java` finds, fetches and compiles, or the test skips.

A missing toolchain (or a registry out of reach) skips the test; where `CI` is set it fails it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.peers.java import Classpath, MissingToolchain, compile_sources, fetch_jars


def missing(reason: str) -> NoReturn:
    """Skip the running test for `reason`, or fail it in CI, where these tests must run."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def jars_of(pom: Path) -> Classpath:
    """The runtime jars that `pom` names, fetched on first use."""
    try:
        return fetch_jars(pom)
    except MissingToolchain as error:
        missing(str(error))


def compiled(pom: Path, sources: Sequence[Path]) -> Classpath:
    """The jars of `pom` with `sources` compiled against them. Raises ProcessFailed if they do not compile."""
    try:
        return compile_sources(pom, sources)
    except MissingToolchain as error:
        missing(str(error))
