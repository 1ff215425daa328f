"""Rows a second through Spark: from a broker, from its files, and into a topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skylark.bench.load import Load, LoadFailed
from skylark.bench.results import Cell, Document, make_cell, make_document
from skylark.bench.servers import BenchServers, Progress, ServerChoice, running_servers
from skylark.errors import StoreError
from skylark.pipelines.jobs.session import SessionSettings, check_java, session
from skylark.store.store_reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"
FILES_TIMEOUT_S = 60
POLL_S = 0.1
SINK_SHARE = 4
"""The sink gets a quarter of the rows: every one of them is acknowledged."""


def measure_spark(choice: ServerChoice, load: Load, rows: int, rounds: int, progress: Progress) -> Document:
    """The best of several rounds of each cell after one warm-up round.

    Raises SettingsError without Java, LoadFailed, RocketMQError.
    """
    check_java()
    with running_servers(choice) as servers:
        load = servers.with_topic(servers.fitted(load))
        with servers.target() as target:
            target.fill(load, rows)
            rows = target.stored(load)
        with session(SessionSettings(master=MASTER, name="skylark-bench")) as spark:
            cells = list(spark_cells(spark, servers, load, rows, rounds, progress))
        conditions = servers.conditions(rows=rows, rounds=rounds, master=MASTER)
        return make_document("spark", conditions, cells)


def spark_cells(
    spark: SparkSession, servers: BenchServers, load: Load, rows: int, rounds: int, progress: Progress
) -> Iterator[Cell]:
    """The cells over a topic of `rows` messages."""
    from_broker = {"namesrv": servers.served.namesrv, "topic": load.topic}
    yield _best("read from the broker", partial(_read, spark, from_broker), rows, rounds, load, progress)
    if servers.directory is not None:
        store = servers.directory / "data"
        _wait_for_files(store, load.topic, rows)
        from_files = {"path": str(store), "topic": load.topic}
        yield _best("read from files", partial(_read, spark, from_files), rows, rounds, load, progress)
    sunk = servers.with_topic(replace(load, topic=f"{load.topic}-sunk"))
    count = max(rows // SINK_SHARE, 1)
    write = partial(_write, spark, servers, sunk, count)
    yield _best("write to the broker", write, count, rounds, load, progress)


def _read(spark: SparkSession, options: dict[str, str]) -> int:
    """Every body is looked at, so that nothing can be left out."""
    frame: DataFrame = spark.read.format("rocketmq").options(**options).load()
    (row,) = frame.selectExpr("count(body) as rows", "sum(length(body)) as bytes").collect()
    return int(row["rows"])


def _write(spark: SparkSession, servers: BenchServers, load: Load, rows: int) -> int:
    """How many more the topic holds then."""
    frame = spark.range(0, rows, 1, 2).selectExpr(f"lpad(cast(id as string), {load.body_bytes}, 'x') as body")
    options = {"namesrv": servers.served.namesrv, "topic": load.topic}
    with servers.target() as target:
        before = target.stored(load)
        frame.write.format("rocketmq").mode("append").options(**options).save()
        return target.wait_stored(load, before + rows) - before


def _best(name: str, work: Callable[[], int], rows: int, rounds: int, load: Load, progress: Progress) -> Cell:
    times = []
    wrong = []
    progress(name, "begin")
    for number in range(rounds + 1):
        started = time.perf_counter()
        count = work()
        times.append(time.perf_counter() - started)
        progress(name, f"tick {sum(times):.3f} {count * (number + 1)}")
        if count != rows:
            wrong.append(f"{count} rows instead of {rows}")
    progress(name, "end")
    figures = {"first_s": round(times[0], 3), "median_s": round(sorted(times[1:])[rounds // 2], 3)}
    return make_cell(
        name, rows, min(times[1:]), operation_bytes=load.body_bytes, unit="rows", figures=figures, wrong=wrong
    )


def _wait_for_files(store: Path, topic: str, rows: int) -> None:
    """A broker writes its queues to their files now and then. Raises LoadFailed."""
    deadline = time.monotonic() + FILES_TIMEOUT_S
    while _rows_in_files(store, topic) < rows:
        if time.monotonic() > deadline:
            raise LoadFailed(f"the files in {store} do not hold all of {topic}")
        time.sleep(POLL_S)


def _rows_in_files(store: Path, topic: str) -> int:
    try:
        return sum(queue.count for queue in StoreReader(store).queues(topic))
    except StoreError:
        return 0
