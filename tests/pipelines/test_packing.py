"""`--pack`: workers that have nothing of ours installed get the driver's environment as an archive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_workers_without_the_package(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    shared_cluster.create_topic("packed", 2)
    shared_cluster.send("packed", [b"x"] * 60, 0)
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=120)
    (packages,) = environment.glob("lib/python*/site-packages")
    for folder in (SOURCE / "skylark", SOURCE / "pyspark_rocketmq"):
        shutil.copytree(folder, packages / folder.name)
    for name in PACKED:
        if (SITE_PACKAGES / name).is_dir():
            shutil.copytree(SITE_PACKAGES / name, packages / name)
    for single in SITE_PACKAGES.glob("*.py"):
        shutil.copy(single, packages)
    beside = tmp_path / "beside"
    beside.mkdir()
    for name in BESIDE:
        (beside / name).symlink_to(SITE_PACKAGES / name)
    with SparkCluster(tmp_path / "spark", python="nothing") as spark:
        done = subprocess.run(
            [
                str(environment / "bin" / "python"),
                str(HERE / "packed_session.py"),
                spark.master,
                shared_cluster.namesrv,
                "packed",
                str(tmp_path),
            ],
            capture_output=True,
            text=True,
            timeout=SCRIPT_TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": str(beside)},
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert (found["rows"], found["streamed"]) == (60, 60)
    for place in found["places"]:
        assert all("/environment/" in part for part in place.split()), place
