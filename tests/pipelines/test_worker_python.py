"""The packed Python: runs where nothing of the driver's is, and says before what a worker must have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from skylark.errors import SettingsError
from skylark.pipelines.jobs import worker_python
from skylark.pipelines.jobs.session import SessionSettings

SOURCE = Path(worker_python.__file__).parents[3]
PACK = """
import pathlib, sys
from skylark.pipelines.jobs.worker_python import pack
pack(pathlib.Path(sys.argv[1]))
"""
LOOK = """
import ctypes, json, lzma, pathlib, sqlite3, ssl, sys, skylark
mapped = [word for word in pathlib.Path("/proc/self/maps").read_text().split() if ".so" in word]
print(json.dumps([sys.executable, ssl.__file__, skylark.__file__, *mapped]))
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="packs Python for Linux")
def test_a_packed_interpreter_runs_at_another_path_with_its_own_libraries(tmp_path: Path) -> None:
    made = tmp_path / "env"  # an environment without packages: few files
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=120)
    archive, moved = tmp_path / "environment.tar.gz", tmp_path / "moved"
    command = [str(made / "bin" / "python"), "-c", PACK, str(archive)]
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    with tarfile.open(archive) as tar:
        tar.extractall(moved, filter="tar")
    done = subprocess.run(
        [str(moved / "bin" / "python"), "-c", LOOK], check=True, timeout=60, env={}, capture_output=True
    )
    places = json.loads(done.stdout)
    assert all(place.startswith(str(moved)) for place in places[:3]), places
    assert not [place for place in places if place.startswith((sys.base_prefix, str(made)))]
    libraries = {Path(place).name.split(".so")[0] for place in places if place.startswith(str(moved / "lib"))}
    assert {"libssl", "libffi", "libsqlite3"} <= libraries


def test_spark_and_what_is_not_run_are_not_packed() -> None:
    names = {file.name.split("site-packages/")[-1].split("/")[0] for file in worker_python.packed_files()}
    assert {"skylark", "pyspark_rocketmq", "pyarrow", "numpy"} <= names
    assert not names & {"pyspark", "py4j", "pip"}


def test_every_kind_of_cluster_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    assert SessionSettings().needs() == []
    spark, python = SessionSettings(master="spark://h:7077").needs()
    assert spark.startswith("on every worker, Spark 4")
    assert f"at {sys.executable} (or pass --pack)" in python
    packed = SessionSettings(master="spark://h:7077", pack=True).needs()
    assert "no Python" in packed[1]
    with pytest.raises(SettingsError, match="set HADOOP_CONF_DIR"):
        SessionSettings(master="yarn").needs()
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert SessionSettings(master="yarn", pack=True).needs() == packed
    with pytest.raises(SettingsError, match=r"set spark\.kubernetes\.container\.image"):
        SessionSettings(master="k8s://h:6443").needs()
    image = {"spark.kubernetes.container.image": "ours:1"}
    assert SessionSettings(master="k8s://h:6443", conf=image).needs()[0].startswith("in the image ours:1, ")
    assert SessionSettings(remote="sc://h").needs()[1].startswith("on the server and its workers, Python 3.")
