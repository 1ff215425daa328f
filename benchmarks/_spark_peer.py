"""Cells of `benchmarks/spark.py --peer kafka`: our source and sink beside Spark's own for Kafka.

Of the connector one part, the provider of tokens for security, cannot be had from every registry: three
classes of `peers/drivers/spark`, without security, stand in for it. They serve for measuring only.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark

from benchmarks._spark_cells import ROUNDS, SEVEN, STREAM_LIMITS, ZSTD, costed, rates_in_turn, rows_to_write
from benchmarks.peers import kafka
from benchmarks.peers.java import (
    DRIVERS,
    Classpath,
    JavaLoadDriver,
    compile_sources,
    driver_classpath,
    fetch_jars,
)
from skylark.arrow.batch_elements import encode_elements
from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.row_sender import PlainRows, RowSender
from skylark.pipelines.schema import columns_schema

CONNECTOR = DRIVERS / "pom-spark-kafka.xml"
CONNECTOR_VERSION = "4.2.0"
STAND_INS = sorted((DRIVERS / "spark").glob("*.java"))
LIVE = "live"
CELLS = {
    "batch": "batch, noop",
    "parquet": "batch, Parquet",
    "available-now": "AvailableNow, noop",
    "write": "write",
    LIVE: "continuous",
}
"""Names on the command line, and in the result."""
WARM_UPS = 2
HEAP_MB = 1024
WRITE_ROWS = 1_000_000
DRIVER_TIMEOUT_S = 600
LIVE_RATE = 20_000
LIVE_S = 20
LIVE_BURST_S = 0.01
EXPECTED = {
    "batch": {"files": 2.0, "broker": 1.5},
    "available-now": {"files": 1.8, "broker": 1.3},
    "write": {"broker": 1.2},
}
"""Times Kafka's rate."""


def connector() -> Classpath:
    """The connector's jars and the stand-ins, fetched and compiled on first use. Raises MissingToolchain."""
    return compile_sources(CONNECTOR, STAND_INS, libraries=Path(pyspark.__file__).parent / "jars")


def session_settings(classpath: Classpath) -> dict[str, str]:
    """Settings of a session that has the connector."""
    return {"spark.driver.extraClassPath": str(classpath)}


def conditions() -> dict[str, Any]:
    names = ", ".join(source.stem for source in STAND_INS)
    return {
        "peer": f"spark-sql-kafka-0-10 {CONNECTOR_VERSION} on PySpark {pyspark.__version__}, "
        f"Kafka {kafka.VERSION}",
        "stand_ins": f"{names}: without security, in place of spark-token-provider-kafka-0-10",
    }


@contextmanager
def running_kafka(home: Path) -> Iterator[tuple[kafka.KafkaServer, JavaLoadDriver]]:
    """A node of Kafka, and its client."""
    settings: dict[str, str | int] = {"log.segment.bytes": 1 << 30}
    server = kafka.KafkaServer(fetch_jars(kafka.POM), home, heap_mb=HEAP_MB, settings=settings)
    server.format()
    classpath = driver_classpath(kafka.POM, "KafkaLoad")
    with server, JavaLoadDriver(classpath, "KafkaLoad", server.address, home) as driver:
        yield server, driver


class Origin:
    """One side of the comparison: how Spark reads and writes there."""

    def __init__(
        self,
        spark: Any,
        *,
        kind: str,
        reading: Mapping[str, str],
        limits: Mapping[str, str],
        writing: Mapping[str, str] | None,
        columns: list[str] | None,
        body: str,
        stored_at: str,
        server: str | None,
    ) -> None:
        self._spark = spark
        self._kind = kind
        self._reading = dict(reading)
        self._limits = dict(limits)
        self.writing = writing
        self._columns = columns
        self._body = body
        self._stored_at = stored_at
        self.server = server

    def _reader(self, reader: Any) -> Any:
        reader = reader.format(self._kind).options(**self._reading)
        return reader if self._columns is None else reader.schema(columns_schema(self._columns))

    def batch(self, rows: int) -> int:
        self._reader(self._spark.read).load().write.format("noop").mode("overwrite").save()
        return rows

    def parquet(self, rows: int, where: Path) -> int:
        frame = self._reader(self._spark.read).load()
        frame.write.mode("overwrite").options(**ZSTD).parquet(str(where / "parquet"))
        return rows

    def available_now(self, rows: int, where: Path) -> int:
        reader = self._reader(self._spark.readStream).options(**self._limits)
        writer = reader.option("startingOffsets", "earliest").load().writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(where / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
        shutil.rmtree(where / "checkpoint")
        return rows

    def write(self, frame: Any, rows: int) -> int:
        assert self.writing is not None
        frame.withColumnRenamed("body", self._body).write.format(self._kind).mode("append").options(
            **self.writing
        ).save()
        return rows

    def delays_ms(
        self, options: Mapping[str, str], where: Path, feed: Callable[[], None], warm_up_s: float
    ) -> list[float]:
        """From the time a row was stored until the batch function has it, of a topic that is being fed."""
        delays: list[tuple[float, np.ndarray[Any, Any]]] = []
        asked = f"unix_millis({self._stored_at}) as stored_ms"

        def note(frame: Any, _: int) -> None:
            stored = np.asarray(frame.selectExpr(asked).toArrow().column(0))
            delays.append((time.monotonic(), time.time() * 1000 - stored))

        reader = self._spark.readStream.format(self._kind).options(**{**self._reading, **options})
        if self._columns is not None:
            reader = reader.schema(columns_schema(self._columns))
        writer = reader.option("startingOffsets", "latest").load().writeStream.foreachBatch(note)
        query = writer.option("checkpointLocation", str(where / "checkpoint")).start()
        started = time.monotonic()
        try:
            feed()
        finally:
            query.stop()
            shutil.rmtree(where / "checkpoint")
        warm = [each for moment, each in delays if moment - started > warm_up_s]
        return [float(value) for each in warm for value in each]


def our_origins(
    spark: Any, files: Mapping[str, str], broker: Mapping[str, str], sink: Mapping[str, str], address: str
) -> dict[str, Origin]:
    ours: dict[str, Any] = {
        "kind": "rocketmq",
        "limits": STREAM_LIMITS,
        "columns": SEVEN,
        "body": "body",
        "stored_at": "storeTimestamp",
    }
    return {
        "files": Origin(spark, reading=files, writing=None, server=None, **ours),
        "broker": Origin(spark, reading=broker, writing=sink, server=address, **ours),
    }


def kafka_origin(spark: Any, address: str, topic: str, sunk: str) -> Origin:
    servers = {"kafka.bootstrap.servers": address}
    return Origin(
        spark,
        kind="kafka",
        reading={**servers, "subscribe": topic},
        limits={"maxOffsetsPerTrigger": STREAM_LIMITS["maxRowsPerTrigger"]},
        writing={**servers, "topic": sunk},
        columns=None,  # always seven: key, value, topic, partition, offset, timestamp and its type
        body="value",
        stored_at="timestamp",
        server=address,
    )


def copy_rows(spark: Any, files: Mapping[str, str], address: str, topic: str) -> None:
    """Give Kafka the same bodies and keys."""
    frame = spark.read.format("rocketmq").options(**files).load().selectExpr("keys as key", "body as value")
    frame.write.format("kafka").options(**{"kafka.bootstrap.servers": address, "topic": topic}).save()


def compared_cells(
    spark: Any, origins: Mapping[str, Origin], wanted: set[str], rows: int, body_bytes: int, where: Path
) -> dict[str, Any]:
    """The cells that have a rate, each side in turn, with the processor time of every process."""
    where.mkdir(parents=True, exist_ok=True)
    written = min(rows, WRITE_ROWS)
    df = rows_to_write(spark, written, body_bytes)
    kinds: dict[str, Mapping[str, Callable[[], int]]] = {
        "batch": {name: partial(origin.batch, rows) for name, origin in origins.items()},
        "parquet": {name: partial(origin.parquet, rows, where) for name, origin in origins.items()},
        "available-now": {
            name: partial(origin.available_now, rows, where) for name, origin in origins.items()
        },
        "write": {
            name: partial(origin.write, df, written)
            for name, origin in origins.items()
            if origin.writing is not None
        },
    }
    results: dict[str, Any] = {}
    for kind, cells in kinds.items():
        if kind not in wanted:
            continue
        print(kind, file=sys.stderr)
        costs: dict[str, list[dict[str, float]]] = {name: [] for name in cells}
        timed = {
            name: partial(costed, spark, cell, origins[name].server, costs[name])
            for name, cell in cells.items()
        }
        found = rates_in_turn(timed, ROUNDS, WARM_UPS)
        for name in cells:
            found[name]["cpu_us_per_row"] = {
                part: round(statistics.median(each[part] for each in costs[name][WARM_UPS:]), 2)
                for part in costs[name][0]
            }
        results[CELLS[kind]] = {**found, "times_kafka": _times_kafka(kind, found)}
    return results


def _times_kafka(kind: str, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in found.keys() - {"kafka"}:
        pairs = zip(found[name]["rounds_krows"], found["kafka"]["rounds_krows"], strict=True)
        each = sorted(ours / theirs for ours, theirs in pairs)
        value = statistics.median(each)
        results[name] = {"value": round(value, 2), "lowest": round(each[0], 2), "highest": round(each[-1], 2)}
        costs = {side: sum(found[side]["cpu_us_per_row"].values()) for side in (name, "kafka")}
        # Hardly changed by what else the machine does.
        results[name]["kafka_processor_time"] = round(costs["kafka"] / costs[name], 2)
        if (expected := EXPECTED.get(kind, {}).get(name)) is not None:
            results[name] |= {"expected": f">= {expected}", "met": value >= expected}
    return results


def live_cells(
    origins: Mapping[str, Origin],
    driver: JavaLoadDriver,
    namesrv: str,
    body_bytes: int,
    where: Path,
    seconds: float,
) -> dict[str, Any]:
    """Micro-batches as fast as they go, while 20,000 rows a second are stored, each side in turn."""
    where.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, float]]] = {"broker": [], "kafka": []}
    warm_up_s = seconds / 2
    feeds: dict[str, tuple[dict[str, str], Callable[[], None]]] = {
        "broker": ({"topic": LIVE}, lambda: _feed(namesrv, LIVE, body_bytes, warm_up_s + seconds)),
        "kafka": (
            {"subscribe": LIVE},
            lambda: _drop(
                driver.call(
                    "pace", LIVE, LIVE_RATE, body_bytes, warm_up_s + seconds, timeout_s=DRIVER_TIMEOUT_S
                )
            ),
        ),
    }
    for _ in range(ROUNDS):
        for name, (options, feed) in feeds.items():
            delays = origins[name].delays_ms(options, where, feed, warm_up_s)
            p50, p99 = (round(float(np.percentile(delays, share)), 1) for share in (50, 99))
            found[name].append({"p50_ms": p50, "p99_ms": p99, "rows": len(delays)})
            print("live", name, found[name][-1], file=sys.stderr)
    return {
        name: {
            "rate": LIVE_RATE,
            "p50_ms": statistics.median(each["p50_ms"] for each in rounds),
            "p99_ms": statistics.median(each["p99_ms"] for each in rounds),
            "rounds": rounds,
        }
        for name, rounds in found.items()
    }


def _drop(_: object) -> None:
    pass


def _feed(namesrv: str, topic: str, body_bytes: int, seconds: float) -> None:
    """Send at the rate from a thread, in bursts of a hundredth of a second."""

    def send() -> None:
        cluster = ClusterClient(namesrv)
        sender = RowSender(cluster, group="feed")
        rows = round(LIVE_RATE * LIVE_BURST_S)
        bodies = pa.array([b"x" * body_bytes] * rows, pa.binary())
        started = time.monotonic()
        for burst in range(round(seconds / LIVE_BURST_S)):
            time.sleep(max(started + burst * LIVE_BURST_S - time.monotonic(), 0))
            elements = encode_elements(bodies, sender.next_unique_keys(rows))
            sender.send_encoded(PlainRows(topic, elements, range(rows), rows * body_bytes))
        sender.finish()
        cluster.close()

    thread = threading.Thread(target=send, name="feed")
    thread.start()
    thread.join()
