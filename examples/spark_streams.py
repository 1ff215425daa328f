"""Streams with state over topics: sessions, late data, a join, a foreach sink, scores, and state of your own.

    NAMESRV_ADDR=127.0.0.1:9876 python examples/spark_streams.py

Needs a broker and Java. Every query reads to the end of its topic and stops; without `availableNow` it would
go on. Start it twice with the same checkpoint, and it resumes.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from skylark.pipelines.jobs.session import register

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
FOLDER = tempfile.TemporaryDirectory()
STATE_IN_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
builder = builder.config("spark.ui.showConsoleProgress", "false")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
register(spark)


def send(topic: str, rows: Iterable[dict[str, Any]]) -> None:
    """JSON messages, one for each row."""
    frame = spark.createDataFrame([(json.dumps(row),) for row in rows], "body string")
    frame.write.format("rocketmq").mode("append").options(namesrv=NAMESRV, topic=topic).save()


def events(topic: str, fields: str) -> DataFrame:
    """A topic as a stream of its JSON fields, the first of which is the event's time."""
    options = {"namesrv": NAMESRV, "topic": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("rocketmq").options(**options, decode="json", decodeSchema=fields).load()
    return stream.select("value.*").withWatermark(fields.split(maxsplit=1)[0], "10 minutes")


def run(name: str, frame: DataFrame, mode: str = "append") -> tuple[list[Row], StreamingQuery]:
    """Read to the end; return the rows of all batches, and the query."""
    rows: list[Row] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    writer = writer.outputMode(mode).option("checkpointLocation", f"{FOLDER.name}/{name}")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return rows, query


# Messages: clicks of users, the pages that they were shown, and what they pay.
CLICKS = [
    ("08:00:00", "ann"),
    ("08:02:00", "ann"),
    ("08:01:00", "bob"),
    ("08:30:00", "ann"),
    ("09:30:00", "zoe"),
]
PAGES = [("07:59:00", "ann", "home"), ("08:00:30", "bob", "shop"), ("08:29:00", "ann", "shop")]
PAYMENTS = [("08:00:00", "ann", 10.0), ("08:01:00", "bob", 250.0), ("08:02:00", "ann", 30.0)]
DAY = "2026-11-01"
send("stream_clicks", [{"at": f"{DAY} {at}", "user": user} for at, user in CLICKS])
send("stream_pages", [{"shown": f"{DAY} {at}", "visitor": user, "page": page} for at, user, page in PAGES])
send("stream_payments", [{"at": f"{DAY} {at}", "user": user, "amount": paid} for at, user, paid in PAYMENTS])
clicks = events("stream_clicks", "at timestamp, user string")
pages = events("stream_pages", "shown timestamp, visitor string, page string")
payments = events("stream_payments", "at timestamp, user string, amount double")

# Sessions: clicks of a user with less than five minutes between them. A session is complete when the
# watermark, ten minutes behind the newest click, has passed it.
by_session = clicks.groupBy(F.session_window("at", "5 minutes"), "user").count()
sessions, _ = run("sessions", by_session)

# Late data: a click from before the watermark arrives; the next run drops it, and says how many it dropped.
too_late = {"at": f"{DAY} 08:03:00", "user": "ann"}
send("stream_clicks", [too_late, {"at": f"{DAY} 09:50:00", "user": "zoe"}])
later, query = run("sessions", by_session)
late = sum(
    operator["numRowsDroppedByWatermark"]
    for progress in query.recentProgress
    for operator in progress["stateOperators"]
)

# A join of two topics: clicks within ten minutes after a page was shown to the same user.
same = F.expr("user = visitor and at between shown and shown + interval 10 minutes")
joined, _ = run("joined", clicks.join(pages, same).select("user", "page", "at"))


# A foreach sink: each task writes rows where it likes; `epoch` tells repeated batches apart.
class ToFiles:
    """A file for each task of a batch, replaced if the task is repeated."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, partition: int, epoch: int) -> bool:
        self.file = (Path(self.folder) / f"{epoch}-{partition}.txt").open("w")
        return True

    def process(self, row: Row) -> None:
        self.file.write(f"{row.user}\n")

    def close(self, error: Exception | None) -> None:
        self.file.close()


written = Path(FOLDER.name) / "written"
written.mkdir()
foreach = payments.writeStream.foreach(ToFiles(str(written))).trigger(availableNow=True)
foreach.option("checkpointLocation", f"{FOLDER.name}/foreach").start().awaitTermination()
lines = sorted(line for file in written.iterdir() for line in file.read_text().split())


# Scores: a model as a function of whole columns, loaded once in each worker.
@pandas_udf("double")  # type: ignore[call-overload, untyped-decorator]
def risk(amounts: pd.Series) -> pd.Series:
    return (amounts / 1000).clip(upper=1.0)


scores, _ = run("scores", payments.select("user", risk("amount").alias("risk")))


# State of your own: the running total of each user. It is kept in RocksDB, and part of the checkpoint.
class Totals(StatefulProcessor):
    """Emits a user's total after each batch with payments."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (before,) = self.total.get() or (0.0,)
        total = before + sum(row.amount for row in rows)
        self.total.update((total,))
        yield Row(user=key[0], total=total)

    def close(self) -> None:
        pass


spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_IN_ROCKSDB)
summed = payments.groupBy("user").transformWithState(
    Totals(), outputStructType="user string, total double", outputMode="Update", timeMode="None"
)
totals, _ = run("totals", summed, "update")

if __name__ == "__main__":
    for name in ("sessions", "later", "late", "joined", "lines", "scores", "totals"):
        print(name, globals()[name])
