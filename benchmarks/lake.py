"""Rows a second from store files and from a broker into Delta tables: in a directory and in an S3 server.

    python -m benchmarks.lake [--rows 1000000] [--body 200] [--spark]
    python -m benchmarks.lake --topics 10 --topics 2000 [--svg docs/charts]
    python -m benchmarks.lake --backlog 1 --backlog 10
    python -m benchmarks.lake --peer kafka [--rows 1000000]

The engine of `skylark lake` alone, on one core; with `--spark` also the job `skylark spark archive`, on all
cores, with the processor time of a row, which `skylark plan` uses. What is compared is measured in turn; the
ratios of the medians are printed. `--topics` measures how long a turn of the service takes, idle and with a
message in each topic, for a number of topics; `--backlog` how much memory the service takes for a backlog of
so many gibibytes of bodies in a broker. With `--peer kafka` the job is measured beside Kafka's topic to
Parquet by Spark and its connector: the same rows, seven columns, zstd.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import _spark_peer as peer
from benchmarks._common import report
from benchmarks._spark_cells import SEVEN, costs_in_turn, rates_in_turn
from benchmarks.spark import BROKER_SETTINGS, QUEUES, TOPIC, fill
from skylark.bench.machine import anonymous_bytes, scratch
from skylark.html_report import Chart, Section, drawing
from skylark.pipelines.jobs import archive as job
from skylark.pipelines.jobs.endpoints import Input, parse_output, table_options
from skylark.pipelines.jobs.session import SessionSettings, session
from skylark.pipelines.lake import table_sink
from skylark.pipelines.lake.table_commit import commit_batch
from skylark.pipelines.lake.table_log import BatchName
from skylark.pipelines.lake_service.engines import LocalEngine, write_ranges
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.service import LakeService
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
BACKLOG_BODY_BYTES = 4096
SAMPLE_S = 0.05
EXPECTED_TIMES_KAFKA = {"files": 3.0, "broker": 2.0}


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
    spark: Any, source: Input, place: Callable[[], str], state: Path, rows: int, columns: str | None = None
) -> Callable[[], int]:
    """The job, to a new table."""

    def run() -> int:
        where = state / uuid.uuid4().hex
        output = parse_output(place(), columns=columns)
        summary = job.archive(spark, source, output, state=where, once=True)
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
                results["job"] = costs_in_turn(spark, jobs, SPARK_ROUNDS)
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


def measure_beside(where: Path, rows: int, body_bytes: int) -> dict[str, Any]:
    """The job into tables, beside Kafka's topic into Parquet by Spark, in turn."""
    store = where / "cluster" / "data"
    store.mkdir(parents=True)
    fill(store, rows, body_bytes)
    files = {"path": str(store), "topic": TOPIC, "brokerName": BROKER}
    conf = peer.session_settings(peer.connector())
    with (
        S3Server(where / "s3") as server,
        PipelineCluster(where / "cluster", BROKER_SETTINGS) as cluster,
        peer.running_kafka(where / "kafka") as (node, driver),
    ):
        os.environ.update(variables(server.endpoint))
        cluster.create_topic(TOPIC, QUEUES)
        driver.call("create", TOPIC, QUEUES, timeout_s=peer.DRIVER_TIMEOUT_S)
        inputs = {
            "files": Input(store=store, topic=TOPIC, options={"brokerName": BROKER}),
            "broker": Input(namesrv=cluster.namesrv, topic=TOPIC),
        }
        places: dict[str, Callable[[], str]] = {
            "directory": lambda: f"delta:{where}/tables/{uuid.uuid4().hex}",
            "s3": lambda: f"delta:s3://{BUCKET}/{uuid.uuid4().hex}",
        }
        with session(SessionSettings(master="local[2]", conf=conf)) as spark:
            peer.copy_rows(spark, files, node.address, TOPIC)
            kafka = peer.kafka_origin(spark, node.address, TOPIC, TOPIC)
            cells = {"kafka to directory": lambda: kafka.parquet(rows, where)} | {
                f"{origin} to {place}": job_cell(spark, source, make, where / "state", rows, ",".join(SEVEN))
                for origin, source in inputs.items()
                for place, make in places.items()
            }
            found = rates_in_turn(cells, SPARK_ROUNDS, peer.WARM_UPS)
    shutil.rmtree(where)
    medians = {name: each["median_krows"] for name, each in found.items()}
    local = {origin: medians[f"{origin} to directory"] for origin in ("kafka", *inputs)}
    return {
        "rows": rows,
        "conditions": peer.conditions(),
        "job": found,
        "times_kafka": {origin: round(local[origin] / local["kafka"], 2) for origin in inputs},
        "s3_of_directory": {
            origin: round(medians[f"{origin} to s3"] / local[origin], 2) for origin in inputs
        },
        "expected": {"times_kafka": EXPECTED_TIMES_KAFKA, "s3_of_directory": EXPECTED_OF_STORE},
    }


def backlog_results(where: Path, gibibytes: float) -> dict[str, float]:
    """The memory of the service's process while it archives a backlog, beside that before it."""
    rows = round(gibibytes * (1 << 30) / BACKLOG_BODY_BYTES) // QUEUES * QUEUES
    store = where / "cluster" / "data"
    store.mkdir(parents=True)
    fill(store, rows, BACKLOG_BODY_BYTES)
    with PipelineCluster(where / "cluster", BROKER_SETTINGS) as cluster:
        cluster.create_topic(TOPIC, QUEUES)
        table = LakeTable(topics=(TOPIC,), output=parse_output(f"delta:{where}/table", partitionBy="dt"))
        rules = LakeRules(namesrv=cluster.namesrv, tables=[table])
        service = LakeService([TableArchiver(rules, table, LocalEngine(), "bench")])
        before, done = anonymous_bytes(), threading.Event()
        peaks = [before]

        def sample() -> None:
            while not done.wait(SAMPLE_S):
                peaks[0] = max(peaks[0], anonymous_bytes())

        sampler = threading.Thread(target=sample)
        sampler.start()
        started = time.perf_counter()
        archived = service.run_once()
        seconds = time.perf_counter() - started
        done.set()
        sampler.join()
        assert archived == rows, f"{archived} messages instead of {rows}"
    shutil.rmtree(where)
    return {
        "messages": rows,
        "krows": round(rows / seconds / 1000, 1),
        "megabytes_before": round(before / 1e6),
        "megabytes_at_most": round(peaks[0] / 1e6),
    }


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


def chart(results: Mapping[int, Mapping[str, float]]) -> Section:
    """The time of a turn by the number of topics."""
    kinds = {"turn_s": "a message in each", "idle_turn_s": "idle"}
    rows = [[count, title, each[key]] for key, title in kinds.items() for count, each in results.items()]
    lines = Chart(label="topics", value="seconds", series="turn", unit="s", kind="lines")
    return Section("lake-topics", "Time of a turn of the lake", ["topics", "turn", "seconds"], rows, lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, action="append")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--peer", choices=["kafka"], help="compare with Spark's connector for it")
    parser.add_argument("--backlog", type=float, action="append", default=[], metavar="GIB")
    parser.add_argument("--topics", type=int, action="append", default=[])
    parser.add_argument("--svg", type=Path, metavar="DIR", help="write the chart of --topics there")
    given = parser.parse_args()
    rows = given.rows - given.rows % QUEUES
    results: dict[str, Any] = {}
    with scratch() as directory:
        turns = {count: topic_results(Path(directory) / f"topics-{count}", count) for count in given.topics}
        results |= {f"{count} topics": each for count, each in turns.items()}
        if turns and given.svg is not None:
            (given.svg / "lake-topics.svg").write_text(drawing(chart(turns)), encoding="utf-8")
        for gibibytes in given.backlog:
            where = Path(directory) / "backlog"
            results[f"backlog of {gibibytes:g} GiB"] = backlog_results(where, gibibytes)
        for body_bytes in given.body or ([] if given.topics or given.backlog else [200]):
            where = Path(directory) / f"body-{body_bytes}"
            results[f"{body_bytes} bytes"] = (
                measure_beside(where, rows, body_bytes)
                if given.peer
                else measure(where, rows, body_bytes, with_spark=given.spark)
            )
    report("lake", results)


if __name__ == "__main__":
    main()
