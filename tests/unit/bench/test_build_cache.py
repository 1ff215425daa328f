"""The shared cache: built once, whole or not at all."""

import threading
from pathlib import Path

import pytest

from skylark.bench.build_cache import build_once, digest


def test_digest_follows_names_and_contents_but_not_the_order(tmp_path: Path) -> None:
    first, second = tmp_path / "A.java", tmp_path / "B.java"
    first.write_text("one")
    second.write_text("two")
    before = digest(first, second)
    assert digest(second, first) == before
    second.write_text("three")
    assert digest(first, second) != before


def test_build_once_builds_once_for_all_who_ask(tmp_path: Path) -> None:
    directory = tmp_path / "cache" / "lib"
    builds: list[Path] = []
    go_on = threading.Event()

    def build(target: Path) -> None:
        builds.append(target)
        assert go_on.wait(60)
        assert not directory.exists()
        (target / "a.jar").write_text("jar")

    threads = [threading.Thread(target=build_once, args=(directory, build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(60)

    assert len(builds) == 1
    assert (directory / "a.jar").read_text() == "jar"
    assert sorted(path.name for path in directory.parent.iterdir()) == ["lib", "lib.lock"]


def test_failed_build_leaves_nothing_and_may_be_tried_again(tmp_path: Path) -> None:
    directory = tmp_path / "lib"

    def fail(target: Path) -> None:
        (target / "half.jar").touch()
        raise OSError("network")

    with pytest.raises(OSError, match="network"):
        build_once(directory, fail)
    assert not directory.exists()
    build_once(directory, lambda target: (target / "whole.jar").touch())
    assert [path.name for path in directory.iterdir()] == ["whole.jar"]
