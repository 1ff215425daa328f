"""Run as a script: a session on a standalone cluster reads a topic, in batch and as a stream.

Arguments: master, name server, topic, directory. Prints what it saw as JSON, with the hosts that ran tasks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from skylark.pipelines.jobs import running
from skylark.pipelines.source import register


def main(master: str, namesrv: str, topic: str, directory: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    options = {"namesrv": namesrv, "topic": topic, "minPartitions": "4"}
    rows = spark.read.format("rocketmq").options(**options).load().count()
    output = str(Path(directory) / "output")
    stream = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest").load()
    writer = stream.writeStream.format("parquet").option("path", output)
    running.run("copy", {"copy": writer}, state=Path(directory), once=True, trigger="1s")
    streamed = spark.read.parquet(output).count()
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    sys.stdout.write(json.dumps({"rows": rows, "streamed": streamed, "executors": executors}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
