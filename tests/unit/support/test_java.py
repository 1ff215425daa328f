"""The rule for missing toolchains, as the interop tests ask for them."""

from pathlib import Path

import pytest

from benchmarks.peers.java import MissingToolchain
from tests.support import java


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_missing_toolchain_skips_on_a_laptop_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    def absent(*_: object) -> None:
        raise MissingToolchain("java is not installed")

    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(java, "fetch_jars", absent)
    monkeypatch.setattr(java, "compile_sources", absent)
    with pytest.raises(outcome, match="java is not installed"):
        java.jars_of(Path("pom.xml"))
    with pytest.raises(outcome, match="java is not installed"):
        java.compiled(Path("pom.xml"), [])
