"""The Spark cells of the benchmarks in an existing session: every row is read, from broker and files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.survey.spark import spark_cells
from skylark.bench.load import Load
from skylark.bench.servers import ServerChoice, running_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {"mappedFileSizeCommitLog": 16 << 20, "maxHashSlotNum": 10_000, "maxIndexNum": 40_000}


@pytest.mark.nightly
@pytest.mark.timeout(600)  # the first job of a session takes its time on a busy machine
def test_rows_are_read_and_written(spark: SparkSession) -> None:
    words: list[str] = []
    with running_servers(ServerChoice(pin=False, settings={**SMALL})) as servers:
        load = servers.with_topic(servers.fitted(Load(address="", topic="rows", queues=2, body_bytes=50)))
        with servers.target() as target:
            target.fill(load, 640)
            assert target.stored(load) == 640
            cells = list(spark_cells(spark, servers, load, 640, 1, lambda name, word: words.append(word)))
            assert target.stored(replace(load, topic="rows-sunk")) == 2 * 160  # the first round warms up
    assert [cell.name for cell in cells] == [
        "read from the broker",
        "read from files",
        "write to the broker",
    ]
    assert [(cell.operations, cell.unit, cell.wrong) for cell in cells] == [
        (640, "rows", []),
        (640, "rows", []),
        (160, "rows", []),
    ]
    assert words.count("begin") == words.count("end") == 3
