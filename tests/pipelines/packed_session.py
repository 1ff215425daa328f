"""Run as a script, by the Python of an environment that can be packed: a session with `pack`.

Arguments: master, name server, topic, directory. Prints what it saw as JSON, with where workers import from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skylark.pipelines.jobs import queries
from skylark.pipelines.jobs.session import SessionSettings, session


def where(_: int) -> str:
    """Where a worker finds the package, and native code."""
    import pyarrow

    import skylark

    return f"{sys.executable} {skylark.__file__} {pyarrow.__file__}"


def main(master: str, namesrv: str, topic: str, directory: str) -> None:
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
    }
    with session(SessionSettings(master=master, pack=True, conf=conf)) as spark:
        options = {"namesrv": namesrv, "topic": topic, "minPartitions": "2"}
        rows = spark.read.format("rocketmq").options(**options).load().count()
        output = str(Path(directory) / "output")
        stream = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest").load()
        writer = stream.writeStream.format("parquet").option("path", output)
        queries.run("copy", {"copy": writer}, state=Path(directory), once=True, trigger="1s")
        streamed = spark.read.parquet(output).count()
        places = spark.sparkContext.parallelize(range(4), 4).map(where).distinct().collect()
    sys.stdout.write(json.dumps({"rows": rows, "streamed": streamed, "places": places}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
