"""Rows a second from store files and from a broker into Delta tables: in a directory and in an S3 server.

    python -m benchmarks.lake [--rows 1000000] [--body 200] [--spark] [--topics 10 --topics 2000]

The engine of `skylark lake` alone, on one core; with `--spark` also the job `skylark spark archive`, on all
cores. What is compared is measured in turn; the ratios of the medians are printed. `--topics` measures how
long a turn of the service takes, idle and with a message in each topic, for a number of topics.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._common import report
from benchmarks._spark_cells import rates_in_turn
from benchmarks.spark import BROKER_SETTINGS, QUEUES, TOPIC, fill
from skylark.bench.machine import anonymous_bytes, scratch
from skylark.pipelines.jobs import archive as job
from skylark.pipelines.jobs.endpoints import Input, parse_output, table_options
from skylark.pipelines.jobs.session import SessionSettings, session
from skylark.pipelines.lake import table_sink
from skylark.pipelines.lake.table_commit import commit_batch
from skylark.pipelines.lake.table_log import BatchName
from skylark.pipelines.lake_service.engines import LocalEngine, write_ranges
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.table_archiver import TableArchiver
from skylark.pipelines.message_source import OffsetRange
from skylark.pipelines.planner import keep_freed_memory
from skylark.pipelines.schema import COLUMNS, spark_schema
from skylark.protocol.bodies import MessageQueue
from tests.support.pipeline_cluster import BROKER, PipelineCluster
from tests.support.s3_server import BUCKET, S3Server, variables

ROUNDS = 5
SPARK_ROUNDS = 3
EXPECTED_OF_STORE = 0.7


def engine_cell(source: dict[str, str], place: Callable[[], str], rows: int) -> Callable[[], int]:
    """Write and commit everything to a new table."""
    ranges = [OffsetRange(MessageQueue(TOPIC, BROKER, queue), 0, rows // QUEUES) for queue in range(QUEUES)]

    def run() -> int:
        options = table_options(parse_output(place(), partitionBy="dt,topic"))
        settings = table_sink.read_options(options)
        table_sink.prepare(settings, spark_schema(COLUMNS))
        files = write_ranges(options, source, "bench", ranges)
        commit_batch(settings.log(), BatchName("bench", 0), files)
        written = sum(file.rows for file in files)
        assert written == rows, f"{written} rows instead of {rows}"
        return rows

    return run


def job_cell(
    spark: Any, source: Input, place: Callable[[], str], state: Path, rows: int
) -> Callable[[], int]:
    """The job, to a new table."""

    def run() -> int:
        where = state / uuid.uuid4().hex
        summary = job.archive(spark, source, parse_output(place()), state=where, once=True)
        shutil.rmtree(where)
        assert summary.counts.written == rows, f"{summary.counts.written} rows instead of {rows}"
        return rows

    return run


def measure(where: Path, rows: int, body_bytes: int, *, with_spark: bool) -> dict[str, Any]:
    """All cells for one size of body."""
    store = where / "cluster" / "data"
    store.mkdir(parents=True)
    fill(store, rows, body_bytes)
    places: dict[str, Callable[[], str]] = {
        "directory": lambda: f"delta:{where}/tables/{uuid.uuid4().hex}",
        "s3": lambda: f"delta:s3://{BUCKET}/{uuid.uuid4().hex}",
    }
    results: dict[str, Any] = {"rows": rows}
    with (
        S3Server(where / "s3") as server,
        PipelineCluster(where / "cluster", BROKER_SETTINGS) as cluster,
    ):
        os.environ.update(variables(server.endpoint))
        cluster.create_topic(TOPIC, QUEUES)
        origins = {
            "files": {"path": str(store), "topic": TOPIC, "brokerName": BROKER},
            "broker": cluster.options(TOPIC),
        }
        keep_freed_memory()
        cells = {
            f"{origin} to {place}": engine_cell(source, make, rows)
            for origin, source in origins.items()
            for place, make in places.items()
        }
        results["engine"] = rates_in_turn(cells, ROUNDS)
        if with_spark:
            inputs = {
                "files": Input(store=store, topic=TOPIC, options={"brokerName": BROKER}),
                "broker": Input(namesrv=cluster.namesrv, topic=TOPIC),
            }
            with session(SessionSettings()) as spark:
                jobs = {
                    f"{origin} to {place}": job_cell(spark, source, make, where / "state", rows)
                    for origin, source in inputs.items()
                    for place, make in places.items()
                }
                results["job"] = rates_in_turn(jobs, SPARK_ROUNDS)
    shutil.rmtree(where)
    results["ratios"] = {
        f"{kind}, {origin}: s3 of directory": round(
            results[kind][f"{origin} to s3"]["median_krows"]
            / results[kind][f"{origin} to directory"]["median_krows"],
            2,
        )
        for kind in ("engine", "job")
        if kind in results
        for origin in ("files", "broker")
    }
    results["expected"] = EXPECTED_OF_STORE
    return results


def topic_results(where: Path, count: int) -> dict[str, float]:
    """Seconds of a turn with this number of topics of one table, and the memory of the process."""
    names = [f"small_{number}" for number in range(count)]
    with PipelineCluster(where / "cluster") as cluster:
        for name in names:
            cluster.create_topic(name, 1)
        table = LakeTable(topics=("small_.*",), output=parse_output(f"delta:{where}/table", partitionBy="dt"))
        rules = LakeRules(namesrv=cluster.namesrv, tables=[table])
        archiver = TableArchiver(rules, table, LocalEngine(), "bench")
        full: list[float] = []
        idle: list[float] = []
        for _ in range(ROUNDS):
            for name in names:
                cluster.send(name, [b"x" * 200])
            for seconds in (full, idle):
                started = time.perf_counter()
                archiver.turn()
                seconds.append(time.perf_counter() - started)
    shutil.rmtree(where)
    return {
        "turn_s": round(statistics.median(full), 2),
        "idle_turn_s": round(statistics.median(idle), 2),
        "megabytes": round(anonymous_bytes() / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, action="append")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--topics", type=int, action="append", default=[])
    given = parser.parse_args()
    rows = given.rows - given.rows % QUEUES
    results: dict[str, Any] = {}
    with scratch() as directory:
        for count in given.topics:
            results[f"{count} topics"] = topic_results(Path(directory) / f"topics-{count}", count)
        for body_bytes in given.body or ([] if given.topics else [200]):
            where = Path(directory) / f"body-{body_bytes}"
            results[f"{body_bytes} bytes"] = measure(where, rows, body_bytes, with_spark=given.spark)
    report("lake", results)


if __name__ == "__main__":
    main()
