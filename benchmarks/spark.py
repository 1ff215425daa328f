"""Rows a second out of topics and store files: the decoder alone, and through Spark into a sink.

    python -m benchmarks.spark [--rows 4000000] [--body 200] [decoder files stream broker]

Absolute rates mean something on a quiet machine only (its load is printed); ratios inside one run always do,
and are printed beside what is expected of them. The first job of a session is not counted.
"""

from __future__ import annotations

import argparse
import os
import random
import string
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks._common import report
from benchmarks._spark_archive import archive_cell, sink_cell
from benchmarks._spark_ratios import ratios
from skylark.bench.machine import free_bytes, scratch
from skylark.bench.processes import anonymous_bytes
from skylark.model.message import PutMessage, pack_host
from skylark.pipelines.decode import Decoder
from skylark.pipelines.jobs.places import Input
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.origin import Losses, QueueRange
from skylark.pipelines.record_layout import locate, record_starts
from skylark.pipelines.schema import COLUMNS, arrow_schema, columns_schema
from skylark.pipelines.source import register
from skylark.pipelines.store_files import StoreOrigin, store_reader
from skylark.pipelines.wire import Queue
from skylark.settings import StoreSettings
from skylark.store.message_store import MessageStore
from skylark.store.placed import Refused
from tests.support.pipeline_cluster import BROKER, PipelineCluster
from tests.support.record_rows import batch_of, rows_of

TOPIC = "bench"
QUEUES = 4
ROWS = {200: 4_000_000, 1024: 1_000_000}
"""By bytes of a body: so many that a job's fixed cost weighs little, so few that it ends in ten minutes."""
SEVEN = ["topic", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "body"]
STREAM_LIMITS = {"maxRowsPerTrigger": "1000000", "maxBytesPerTrigger": "4g"}
CELLS = ["decoder", "files", "stream", "broker"]
CHOICES = {"7": SEVEN, "18": list(COLUMNS)}
DISK_RESERVE_BYTES = 4 << 30
ROUNDS = 3
LOOP_ROWS = 8000


def messages(rows: int, body_bytes: int) -> Iterator[list[PutMessage]]:
    """Letters as bodies, four properties, in batches."""
    rand = random.Random(1)
    host = pack_host("127.0.0.1", 50_000)
    text = "".join(rand.choices(string.ascii_letters, k=body_bytes + 4096)).encode()
    for first in range(0, rows, 1000):
        yield [
            PutMessage(
                topic=TOPIC,
                queue_id=number % QUEUES,
                body=text[number % 4096 : number % 4096 + body_bytes],
                properties=b"TAGS\x01Tag%d\x02KEYS\x01key%08d\x02UNIQ_KEY\x017F00000100002A9F%016d\x02WAIT\x01true"
                % (number % 5, number, number),
                born_timestamp=1_700_000_000_000 + number,
                born_host=host,
            )
            for number in range(first, min(first + 1000, rows))
        ]


def fill(directory: Path, rows: int, body_bytes: int) -> None:
    """Write a store with the messages."""
    settings = StoreSettings(path=directory, commit_log_file_bytes=1 << 30, unflushed_bytes_max=1 << 40)
    store = MessageStore(settings)
    store.open()
    try:
        for batch in messages(rows, body_bytes):
            if store.refusal() is not None:  # too much waits for the disk
                store.flush_log()
            refused = [result for result in store.append(batch) if isinstance(result, Refused)]
            assert not refused, refused[0]
    finally:
        store.close()


def rates(name: str, cell: Callable[[], int], rounds: int = ROUNDS) -> dict[str, float]:
    """Thousand rows a second, the best and the median of some rounds; told as soon as they are known."""
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        rows = cell()
        found.append(rows / (time.perf_counter() - started) / 1000)
    found.sort()
    rate = {"best_krows": round(found[-1], 1), "median_krows": round(found[len(found) // 2], 1)}
    print(name, rate, f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return rate


def decoder_cells(directory: Path, rows: int) -> dict[str, Any]:
    """The decoder alone, on one core, and the loop over records beside it."""
    origin = StoreOrigin(load(SourceOptions, {"path": str(directory), "topic": TOPIC}))
    losses = Losses(load(SourceOptions, {"path": str(directory), "topic": TOPIC}))
    ranges = [QueueRange(Queue(TOPIC, "store", queue), 0, rows // QUEUES) for queue in range(QUEUES)]
    sample = b"".join(
        bytes(view)
        for view in store_reader(str(directory)).get(TOPIC, 0, 0, 32).records  # type: ignore[union-attr]
    )
    sample *= LOOP_ROWS // len(record_starts(sample))
    results: dict[str, Any] = {}
    for name, columns in CHOICES.items():
        schema = arrow_schema(columns_schema(columns))
        decoder = Decoder(schema)

        def from_files(decoder: Decoder = decoder) -> int:
            pieces = (records for item in ranges for records in origin.read(item, losses))
            return sum(decoder.batch(records, "store").num_rows for records in pieces)

        def from_answers(decoder: Decoder = decoder) -> int:
            return int(decoder.batch(locate(sample, record_starts(sample)), "b").num_rows)

        def loop(schema: Any = schema) -> int:
            return int(batch_of(rows_of(sample, "b"), schema).num_rows)

        results[name] = {
            "files": rates(f"decoder {name} files", from_files),
            "answers": rates(f"decoder {name} answers", from_answers, 9),
            "record_loop": rates(f"decoder {name} loop", loop, 3),
        }
        answers, looped = results[name]["answers"]["best_krows"], results[name]["record_loop"]["best_krows"]
        results[name]["times_the_loop"] = round(answers / looped, 1)
    return results


def session() -> Any:
    """A warm `local[2]` session."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.simplefilter("ignore")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = (
        builder.config("spark.driver.memory", "2g").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def batch_cells(
    spark: Any, what: str, options: dict[str, str], rows: int, *, parquet: Path | None
) -> dict[str, Any]:
    """A batch into nothing, and into Spark's Parquet."""
    results: dict[str, Any] = {}
    for name, columns in CHOICES.items():
        schema = columns_schema(columns)

        def frame(schema: Any = schema) -> Any:
            return spark.read.format("rocketmq").options(**options).schema(schema).load()

        def into_noop(frame: Callable[[], Any] = frame) -> int:
            frame().write.format("noop").mode("overwrite").save()
            return rows

        def into_parquet(frame: Callable[[], Any] = frame) -> int:
            frame().write.mode("overwrite").option("compression", "zstd").parquet(str(parquet))
            return rows

        into_noop()  # the first job of a session warms it up
        results[name] = {"noop": rates(f"{what} {name} noop", into_noop)}
        if parquet is not None:
            results[name]["parquet_zstd"] = rates(f"{what} {name} parquet", into_parquet, 2)
    return results


def stream_cells(spark: Any, options: dict[str, str], rows: int, where: Path) -> dict[str, Any]:
    """AvailableNow in batches of a million rows, as for `archive`, which takes a gigabyte unless told."""
    results: dict[str, Any] = {}
    for name, columns in CHOICES.items():
        for sink in ("noop", "parquet"):
            number = 0

            def run(columns: list[str] = columns, sink: str = sink, name: str = name) -> int:
                nonlocal number
                number += 1
                place = where / f"{name}-{sink}-{number}"
                frame = spark.readStream.format("rocketmq").options(
                    **options, startingOffsets="earliest", **STREAM_LIMITS
                )
                writer = frame.schema(columns_schema(columns)).load().writeStream.format(sink)
                writer = writer.option("checkpointLocation", str(place / "checkpoint"))
                writer = writer.option("compression", "zstd")
                query = writer.option("path", str(place / "output")).trigger(availableNow=True).start()
                query.awaitTermination()
                return rows

            results[f"{name} -> {sink}"] = rates(f"stream {name} {sink}", run, 2)
    return results


def trigger_cells(spark: Any, where: Path, namesrv: str) -> dict[str, float]:
    """What a trigger costs with a tiny batch, beside Spark's own rate source, in ms (median)."""
    readers = {
        "rate": spark.readStream.format("rate").option("rowsPerSecond", 5),
        "rocketmq": spark.readStream.format("rocketmq").options(
            namesrv=namesrv, topic=TOPIC, startingOffsets="earliest", maxRowsPerTrigger="5"
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


def cell(name: str) -> str:
    """`choices` of argparse would be asked about the empty list, too."""
    if name not in CELLS:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(CELLS)}")
    return name


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark")
    parser.add_argument("--rows", type=int, help="4,000,000 of 200 bytes, 1,000,000 of any other size")
    parser.add_argument("--body", type=int, action="append", help="bytes; may be given several times")
    parser.add_argument("cells", nargs="*", metavar="|".join(CELLS), type=cell, help="all if none is given")
    arguments = parser.parse_args()
    cells = set(arguments.cells or CELLS)
    results: dict[str, Any] = {"load_at_start": os.getloadavg()[0]}
    spark = session() if cells & {"files", "broker", "stream"} else None
    with scratch() as where:
        for body_bytes in arguments.body or ROWS:
            rows = arguments.rows or ROWS.get(body_bytes, min(ROWS.values()))
            needed = 2 * rows * (body_bytes + 200) + DISK_RESERVE_BYTES
            if free_bytes(where) < needed:
                results[f"{body_bytes} B"] = f"left out: {needed >> 30} GiB of disk are needed"
                continue
            results[f"{body_bytes} B"] = measure(spark, where / str(body_bytes), rows, body_bytes, cells)
    results["driver_anonymous_mib"] = anonymous_bytes() >> 20
    if spark is not None:
        spark.stop()
    report("spark", results)


def measure(spark: Any, where: Path, rows: int, body_bytes: int, cells: set[str]) -> dict[str, Any]:
    """All cells for one size of body."""
    store = where / "cluster" / "data"
    store.mkdir(parents=True)
    fill(store, rows, body_bytes)
    files = {"path": str(store), "topic": TOPIC, "brokerName": BROKER}
    results: dict[str, Any] = {"rows": rows}
    if "decoder" in cells:
        results["decoder, one core"] = decoder_cells(store, rows)
    if "files" in cells:
        results["files, batch"] = batch_cells(spark, "files", files, rows, parquet=where / "parquet")
    if "stream" in cells:
        results["files, AvailableNow"] = stream_cells(spark, files, rows, where)
        source = Input(store=store, topic=TOPIC, options=STREAM_LIMITS)
        results["files, archive"] = {
            name: [archive_cell(spark, source, where, columns) for _ in range(2)]
            for name, columns in CHOICES.items()
        }
    if "broker" in cells:
        settings: dict[str, str | int] = {
            "mappedFileSizeCommitLog": 1 << 30,
            "mappedFileSizeConsumeQueue": 6_000_000,
            "messageIndexEnable": "false",  # it would be made anew, in other sizes
        }
        with PipelineCluster(where / "cluster", settings) as cluster:
            cluster.create_topic(TOPIC, QUEUES)
            for name, more in (("bulk", {}), ("32 messages", {"bulkPulls": "false"})):
                options = {**cluster.options(TOPIC), **more}
                results[f"broker, batch, {name}"] = batch_cells(
                    spark, f"broker {name}", options, rows, parquet=None
                )
            cluster.create_topic("sunk", QUEUES)
            results["sink"] = [sink_cell(spark, cluster.namesrv, "sunk", body_bytes) for _ in range(2)]
            results["trigger_ms"] = trigger_cells(spark, where, cluster.namesrv)
    return {"ratios": ratios(results, body_bytes), **results}


if __name__ == "__main__":
    main()
