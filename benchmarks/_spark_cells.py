"""Cells of `benchmarks/spark.py`: from an origin through Spark into nothing, Parquet, Delta; and a topic."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from skylark.bench.machine import ListeningProcess
from skylark.pipelines.jobs import archive as job
from skylark.pipelines.jobs.endpoints import Input, parse_output
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import Planner, read_ranges
from skylark.pipelines.schema import COLUMNS, arrow_schema, columns_schema

SEVEN = ["topic", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "body"]
CHOICES = {"7": SEVEN, "18": list(COLUMNS)}
STREAM_LIMITS = {"maxRowsPerTrigger": "2000000", "maxBytesPerTrigger": "4g"}
ZSTD = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
"""As `archive` writes: Spark's own level is 3."""
ROUNDS = 3
BATCH_ROUNDS = 5
SINK_ROWS = 200_000
TASKS = (1, 2, 4, 8)


def rates(name: str, cell: Callable[[], int], rounds: int = ROUNDS) -> dict[str, Any]:
    """Thousand rows a second of one cell."""
    return rates_in_turn({name: cell}, rounds)[name]


def rates_in_turn(
    cells: Mapping[str, Callable[[], int]], rounds: int = ROUNDS, warm_ups: int = 1
) -> dict[str, dict[str, Any]]:
    """Thousand rows a second of each cell, by round, the best and the median; told as soon as they are known.

    What is compared is measured in turn: the machine is not the same a minute later, and Java gets faster.
    Rounds before are not counted: code is made and compiled in them, and a broker reads its log.
    """
    for _ in range(warm_ups):
        for cell in cells.values():
            cell()
    found: dict[str, list[float]] = {name: [] for name in cells}
    for _ in range(rounds):
        for name, cell in cells.items():
            started = time.perf_counter()
            rows = cell()
            found[name].append(round(rows / (time.perf_counter() - started) / 1000, 1))
            print(name, found[name][-1], f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return {
        name: {"best_krows": max(each), "median_krows": statistics.median(each), "rounds_krows": each}
        for name, each in found.items()
    }


def costed(spark: Any, cell: Callable[[], int], server: str | None, costs: list[dict[str, float]]) -> int:
    """Run a cell; append what a row cost each of Spark's processes and the server, in microseconds."""
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    before = _cpu_us(jvm, server)
    rows = cell()
    after = _cpu_us(jvm, server)
    costs.append({part: (after[part] - before[part]) / rows for part in after})
    return rows


def costs_in_turn(
    spark: Any, cells: Mapping[str, Callable[[], int]], rounds: int = ROUNDS
) -> dict[str, dict[str, Any]]:
    """As `rates_in_turn`, with what a row costs Spark's processes."""
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in cells}
    costing = {name: partial(costed, spark, cell, None, costs[name]) for name, cell in cells.items()}
    found = rates_in_turn(costing, rounds)
    for name, each in costs.items():
        found[name]["cpu_us_per_row"] = {
            part: round(statistics.median(cost[part] for cost in each[1:]), 2) for part in ("jvm", "workers")
        }
    return found


def _cpu_us(jvm: int, server: str | None) -> dict[str, float]:
    """Processor time so far: Spark's JVM, its Python workers, and the server."""
    served = None if server is None else ListeningProcess(server).cpu_us()
    own, ended = _times_us(jvm)
    workers = sum(sum(_times_us(pid)) for pid in _descendants(jvm))
    return {"jvm": own, "workers": workers + ended, "server": served or 0.0}


def _times_us(pid: int) -> tuple[float, float]:
    """Processor time of a process, and of children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    tick_us = 1e6 / os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) * tick_us, (int(fields[13]) + int(fields[14])) * tick_us


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            continue
        for child in children:
            yield int(child)
            yield from _descendants(int(child))


def warm_up(spark: Any, options: Mapping[str, str]) -> None:
    """The first job of a session, which is not counted."""
    frame = spark.read.format("rocketmq").options(**options).load()
    frame.write.format("noop").mode("overwrite").save()


def batch_cells(spark: Any, origins: Mapping[str, Mapping[str, str]], rows: int) -> dict[str, Any]:
    """Batches of each origin into nothing, in turn."""
    results: dict[str, Any] = {f"{origin}, batch": {} for origin in origins}
    for name, columns in CHOICES.items():

        def into_noop(options: Mapping[str, str], columns: Sequence[str] = columns) -> int:
            _read(spark, options, columns).write.format("noop").mode("overwrite").save()
            return rows

        cells = {f"{origin}, {name}": partial(into_noop, options) for origin, options in origins.items()}
        found = rates_in_turn(cells, BATCH_ROUNDS)
        for origin in origins:
            results[f"{origin}, batch"][name] = {"noop": found[f"{origin}, {name}"]}
    return results


def parquet_cells(
    spark: Any, what: str, options: Mapping[str, str], rows: int, where: Path
) -> dict[str, Any]:
    """A batch into Spark's Parquet, by choice of columns."""
    results: dict[str, Any] = {}
    for name, columns in CHOICES.items():

        def run(columns: Sequence[str] = columns) -> int:
            writer = _read(spark, options, columns).write.mode("overwrite").options(**ZSTD)
            writer.parquet(str(where / "parquet"))
            return rows

        results[name] = rates(f"{what} parquet, {name}", run)
        shutil.rmtree(where / "parquet")
    return results


def _read(spark: Any, options: Mapping[str, str], columns: Sequence[str]) -> Any:
    return spark.read.format("rocketmq").options(**options).schema(columns_schema(columns)).load()


def stream_cells(
    spark: Any, what: str, options: Mapping[str, str], source: Input, rows: int, where: Path
) -> dict[str, Any]:
    """AvailableNow in batches of two million rows into nothing, Spark's Parquet and `archive`, in turn.

    Unless told, `archive` takes a gigabyte a batch.
    """
    streamed: dict[str, Any] = {}
    archived: dict[str, Any] = {}
    for name, columns in CHOICES.items():
        facts: dict[str, float] = {}
        cells = {
            "noop": partial(_stream, spark, options, columns, "noop", rows, where),
            "parquet": partial(_stream, spark, options, columns, "parquet", rows, where),
            "archive": partial(_archive, spark, source, columns, rows, where, facts),
        }
        found = rates_in_turn(cells)
        streamed |= {f"{name} -> {sink}": found[sink] for sink in ("noop", "parquet")}
        archived[name] = {**found["archive"], **facts}
    return {f"{what}, AvailableNow": streamed, f"{what}, archive": archived}


def _stream(
    spark: Any, options: Mapping[str, str], columns: Sequence[str], sink: str, rows: int, where: Path
) -> int:
    frame = spark.readStream.format("rocketmq").options(
        **options, startingOffsets="earliest", **STREAM_LIMITS
    )
    writer = frame.schema(columns_schema(columns)).load().writeStream.format(sink)
    writer = writer.option("checkpointLocation", str(where / "stream" / "checkpoint"))
    writer = writer.options(**ZSTD).option("path", str(where / "stream" / "output"))
    writer.trigger(availableNow=True).start().awaitTermination()
    shutil.rmtree(where / "stream")
    return rows


def _archive(
    spark: Any, source: Input, columns: Sequence[str], rows: int, where: Path, facts: dict[str, float]
) -> int:
    output = parse_output(f"delta:{where / 'archive'}", columns=",".join(columns), partitionBy="dt")
    summary = job.archive(spark, source, output, state=where / "archive-state", once=True)
    shutil.rmtree(where / "archive")
    shutil.rmtree(where / "archive-state")
    facts |= {"batches": summary.batches, "megabytes": round(summary.details["bytes"] / 1e6, 1)}
    assert summary.counts.written == rows, f"{summary.counts.written} rows archived instead of {rows}"
    return rows


def floor_cells(spark: Any, options: Mapping[str, str], rows: int) -> dict[str, Any]:
    """One batch of the store, decoded once a task and sent again and again: what no decoder can better."""
    results: dict[str, Any] = {}
    spark.dataSource.register(_same_batches_source(dict(options), rows))
    for name, columns in CHOICES.items():
        schema = columns_schema(columns)

        def into_noop(schema: StructType = schema) -> int:
            frame = spark.read.format("same-batches").schema(schema).load()
            frame.write.format("noop").mode("overwrite").save()
            return rows

        results[name] = {"noop": rates(f"floor {name} noop", into_noop)}
    return results


def _same_batches_source(options: dict[str, str], rows: int) -> type[DataSource]:
    """A class made here travels to the workers by value: this module is not installed there."""

    class Reader(DataSourceReader):
        def __init__(self, schema: StructType) -> None:
            self._schema = schema

        def partitions(self) -> list[InputPartition]:
            planner = Planner(load(SourceOptions, options))
            return [InputPartition(task) for task in planner.tasks(planner.batch_ranges())]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            left = sum(item.messages for item in partition.value)
            batches = read_ranges(load(SourceOptions, options), partition.value, arrow_schema(self._schema))
            batch = next(batches)
            while left > 0:
                yield batch.slice(0, min(left, batch.num_rows))
                left -= batch.num_rows

    class SameBatches(DataSource):
        @classmethod
        def name(cls) -> str:
            return "same-batches"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader(schema)

    return SameBatches


def growth_cells(spark: Any, options: Mapping[str, str], rows: int) -> dict[str, Any]:
    """Batches of seven columns into nothing by 1, 2, 4 and 8 tasks at once, each with a worker of its own."""

    def read(tasks: str) -> int:
        exactly = {**options, "minPartitions": tasks, "maxTasks": tasks}
        _read(spark, exactly, SEVEN).write.format("noop").mode("overwrite").save()
        return rows

    return costs_in_turn(spark, {str(tasks): partial(read, str(tasks)) for tasks in TASKS})


def rows_to_write(spark: Any, rows: int, body_bytes: int) -> Any:
    """A DataFrame of bodies in two partitions. One costs a tenth of a microsecond: `lpad` took 1.4."""
    number = "lpad(cast(id as string), 10, '0')"
    body = f"concat('{'x' * (body_bytes - 10)}', {number}) as body"
    return spark.range(0, rows, 1, 2).selectExpr(body)


def sink_cell(spark: Any, namesrv: str, topic: str, body_bytes: int) -> dict[str, float]:
    """Thousand rows a second into a topic, every one acknowledged."""
    df = rows_to_write(spark, SINK_ROWS, body_bytes)

    def run() -> int:
        df.write.format("rocketmq").mode("append").options(namesrv=namesrv, topic=topic).save()
        return SINK_ROWS

    return rates("sink", run)


def trigger_cells(spark: Any, where: Path, namesrv: str, topic: str) -> dict[str, float]:
    """What a trigger costs with a tiny batch, beside Spark's own rate source, in ms (median)."""
    readers = {
        "rate": spark.readStream.format("rate").option("rowsPerSecond", 5),
        "rocketmq": spark.readStream.format("rocketmq").options(
            namesrv=namesrv, topic=topic, startingOffsets="earliest", maxRowsPerTrigger="5"
        ),
    }
    results = {}
    for name, reader in readers.items():
        writer = reader.load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(where / f"trigger-{name}")).start()
        deadline = time.monotonic() + 60
        while len(query.recentProgress) < 25 and time.monotonic() < deadline:
            time.sleep(0.1)
        durations = sorted(
            progress["durationMs"]["triggerExecution"]
            for progress in query.recentProgress[5:]
            if progress["numInputRows"]
        )
        query.stop()
        results[name] = float(durations[len(durations) // 2]) if durations else float("nan")
    return results
