"""Run as a script: a session on a standalone cluster reads a topic, in batch and as a stream, archives it and
copies it; slow tasks are run twice.

Arguments: master, name server, topic, directory. Prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from skylark.pipelines.jobs import archive as job
from skylark.pipelines.jobs import queries
from skylark.pipelines.jobs.endpoints import Input, parse_output
from skylark.pipelines.jobs.session import probe, register
from skylark.pipelines.lake import table_sink
from skylark.pipelines.sink import BatchSink
from skylark.pipelines.source import RocketMQSource

SLOW_S = 20
COPY_TIMEOUT_S = 200
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
}


def slow_sources(marks: str) -> list[type[DataSource]]:
    """Sinks whose first task does its work, then takes its time until a copy of it has done the same and won.

    Made here so that they travel by value.
    """

    def take_time(name: str) -> None:
        from pathlib import Path as P

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        (P(marks) / f"{name}-{partition}-{attempt}").touch()
        if partition != 0:
            return
        copy, deadline = P(marks) / f"{name}-0-{int(attempt == 0)}", time.monotonic() + COPY_TIMEOUT_S
        while not copy.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        if attempt == 0:
            time.sleep(SLOW_S)

    class SlowWriter(table_sink.TableStreamWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            done = super().write(iterator)
            take_time("archive")
            return done

    class SlowTable(table_sink.TableSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return SlowWriter(table_sink.read_options(self.options), schema)

    class SlowSink(BatchSink):
        def write(self, iterator: Iterator[Any]) -> Any:
            done = super().write(iterator)
            take_time("copy")
            return done

    class SlowTopic(RocketMQSource):
        def writer(self, schema: Any, overwrite: bool) -> Any:
            return SlowSink(dict(self.options), schema, overwrite)

    return [SlowTable, SlowTopic]


def stream(spark: SparkSession, source: Input, directory: Path) -> int:
    """How many rows a stream writes."""
    output = str(directory / "output")
    writer = source.read_stream(spark).writeStream.format("parquet").option("path", output)
    queries.run("copy", {"copy": writer}, state=directory, once=True, trigger="1s")
    return spark.read.parquet(output).count()


def main(master: str, namesrv: str, topic: str, directory: str) -> None:
    builder = SparkSession.builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    probe(spark)
    marks = Path(directory) / "marks"
    marks.mkdir()
    for slow in slow_sources(str(marks)):
        spark.dataSource.register(slow)
    source = Input(namesrv=namesrv, topic=topic, options={"minPartitions": "4"})
    rows, streamed = source.read(spark).count(), stream(spark, source, Path(directory))
    output = parse_output(f"delta:{directory}/table")
    summary = job.archive(spark, source, output, state=Path(directory) / "state", once=True)
    target = {"namesrv": namesrv, "topic": f"{topic}_copy", "exactlyOnce": "keys"}
    source.read(spark).write.format("rocketmq").mode("append").options(**target).save()
    found = {
        "rows": rows,
        "streamed": streamed,
        "messages": summary.counts.written,
        "attempts": sorted(path.name for path in marks.iterdir()),
        "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
    }
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
