"""Run as a script: a Spark Connect session reads a topic, in batch and as a stream with a listener, archives
it, and counts what other jobs do.

Arguments: server, name server, topic, directory. Prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from skylark.pipelines.jobs import queries
from skylark.pipelines.jobs.archive import archive
from skylark.pipelines.jobs.endpoints import Input, parse_output
from skylark.pipelines.jobs.etl import etl
from skylark.pipelines.jobs.replay import ReplayRange, replay
from skylark.pipelines.jobs.session import SessionSettings, session
from skylark.pipelines.listener import LagListener


def main(remote: str, namesrv: str, topic: str, directory: str) -> None:
    # What a server does not let a client set, such as the driver's memory, is not even tried.
    warnings.filterwarnings("error", message=".*CANNOT_MODIFY_CONFIG")
    with session(SessionSettings(remote=remote)) as spark:
        found = look(spark, namesrv, topic, Path(directory))
    sys.stdout.write(json.dumps(found) + "\n")


def look(spark: SparkSession, namesrv: str, topic: str, directory: Path) -> dict[str, Any]:
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
    output = str(directory / "output")
    writer = stream.writeStream.format("parquet").option("path", output)
    queries.run("copy", {"copy": writer}, state=directory, once=True, trigger="1s")
    streamed = spark.read.parquet(output).count()
    listener.detach(spark)
    source, lake = Input(namesrv=namesrv, topic=topic), parse_output(f"delta:{directory}/lake")
    archived = archive(spark, source, lake, state=directory / "archive", once=True)
    good = parse_output(f"delta:{directory}/good")
    decoded = etl(spark, source, good, state=directory / "etl", schema="n int", where="n < 3", once=True)
    copied = replay(
        spark, source.read(spark), parse_output(f"topic:{topic}"), ReplayRange(where="1 = 2"), namesrv=namesrv
    )
    return {
        "etl": msgspec.structs.astuple(decoded.counts),
        "replay": msgspec.structs.astuple(copied.counts),
        "rows": rows,
        "streamed": streamed,
        "columns": stream.columns,
        "archived": archived.counts.written,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
