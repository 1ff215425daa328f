"""Cells of `benchmarks/spark.py`: from an origin through Spark into nothing, Parquet, Delta; and a topic."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from skylark.pipelines.jobs import archive as job
from skylark.pipelines.jobs.places import Input, parse_output
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.ranges import Planner, read_ranges
from skylark.pipelines.schema import COLUMNS, arrow_schema, columns_schema

SEVEN = ["topic", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "body"]
CHOICES = {"7": SEVEN, "18": list(COLUMNS)}
STREAM_LIMITS = {"maxRowsPerTrigger": "2000000", "maxBytesPerTrigger": "4g"}
ZSTD = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
"""As `archive` writes: Spark's own level is 3."""
ROUNDS = 3
SINK_ROWS = 200_000


def rates(name: str, cell: Callable[[], int], rounds: int = ROUNDS) -> dict[str, float]:
    """Thousand rows a second, the best and the median of some rounds; told as soon as they are known."""
    load_before = os.getloadavg()[0]
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        rows = cell()
        found.append(rows / (time.perf_counter() - started) / 1000)
    found.sort()
    rate = {"best_krows": round(found[-1], 1), "median_krows": round(found[len(found) // 2], 1)}
    print(name, rate, f"load {load_before:.1f}", file=sys.stderr)
    return {**rate, "load": round(load_before, 1)}


def warm_up(spark: Any, options: Mapping[str, str]) -> None:
    """The first job of a session, which is not counted."""
    frame = spark.read.format("rocketmq").options(**options).load()
    frame.write.format("noop").mode("overwrite").save()


def batch_cells(
    spark: Any, what: str, options: Mapping[str, str], rows: int, *, parquet: Path | None
) -> dict[str, Any]:
    """A batch into nothing, and into Spark's Parquet."""
    results: dict[str, Any] = {}
    for name, columns in CHOICES.items():
        schema = columns_schema(columns)

        def frame(schema: StructType = schema) -> Any:
            return spark.read.format("rocketmq").options(**options).schema(schema).load()

        def into_noop(frame: Callable[[], Any] = frame) -> int:
            frame().write.format("noop").mode("overwrite").save()
            return rows

        def into_parquet(frame: Callable[[], Any] = frame) -> int:
            frame().write.mode("overwrite").options(**ZSTD).parquet(str(parquet))
            return rows

        into_noop()  # code for these columns is made and compiled
        results[name] = {"noop": rates(f"{what} {name} noop", into_noop)}
        if parquet is not None:
            results[name]["parquet_zstd"] = rates(f"{what} {name} parquet", into_parquet)
            shutil.rmtree(parquet)
    return results


def stream_cells(spark: Any, what: str, options: Mapping[str, str], rows: int, where: Path) -> dict[str, Any]:
    """AvailableNow in batches of two million rows, as for `archive`, which takes a gigabyte unless told."""
    results: dict[str, Any] = {}
    for name, columns in CHOICES.items():
        for sink in ("noop", "parquet"):

            def run(columns: Sequence[str] = columns, sink: str = sink) -> int:
                frame = spark.readStream.format("rocketmq").options(
                    **options, startingOffsets="earliest", **STREAM_LIMITS
                )
                writer = frame.schema(columns_schema(columns)).load().writeStream.format(sink)
                writer = writer.option("checkpointLocation", str(where / "stream" / "checkpoint"))
                writer = writer.options(**ZSTD)
                writer = writer.option("path", str(where / "stream" / "output"))
                writer.trigger(availableNow=True).start().awaitTermination()
                shutil.rmtree(where / "stream")
                return rows

            results[f"{name} -> {sink}"] = rates(f"{what} {name} AvailableNow {sink}", run)
    return results


def archive_cells(spark: Any, what: str, source: Input, rows: int, where: Path) -> dict[str, Any]:
    """`archive` to Delta, AvailableNow, in batches as large as those of `stream_cells`."""
    results: dict[str, Any] = {}
    for name, columns in CHOICES.items():
        output = parse_output(f"delta:{where / 'archive'}", columns=",".join(columns), partitionBy="dt")
        facts: dict[str, float] = {}

        def run(output: Any = output, facts: dict[str, float] = facts) -> int:
            summary = job.archive(spark, source, output, state=where / "archive-state", once=True)
            shutil.rmtree(where / "archive")
            shutil.rmtree(where / "archive-state")
            facts |= {
                "batches": summary.batches,
                "megabytes": round(summary.details["bytes"] / 1e6, 1),
            }
            assert summary.messages == rows, f"{summary.messages} rows archived instead of {rows}"
            return rows

        results[name] = {**rates(f"{what} {name} archive", run), **facts}
    return results


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

        into_noop()
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


def sink_cell(spark: Any, namesrv: str, topic: str, body_bytes: int) -> dict[str, float]:
    """Thousand rows a second into a topic, every one acknowledged."""
    df = spark.range(0, SINK_ROWS, 1, 2).selectExpr(f"lpad(cast(id as string), {body_bytes}, 'x') as body")

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
