"""Run as a script, for its own JVM: source and sink over TLS with credentials; keeps what Spark shows.

Arguments: name server, topic, options as JSON, rows, directory. Below the directory it leaves plans, pages of
the user interface, answers of its REST interface, the event log and a checkpoint. Prints as JSON what it
counted.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from skylark.pipelines.jobs.session import SessionSettings, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = ("jobs/", "stages/", "environment/", "executors/", "SQL/", "StreamingQuery/", "storage/")
REST = ("jobs", "stages", "environment", "executors", "sql?details=true&planDescription=true", "storage/rdd")


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 (http)
        return str(answer.read().decode())


def keep_pages(spark: SparkSession, shown: Path) -> None:
    """Write every page that the user interface has, with those that they link to."""
    context = spark.sparkContext
    assert context.uiWebUrl is not None
    port = context.uiWebUrl.rpartition(":")[2]
    base = f"http://127.0.0.1:{port}"
    texts = {page: fetched(f"{base}/{page}") for page in PAGES}
    for page in list(texts):
        for number, link in enumerate(
            sorted(set(re.findall(r'href="(/[^"]*\?id=[^"]*)"', texts[page])))[:20]
        ):
            texts[f"{page}{number}"] = fetched(base + link.replace("&amp;", "&"))
    application = f"{base}/api/v1/applications/{context.applicationId}"
    texts |= {f"rest-{name}": fetched(f"{application}/{name}") for name in REST}
    for name, text in texts.items():
        (shown / re.sub(r"\W", "_", name)).write_text(text)


def main(namesrv: str, topic: str, options_json: str, rows: str, directory: str) -> None:
    place = Path(directory)
    shown, events = place / "shown", place / "events"
    shown.mkdir()
    events.mkdir()
    conf = {
        "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(), "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.eventLog.compress": "false",
    }  # fmt: skip
    options = {"namesrv": namesrv, "topic": topic, **json.loads(options_json)}
    with session(SessionSettings(master="local[2]", conf=conf)) as spark:
        made = spark.range(int(rows)).selectExpr("CAST(id AS STRING) AS body")
        made.write.format("rocketmq").options(**options).mode("append").save()
        read = spark.read.format("rocketmq").options(**options).load()
        with contextlib.redirect_stdout(io.StringIO()) as plan:
            read.explain(True)
            read.explain("formatted")
        (shown / "plan").write_text(plan.getvalue())
        counted = read.count()
        stream = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest").load()
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(place / "table"))
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)
        (shown / "progress").write_text(str(query.recentProgress))
        keep_pages(spark, shown)
        streamed = spark.read.parquet(str(place / "table")).count()
    print(json.dumps({"counted": counted, "streamed": streamed}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
