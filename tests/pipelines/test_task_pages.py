"""The pages by task, run as a reader would: every block, in order, in an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.pages import ROOT, blocks
from tests.support.pipeline_cluster import PipelineCluster

pytestmark = pytest.mark.nightly
NAMESRV = "127.0.0.1:9876"
TIMEOUT_S = 280


def run_page(name: str, cluster: PipelineCluster, home: Path, texts: dict[str, str]) -> str:
    """Run the blocks of a page; Python at the end, as one program, with the variables of the shell."""
    lines, program = ["set -euo pipefail"], []
    for block in blocks(ROOT / "docs" / "howto" / name):
        if block.not_run is not None:
            continue
        code = block.code.replace(NAMESRV, cluster.namesrv)
        for old, new in texts.items():
            code = code.replace(old, new)
        if block.language == "python":
            program.append(code)
        else:
            lines += [line for line in code.splitlines() if not line.startswith("pip install")]
    (home / "program.py").write_text("\n".join(program))
    lines += [f"{sys.executable} program.py"] if program else []
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=home,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NAMESRV_ADDR": cluster.namesrv,
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_query_with_duckdb(cluster: PipelineCluster, tmp_path: Path) -> None:
    cluster.create_topic("orders", 2)
    said = run_page("query-with-duckdb.md", cluster, tmp_path, {})
    assert "created" in said
    assert "(9.5, " in said


def test_topic_to_iceberg(cluster: PipelineCluster, tmp_path: Path) -> None:
    cluster.create_topic("orders", 1)
    cluster.send("orders", [b"%d" % number for number in range(50)])
    texts = {"file:///tmp/warehouse": f"file://{tmp_path}/warehouse", "sqlite:///": f"sqlite:///{tmp_path}/"}
    said = run_page("topic-to-iceberg.md", cluster, tmp_path, texts)
    assert '"messages":50' in said
    assert '"faults":0' in said


def test_replay_last_march(cluster: PipelineCluster, tmp_path: Path) -> None:
    cluster.create_topic("orders", 1)
    cluster.send("orders", [b"%d" % number for number in range(30)], properties={"TAGS": "created"})
    words = [
        "lake",
        "run",
        "-n",
        cluster.namesrv,
        "-t",
        "orders",
        "--to",
        f"delta:{tmp_path}/lake/raw",
        "--once",
    ]
    subprocess.run([sys.executable, "-m", "skylark", *words], check=True, capture_output=True)
    now = datetime.now(UTC)
    texts = {
        "2026-03-01": f"{now - timedelta(days=1):%Y-%m-%d}",
        "2026-04-01": f"{now + timedelta(days=2):%Y-%m-%d}",
    }
    run_page("replay-last-march.md", cluster, tmp_path, texts)
    queues = cluster.wire.queues("orders_march")
    assert sum(cluster.wire.max_offsets(queues).values()) == 30
