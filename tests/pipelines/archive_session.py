"""Run as a script: a session on a standalone cluster archives a topic while a slow task is run twice.

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

from skylark.pipelines import table
from skylark.pipelines.jobs import archive as job
from skylark.pipelines.jobs.places import Input, parse_output
from skylark.pipelines.jobs.session import probe, register

SLOW_S = 20
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


def slow_source(marks: str) -> type[table.TableSource]:
    """A sink whose first task writes its file, then takes its time; made here so that it travels by value."""

    class SlowWriter(table.TableStreamWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            from pathlib import Path as P

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            done = super().write(iterator)
            (P(marks) / f"{context.partitionId()}-{context.attemptNumber()}").touch()
            if context.partitionId() == 0 and context.attemptNumber() == 0:
                time.sleep(SLOW_S)
            return done

    class SlowSource(table.TableSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return SlowWriter(table.read_options(self.options), schema)

    return SlowSource


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
    spark.dataSource.register(slow_source(str(marks)))
    source = Input(namesrv=namesrv, topic=topic, options={"minPartitions": "4"})
    output = parse_output(f"delta:{directory}/table")
    summary = job.archive(spark, source, output, state=Path(directory) / "state", once=True)
    attempts = sorted(path.name for path in marks.iterdir())
    sys.stdout.write(json.dumps({"messages": summary.messages, "attempts": attempts}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
