"""The programs with Spark in README and docs are run, in one session, on messages that are there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.pages import PAGES, Block, blocks
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESRV = "127.0.0.1:9876"
BLOCKS = [
    block
    for page in PAGES
    for block in blocks(page)
    if block.language == "python"
    and block.not_run is None
    and ("spark" in block.code or "spark" in block.page)
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def given(shared_cluster: PipelineCluster, spark: SparkSession, place: Path) -> Iterator[dict[str, Any]]:
    """What the fragments take for granted; their streams are stopped at the end."""
    shared_cluster.create_topic("orders")
    shared_cluster.create_topic("order_totals")
    shared_cluster.create_topic("skylark-spark-commits", 1)
    shared_cluster.send("orders", [b'{"id": 1, "amount": 9.5, "items": ["a"]}'], properties={"TAGS": "paid"})
    write_deltalake(str(place / "lake" / "raw"), pa.table({"dt": ["2026-11-15"], "body": [b"x"]}))
    options = shared_cluster.options("orders")
    yield {
        "spark": spark,
        "Path": Path,
        "df": spark.createDataFrame([(bytearray(b"x"),)], "body binary"),
        "stream": spark.readStream.format("rate")
        .load()
        .selectExpr("to_binary(string(value), 'utf-8') as body"),
        "totals": spark.readStream.format("rocketmq").options(**options).load().groupBy("tags").count(),
        "messages": [],
        "handle": print,
    }
    for stream in spark.streams.active:
        stream.stop()


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_program_with_spark(
    block: Block, shared_cluster: PipelineCluster, given: dict[str, Any], place: Path
) -> None:
    code = block.code.replace(NAMESRV, shared_cluster.namesrv)
    for path in ('"skylark-data"', '"/data/store"'):
        code = code.replace(path, repr(shared_cluster.files_of("orders")))
    code = code.replace("metrics_port=9100", "metrics_port=0")
    code = code.replace('"checkpoint"', repr(tempfile.mkdtemp(dir=place)))  # Spark has a directory of its own
    if '"orders,pay_.*"' in code:
        shared_cluster.create_topic("pay_cards")
    exec(compile(code, str(block), "exec"), given)  # noqa: S102 - our own pages
