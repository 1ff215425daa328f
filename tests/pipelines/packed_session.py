"""Run as a script, by the Python of an environment that can be packed: a session with `pack`.

Arguments: master, name server, topic, directory. Prints what it saw as JSON, with where workers import from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skylark.pipelines.jobs import queries
from skylark.pipelines.jobs.session import SessionSettings, session

HOME = sys.base_prefix
"""The driver's Python, which workers may not have."""


def where(_: int) -> list[str]:
    """Where a worker finds its interpreter, modules, the package and native code."""
    import ssl

    import pyarrow

    import skylark

    maps = Path("/proc/self/maps").read_text().split()
    drivers = sorted({word for word in maps if word.startswith(HOME)})
    return [sys.executable, ssl.__file__, skylark.__file__, pyarrow.__file__, *drivers]


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
        places = spark.sparkContext.parallelize(range(4), 4).flatMap(where).distinct().collect()
    sys.stdout.write(json.dumps({"rows": rows, "streamed": streamed, "places": places}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
