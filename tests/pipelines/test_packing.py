"""`--pack`: workers that have neither Python nor our packages get those of the driver as an archive."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from packaging.requirements import Requirement

from tests.support import spark_program
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster
from tests.support.spark_cluster import SparkCluster
from tests.support.yarn_cluster import SPARK_CONF, YarnCluster

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
SITE_PACKAGES = Path(sysconfig.get_paths()["purelib"])
BESIDE = ("pyspark", "py4j")
"""Spark itself is on every worker, and need not travel."""
SCRIPT_TIMEOUT_S = 600


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that can be packed: with our package in it, not linked to."""
    made = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=120)
    (packages,) = made.glob("lib/python*/site-packages")
    for folder in (SOURCE / "skylark", SOURCE / "pyspark_rocketmq"):
        shutil.copytree(folder, packages / folder.name)
    for name in sorted(installed_by("skylarkmq[spark]") - set(BESIDE)):
        for part in {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            if (SITE_PACKAGES / part).is_dir():
                shutil.copytree(SITE_PACKAGES / part, packages / part, dirs_exist_ok=True)
            else:
                shutil.copy(SITE_PACKAGES / part, packages)
    return made


def installed_by(text: str) -> set[str]:
    """The distributions that a requirement brings, without our own."""
    found: set[str] = set()
    waiting = [Requirement(text)]
    while waiting:
        wanted = waiting.pop()
        for needed in map(Requirement, distribution(wanted.name).requires or ()):
            extras = wanted.extras or {""}
            if needed.marker and not any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                continue
            name = needed.name.lower()
            if name not in found:
                found.add(name)
                waiting.append(needed)
    return found - {"skylarkmq"}


def run(environment: Path, log: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """Run with the environment's Python, Spark beside it; return the JSON that it prints."""
    beside = environment.parent / "beside"
    beside.mkdir(exist_ok=True)
    for name in BESIDE:
        if not (beside / name).exists():
            (beside / name).symlink_to(SITE_PACKAGES / name)
    command = [str(environment / "bin" / "python"), *arguments]
    where = {"PYTHONPATH": str(beside), **variables}
    return spark_program.last_object(
        spark_program.run(command, environment.parent / f"{log}.log", SCRIPT_TIMEOUT_S, where)
    )


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_workers_without_the_package(
    shared_cluster: PipelineCluster, environment: Path, tmp_path: Path
) -> None:
    topic = fresh_name("packed")
    shared_cluster.create_topic(topic, 2)
    shared_cluster.send(topic, [b"x"] * 60, 0)
    table, file = tmp_path / "table", tmp_path / "orders.yml"
    with SparkCluster(tmp_path / "spark", python="nothing") as spark:
        script = str(HERE / "packed_session.py")
        where = (spark.master, shared_cluster.namesrv, topic, str(tmp_path))
        found = run(environment, "session", script, *where)
        file.write_text(
            f"source: {{namesrv: '{shared_cluster.namesrv}', topic: {topic}}}\n"
            f"sinks: [{{delta: {{path: {table}}}}}]\n"
            f"cluster:\n  master: {spark.master}\n  pack: true\n"
            "  conf: {spark.driver.host: 127.0.0.1, spark.executor.memory: 512m}\n"
        )
        submitted = run(environment, "submit", "-m", "skylark", "spark", "submit", str(file), "--once")
    assert (found["rows"], found["streamed"]) == (60, 60)
    assert all("/environment/" in place for place in found["places"]), found["places"]
    assert len({place.partition("/environment/")[0] for place in found["places"]}) == 2, "both workers"
    needed = (tmp_path / "submit.log").read_text()
    assert f"orders runs on {spark.master}, which needs" in needed
    assert "no Python" in needed
    assert (submitted["status"], submitted["counts"]["written"]) == ("end of data", 60)
    assert DeltaTable(table).to_pyarrow_table().num_rows == 60


@pytest.mark.nightly
@pytest.mark.interop("java", "mvn")
@pytest.mark.timeout(2400)
def test_nodes_of_yarn_without_the_package(
    shared_cluster: PipelineCluster, environment: Path, tmp_path: Path
) -> None:
    topic = fresh_name("packed")
    shared_cluster.create_topic(topic, 2)
    shared_cluster.send(topic, [b"x"] * 60, 0)
    file = tmp_path / "orders.yml"
    file.write_text(
        f"source: {{namesrv: '{shared_cluster.namesrv}', topic: {topic}}}\n"
        f"sinks: [{{delta: {{path: {tmp_path / 'table'}}}}}]\n"
        f"cluster: {{master: yarn, pack: true, conf: {json.dumps(SPARK_CONF)}}}\n"
    )
    with YarnCluster(tmp_path / "yarn") as yarn:
        where = {"HADOOP_CONF_DIR": str(yarn.configuration)}
        submitted = run(
            environment, "submit", "-m", "skylark", "spark", "submit", str(file), "--once", **where
        )
    assert "no Python" in (tmp_path / "submit.log").read_text()
    assert (submitted["status"], submitted["counts"]["written"]) == ("end of data", 60)
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().num_rows == 60
