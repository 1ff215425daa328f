"""Queries that run to the end of the data into Parquet, restart, and are compared with what was produced."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from skylark.pipelines.jobs.queries import is_late_worker

WAIT_S = 120


class Stream:
    """A stream of some columns, or of all, into Parquet below a directory, resumable."""

    SCHEMA = "topic STRING, queueId INT, queueOffset BIGINT, body BINARY"

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        options: Mapping[str, str],
        *,
        schema: str | None = SCHEMA,
    ) -> None:
        self._spark = spark
        self._options = options
        self._schema = schema
        self.checkpoint = directory / "checkpoint"
        self.output = directory / "output"

    def frame(self) -> DataFrame:
        reader = self._spark.readStream.format("rocketmq").options(**self._options)
        return (reader.schema(self._schema) if self._schema else reader).load()

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self.frame().writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.start(str(self.output))

    def run(self) -> StreamingQuery:
        """Read all that is there."""
        while True:
            query = self.start(availableNow=True)
            try:
                assert query.awaitTermination(WAIT_S), "the query does not end"
            except StreamingQueryException as error:
                if not is_late_worker(error):
                    raise
            else:
                return query

    def rows(self) -> list[tuple[str, int, int, bytes]]:
        """What was written of the columns of `SCHEMA`, sorted."""
        if not self.output.exists():
            return []
        frame = self.written().select("topic", "queueId", "queueOffset", "body")
        return sorted((row[0], row[1], row[2], bytes(row[3])) for row in frame.collect())

    def written(self) -> DataFrame:
        """All that was written."""
        return self._spark.read.schema(self.frame().schema).parquet(str(self.output))

    def replay_last_batch(self) -> None:
        """Make Spark believe that the last batch was planned and not finished."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*"))
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


def until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s} s"
        time.sleep(0.1)


def rows_done(query: StreamingQuery) -> int:
    """How many rows a query has read so far."""
    return sum(progress["numInputRows"] for progress in query.recentProgress)
