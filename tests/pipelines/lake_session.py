"""Run as a script: sends to a topic and archives it, again and again, the last time with a lost state.

Arguments: name server, topic, table, directory. Prints what it saw as JSON. A process of its own, because
Spark's workers have the environment of its JVM.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skylark import Message, Producer
from skylark.pipelines.jobs import archive as job
from skylark.pipelines.jobs.endpoints import Input, parse_output
from skylark.pipelines.jobs.replay import ReplayRange, read_archive
from skylark.pipelines.jobs.session import SessionSettings, session
from skylark.pipelines.jobs.sql import query


def send(namesrv: str, topic: str, count: int) -> None:
    with Producer(namesrv=namesrv, group="lake") as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number))


def main(namesrv: str, topic: str, table: str, directory: str) -> None:
    output, state = parse_output(table), Path(directory)
    log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{state}/events"}
    (state / "events").mkdir(parents=True)
    source = Input(namesrv=namesrv, topic=topic)
    rest = Input(namesrv=namesrv, topic=topic, start="table")
    with session(SessionSettings(master="local[2,4]", conf=log)) as spark:
        written = []
        runs = (("state", source, 300), ("state", source, 150), ("state", source, 0), ("new-state", rest, 30))
        for name, start, count in runs:
            send(namesrv, topic, count)
            written.append(job.archive(spark, start, output, state=state / name, once=True).counts.written)
        found = query(
            spark, "select queueId, queueOffset, topic from raw", archives={"raw": output}
        ).collect()
        nothing = ReplayRange.parse("2020-01-01", "2020-01-02", None, 0)
        result = {
            "written": written,
            "rows": sorted([row[0], row[1]] for row in found),
            "topics": sorted({row[2] for row in found}),
            "of_2020": read_archive(spark, output, topic, nothing).count(),
            "of_topic": read_archive(spark, output, topic, ReplayRange()).count(),
        }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
