"""Rows a second out of topics and store files: the decoder alone, and through Spark into a sink.

    python -m benchmarks.spark [--rows 1000000] [--body 200] [--body 1024] [--conf NAME=VALUE] [CELL ...]
    python -m benchmarks.spark --peer kafka [--rows 1000000] [--body 200] [--body 1024] [CELL ...]

Cells, all unless some are named: `decoder` alone, without Spark; `floor`, one decoded batch sent to Spark
again and again; `files` and `broker`, batches into nothing and into Spark's Parquet; `stream` and
`broker-stream`, the same by AvailableNow, and `archive` to Delta. Without `--rows` all of them take half an
hour, with a million some minutes. `growth` is one to eight tasks at once, only if it is named.

Absolute rates mean something on a quiet machine only (its load is printed). What is compared is measured in
turn; the median of the ratios by round is printed beside what is expected of it, with the lowest and the
highest. The first job of a session is not counted.

With `--peer kafka` the cells are others, each beside Spark's source and sink for Kafka, of the same rows:
`batch` into nothing, `parquet`, `available-now`, `write`, and `live`, micro-batches of 20,000 rows a second.
Results of some cells each are joined by `scripts.performance_page`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import string
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks import _spark_peer as peer
from benchmarks._common import report
from benchmarks._spark_cells import (
    CHOICES,
    STREAM_LIMITS,
    TASKS,
    batch_cells,
    floor_cells,
    growth_cells,
    parquet_cells,
    rates,
    sink_cell,
    stream_cells,
    trigger_cells,
    warm_up,
)
from benchmarks._spark_ratios import ratios
from skylark.arrow.decoder import Decoder
from skylark.arrow.record_layout import locate, record_starts
from skylark.bench.machine import anonymous_bytes, free_bytes, scratch
from skylark.model.message import PutMessage, pack_host
from skylark.pipelines.jobs.endpoints import Input
from skylark.pipelines.jobs.session import SessionSettings, session
from skylark.pipelines.message_source import LossPolicy, OffsetRange
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import keep_freed_memory
from skylark.pipelines.schema import arrow_schema, columns_schema
from skylark.pipelines.store_source import StoreSource, shared_reader
from skylark.protocol.bodies import MessageQueue
from skylark.settings import StoreSettings
from skylark.store.append_result import Refused
from skylark.store.message_store import MessageStore
from tests.support.pipeline_cluster import BROKER, PipelineCluster
from tests.support.record_rows import batch_of, rows_of

TOPIC = "bench"
QUEUES = 4
ROWS = {200: 4_000_000, 1024: 2_000_000}
"""By bytes of a body: so many that a job's fixed cost weighs little, so few that it ends in ten minutes."""
CELLS = ["decoder", "floor", "files", "stream", "broker", "broker-stream", "growth"]
QUIET_LOAD_MAX = 1.0
DISK_RESERVE_BYTES = 4 << 30
LOOP_ROWS = 8000
BROKER_SETTINGS: dict[str, str | int] = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "messageIndexEnable": "false",  # it would be made anew, in other sizes
}


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


def decoder_cells(directory: Path, rows: int) -> dict[str, Any]:
    """The decoder alone, on one core, and the loop over records beside it. Memory is as in a worker."""
    keep_freed_memory()
    origin = StoreSource(load(SourceOptions, {"path": str(directory), "topic": TOPIC}))
    losses = LossPolicy(load(SourceOptions, {"path": str(directory), "topic": TOPIC}))
    ranges = [OffsetRange(MessageQueue(TOPIC, "store", queue), 0, rows // QUEUES) for queue in range(QUEUES)]
    sample = b"".join(
        bytes(view)
        for view in shared_reader(str(directory)).get(TOPIC, 0, 0, 32).records  # type: ignore[union-attr]
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark")
    parser.add_argument("--rows", type=int, help="4,000,000 of 200 bytes, 2,000,000 of any other size")
    parser.add_argument(
        "--body", type=int, action="append", help="bytes; may be given several times; 200 and 1024"
    )
    parser.add_argument("--conf", action="append", default=[], help="NAME=VALUE, a setting of the session")
    parser.add_argument("--peer", choices=["kafka"], help="compare with Spark's connector for it")
    parser.add_argument(
        "--seconds", type=float, default=peer.LIVE_S, help="of micro-batches, with --peer, for each round"
    )
    parser.add_argument("cells", nargs="*", metavar="CELL", help="all if none is given")
    arguments = parser.parse_args()
    known = peer.CELLS if arguments.peer else CELLS
    if unknown := [name for name in arguments.cells if name not in known]:
        parser.error(f"{unknown[0]} is none of {', '.join(known)}")
    cells = set(arguments.cells) or set(known) - {"growth"}
    load_at_start = os.getloadavg()[0]
    results: dict[str, Any] = {
        "load_at_start": round(load_at_start, 2),
        "is_quiet": load_at_start < QUIET_LOAD_MAX,
    }
    warnings.simplefilter("ignore")
    conf = dict(setting.split("=", 1) for setting in arguments.conf)
    if arguments.peer:
        conf |= peer.session_settings(peer.connector())
        results["conditions"] = peer.conditions()
    slots = max(TASKS) if "growth" in cells else 2
    settings = SessionSettings(master=f"local[{slots}]", name="benchmark", conf=conf)
    with scratch() as where, session(settings) if cells - {"decoder"} else nullcontext() as spark:
        if spark is not None:
            results["conf"] = dict(spark.sparkContext.getConf().getAll())
        for body_bytes in arguments.body or ROWS:
            rows = arguments.rows or ROWS.get(body_bytes, min(ROWS.values()))
            needed = 2 * rows * (body_bytes + 200) + DISK_RESERVE_BYTES
            if free_bytes(where) < needed:
                results[f"{body_bytes} B"] = f"left out: {needed >> 30} GiB of disk are needed"
                continue
            place = where / str(body_bytes)
            if arguments.peer:
                seconds = arguments.seconds
                results[f"{body_bytes} B"] = measure_beside(spark, place, rows, body_bytes, cells, seconds)
            else:
                results[f"{body_bytes} B"] = measure(spark, place, rows, body_bytes, cells)
        results["driver_anonymous_mib"] = anonymous_bytes() >> 20
    report("spark-kafka" if arguments.peer else "spark", results)


def measure(spark: Any, where: Path, rows: int, body_bytes: int, cells: set[str]) -> dict[str, Any]:
    """All cells for one size of body."""
    store = where / "cluster" / "data"
    store.mkdir(parents=True)
    fill(store, rows, body_bytes)
    files = {"path": str(store), "topic": TOPIC, "brokerName": BROKER}
    results: dict[str, Any] = {"rows": rows}
    if "decoder" in cells:
        results["decoder, one core"] = decoder_cells(store, rows)
    if spark is not None:
        warm_up(spark, files)
    if "floor" in cells:
        results["floor"] = floor_cells(spark, files, rows)
    if "files" in cells:
        results["files, batch"] = batch_cells(spark, {"files": files}, rows)["files, batch"]
        _add_parquet(results, spark, "files", files, rows, where)
    if "growth" in cells:
        results["growth"] = growth_cells(spark, files, rows)
    if "stream" in cells:
        source = Input(store=store, topic=TOPIC, options=STREAM_LIMITS)
        results |= stream_cells(spark, "files", files, source, rows, where)
    if cells & {"broker", "broker-stream"}:
        with PipelineCluster(where / "cluster", BROKER_SETTINGS) as cluster:
            cluster.create_topic(TOPIC, QUEUES)
            results |= broker_results(spark, cluster, files, where, rows, body_bytes, cells)
    shutil.rmtree(where)
    return {"ratios": ratios(results, body_bytes), **results}


def measure_beside(
    spark: Any, where: Path, rows: int, body_bytes: int, cells: set[str], seconds: float
) -> dict[str, Any]:
    """Cells beside Kafka for one size of body."""
    store = where / "cluster" / "data"
    store.mkdir(parents=True)
    fill(store, rows, body_bytes)
    files = {"path": str(store), "topic": TOPIC, "brokerName": BROKER}
    with (
        PipelineCluster(where / "cluster", BROKER_SETTINGS) as cluster,
        peer.running_kafka(where / "kafka") as (node, driver),
    ):
        for topic in (TOPIC, "sunk"):
            cluster.create_topic(topic, QUEUES)
            driver.call("create", topic, QUEUES, timeout_s=peer.DRIVER_TIMEOUT_S)
        peer.copy_rows(spark, files, node.address, TOPIC)
        sink = {"namesrv": cluster.namesrv, "topic": "sunk"}
        ours = peer.our_origins(spark, files, cluster.options(TOPIC), sink, cluster.servers.broker)
        origins = {"kafka": peer.kafka_origin(spark, node.address, TOPIC, "sunk"), **ours}
        results = peer.compared_cells(spark, origins, cells, rows, body_bytes, where / "output")
        if peer.LIVE in cells:
            cluster.create_topic(peer.LIVE, QUEUES)
            driver.call("create", peer.LIVE, QUEUES, timeout_s=peer.DRIVER_TIMEOUT_S)
            results["continuous"] = peer.live_cells(
                origins, driver, cluster.namesrv, body_bytes, where / "output", seconds
            )
    shutil.rmtree(where)
    return {"rows": rows, **results}


def broker_results(
    spark: Any,
    cluster: PipelineCluster,
    files: dict[str, str],
    where: Path,
    rows: int,
    body_bytes: int,
    cells: set[str],
) -> dict[str, Any]:
    """What needs a broker."""
    options = cluster.options(TOPIC)
    results: dict[str, Any] = {}
    if "broker" in cells:
        origins = {
            "files beside the broker": files,
            "broker, bulk": options,
            "broker, 32 messages": {**options, "bulkPulls": "false"},
        }
        results |= batch_cells(spark, origins, rows)
        _add_parquet(results, spark, "broker, bulk", options, rows, where)
        cluster.create_topic("sunk", QUEUES)
        results["sink"] = sink_cell(spark, cluster.namesrv, "sunk", body_bytes)
        results["trigger_ms"] = trigger_cells(spark, where, cluster.namesrv, TOPIC)
    if "broker-stream" in cells:
        source = Input(namesrv=cluster.namesrv, topic=TOPIC, options=STREAM_LIMITS)
        results |= stream_cells(spark, "broker", options, source, rows, where)
    return results


def _add_parquet(
    results: dict[str, Any], spark: Any, origin: str, options: dict[str, str], rows: int, where: Path
) -> None:
    for columns, rate in parquet_cells(spark, origin, options, rows, where).items():
        results[f"{origin}, batch"][columns]["parquet_zstd"] = rate


if __name__ == "__main__":
    main()
