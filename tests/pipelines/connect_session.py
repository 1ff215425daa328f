"""Run as a script: a Spark Connect session reads a topic, in batch and as a stream with a listener.

Arguments: server, name server, topic, directory. Prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from skylark.pipelines.jobs import running
from skylark.pipelines.listener import LagListener
from skylark.pipelines.source import register


def main(remote: str, namesrv: str, topic: str, directory: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    register(spark)
    options = {"namesrv": namesrv, "topic": topic}
    schema = "queueOffset BIGINT, tags STRING"
    rows = spark.read.format("rocketmq").options(**options).schema(schema).load().count()
    listener = LagListener(namesrv, "connect-listener")
    spark.streams.addListener(listener)
    stream = (
        spark.readStream.format("rocketmq")
        .options(**options, startingOffsets="earliest", maxRowsPerTrigger="20", groupId="connect-reader")
        .schema(schema)
        .load()
    )
    output = str(Path(directory) / "output")
    writer = stream.writeStream.format("parquet").option("path", output)
    running.run("copy", {"copy": writer}, state=Path(directory), once=True, trigger="1s")
    streamed = spark.read.parquet(output).count()
    listener.detach(spark)
    sys.stdout.write(json.dumps({"rows": rows, "streamed": streamed, "columns": stream.columns}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
