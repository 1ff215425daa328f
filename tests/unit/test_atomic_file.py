"""Small files replaced whole: whatever moment the power fails, one readable generation is there."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skylark import atomic_file
from skylark.atomic_file import create_file, load_file, write_file
from skylark.errors import BadStoreFile


class PowerCut(BaseException):
    """Raised instead of carrying out a system call; not an OSError, so nothing tidies up after it."""


def test_a_file_comes_back_as_written_and_the_generation_before_is_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    write_file(path, b"1")
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["topics.json"]
    write_file(path, b"22")
    write_file(path, b"333")
    assert load_file(path, json.loads) == 333
    assert path.with_name("topics.json.bak").read_bytes() == b"22"
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert load_file(tmp_path / "absent.json", json.loads) is None


def test_empty_files_count_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    (tmp_path / "a.json.bak").touch()
    assert load_file(tmp_path / "a.json", json.loads) is None


@pytest.mark.parametrize("damage", [None, b"", b'{"cut'], ids=["missing", "empty", "unparsable"])
def test_the_backup_stands_in(tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.json"
    write_file(path, b"1")
    write_file(path, b"2")
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    assert load_file(path, json.loads) == 1
    assert "restored from its backup" in caplog.text
    assert not path.exists() or path.read_bytes() == damage, "loading must change nothing"


def test_content_that_nobody_can_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"{1")
    with pytest.raises(BadStoreFile, match=r"a\.json: "):
        load_file(path, json.loads)
    path.with_name("a.json.bak").write_bytes(b"{2")
    with pytest.raises(BadStoreFile, match=r"a\.json: .*; a\.json\.bak: "):
        load_file(path, json.loads)


def test_a_failed_write_keeps_the_old_content_and_leaves_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_file(path, b"1")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_file(path, b"2")
    assert load_file(path, json.loads) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("old_is_damaged", [False, True], ids=["good", "damaged"])
@pytest.mark.parametrize("calls_before_the_cut", range(12))
def test_power_may_fail_before_any_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls_before_the_cut: int, old_is_damaged: bool
) -> None:
    path = tmp_path / "a.json"
    write_file(path, b"1")
    write_file(path, b"2")
    survivors = {2, 3}
    if old_is_damaged:
        path.write_bytes(b"{")
        survivors = {1, 3}
    remaining = calls_before_the_cut

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted_call(*args: Any, **kwargs: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                raise PowerCut
            return call(*args, **kwargs)

        return counted_call

    with monkeypatch.context() as patch:
        for name in ("fsync", "unlink", "link", "replace", "open"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            write_file(path, b"3")
            finished = True
        except PowerCut:
            finished = False
    assert finished == (remaining >= 0)
    assert load_file(path, json.loads) in ({3} if finished else survivors)
    write_file(path, b"4")
    assert load_file(path, json.loads) == 4
    assert not list(tmp_path.glob("*.tmp"))


def test_where_directories_cannot_be_opened_files_are_replaced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows."""

    opened = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, mode)

    monkeypatch.setattr(atomic_file, "_DIRECTORIES_OPEN", False)
    monkeypatch.setattr(os, "open", refuse)
    path = tmp_path / "a.json"
    write_file(path, b"1")
    write_file(path, b"2")
    assert load_file(path, json.loads) == 2
    assert path.with_name("a.json.bak").read_bytes() == b"1"


def test_of_several_creators_the_first_writes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plan"
    assert create_file(path, b"first")
    assert not create_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert [each.name for each in path.parent.iterdir()] == ["plan"]
