"""The package as people get it: built, checked, and installed where nothing of this checkout is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from skylark import __version__

ROOT = Path(__file__).parents[2]


def run(*words: str | Path, cwd: Path) -> str:
    """What a program prints, which knows nothing of this checkout."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source archive as a release is, and both found in order by twine."""
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT, cwd=directory)
    files = sorted(directory.iterdir())
    assert [path.name for path in files] == [
        f"skylarkmq-{__version__}-py3-none-any.whl",
        f"skylarkmq-{__version__}.tar.gz",
    ]
    assert "FAILED" not in run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=directory)
    return files[0]


def test_the_wheel_holds_the_typed_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(f"skylarkmq-{__version__}.dist-info/METADATA").decode())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"skylark", "pyspark_rocketmq", f"skylarkmq-{__version__}.dist-info"}
    assert {"skylark/py.typed", "skylark/bench/load.c"} <= set(names)
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_wheel_works_where_this_checkout_is_not(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are lent by the environment of the tests: no network is needed."""
    home = tmp_path / "clean"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=tmp_path,
    )
    places = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    # Packages found through a .pth file come last, and .pth files beside them, ours among them, are not read.
    Path(places, "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert run(home / "bin" / "skylark", "--version", cwd=tmp_path).split()[-1] == __version__
    where = run(python, "-c", "import skylark, skylark.aio; print(skylark.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(home)
    assert "Usage" in run(home / "bin" / "skylark", "serve", "--help", cwd=tmp_path)


@pytest.mark.nightly
def test_pip_installs_the_wheel_with_its_dependencies(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "clean"
    venv.create(home, with_pip=True, symlinks=True)
    python = home / "bin" / "python"
    fetched = subprocess.run(
        [python, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path, "msgspec"],
        capture_output=True,
        timeout=120,
        check=False,
    )
    if fetched.returncode and not os.environ.get("CI"):
        pytest.skip("packages cannot be fetched")
    run(python, "-m", "pip", "install", "-q", wheel, cwd=tmp_path)
    assert run(home / "bin" / "skylark", "--version", cwd=tmp_path).split()[-1] == __version__


def test_every_link_of_the_description_is_absolute_and_leads_to_a_file(wheel: Path) -> None:
    """A package index shows the README, and has none of the repository's files."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"skylarkmq-{__version__}.dist-info/METADATA").decode())
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Repository", "Documentation", "Changelog", "Issues"}
    links = re.findall(r"\]\(([^)\s]+)\)", str(metadata.get_payload()))
    assert len(links) > 20
    for link in links:
        found = re.fullmatch(re.escape(urls["Repository"]) + "/(blob|raw)/main/(.+)", link)
        assert found is not None, f"{link} is not absolute"
        assert (ROOT / found[2]).exists(), f"{link} leads nowhere"
