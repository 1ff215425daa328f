"""`--pack`: workers that have nothing of ours installed get the driver's environment as an archive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.pipeline_cluster import PipelineCluster
from tests.support.spark_cluster import SparkCluster

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
SITE_PACKAGES = Path(sysconfig.get_paths()["purelib"])
# What readers import, and what packs. Spark itself is on every worker.
PACKED = [
    *("numpy", "numpy.libs", "pyarrow", "pyarrow.libs", "msgspec", "zlib_ng", "prometheus_client", "lark"),
    *("deltalake", "arro3", "deprecated", "wrapt", "venv_pack", "rich", "typer", "yaml"),
]
BESIDE = ("pyspark", "py4j")
SCRIPT_TIMEOUT_S = 600


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that can be packed: with our package in it, not linked to."""
    made = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=120)
    (packages,) = made.glob("lib/python*/site-packages")
    for folder in (SOURCE / "skylark", SOURCE / "pyspark_rocketmq"):
        shutil.copytree(folder, packages / folder.name)
    for name in PACKED:
        if (SITE_PACKAGES / name).is_dir():
            shutil.copytree(SITE_PACKAGES / name, packages / name)
    for single in SITE_PACKAGES.glob("*.py"):
        shutil.copy(single, packages)
    return made


def run(environment: Path, *arguments: str) -> dict[str, Any]:
    """Run with the environment's Python, Spark beside it; return the JSON of the last line."""
    beside = environment.parent / "beside"
    beside.mkdir(exist_ok=True)
    for name in BESIDE:
        if not (beside / name).exists():
            (beside / name).symlink_to(SITE_PACKAGES / name)
    done = subprocess.run(
        [str(environment / "bin" / "python"), *arguments],
        capture_output=True,
        text=True,
        timeout=SCRIPT_TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": str(beside)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_workers_without_the_package(
    shared_cluster: PipelineCluster, environment: Path, tmp_path: Path
) -> None:
    shared_cluster.create_topic("packed", 2)
    shared_cluster.send("packed", [b"x"] * 60, 0)
    table = tmp_path / "table"
    with SparkCluster(tmp_path / "spark", python="nothing") as spark:
        script = str(HERE / "packed_session.py")
        found = run(environment, script, spark.master, shared_cluster.namesrv, "packed", str(tmp_path))
        archived = run(
            environment,
            *("-m", "skylark.cli.main", "spark", "archive", "-n", shared_cluster.namesrv, "-t", "packed"),
            *("--to", f"delta:{table}", "--once", "--state", str(tmp_path / "state")),
            *("--master", spark.master, "--pack"),
            *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"),
        )
    assert (found["rows"], found["streamed"]) == (60, 60)
    for place in found["places"]:
        assert all("/environment/" in part for part in place.split()), place
    assert (archived["status"], archived["messages"]) == ("end of data", 60)
    assert DeltaTable(table).to_pyarrow_table().num_rows == 60
