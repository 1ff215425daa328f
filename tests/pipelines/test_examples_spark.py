"""The example with state over topics runs, and finds what its messages hold."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_streams.py"


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_streams_with_state(
    spark: SparkSession, cluster: PipelineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("stream_clicks", "stream_pages", "stream_payments"):
        cluster.create_topic(topic, 2)
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
    try:
        found = runpy.run_path(str(EXAMPLE), run_name="__main__")  # so that its classes travel by value
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    sessions = {
        (row.user, row.session_window.start.strftime("%H:%M"), row["count"]) for row in found["sessions"]
    }
    assert sessions == {("ann", "08:00", 2), ("bob", "08:01", 1), ("ann", "08:30", 1)}
    assert found["late"] == 1
    assert [(row.user, row["count"]) for row in found["later"]] == [("zoe", 1)]
    assert {(row.user, row.page) for row in found["joined"]} == {
        ("ann", "home"), ("bob", "shop"), ("ann", "shop"),
    }  # fmt: skip
    assert found["lines"] == ["ann", "ann", "bob"]
    assert {(row.user, row.risk) for row in found["scores"]} == {("ann", 0.01), ("ann", 0.03), ("bob", 0.25)}
    assert {(row.user, row.total) for row in found["totals"]} == {("ann", 40.0), ("bob", 250.0)}
