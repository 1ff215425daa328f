"""The sink in processes that are killed at a chosen step, and a stream that copies a topic with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from skylark.pipelines.source import RocketMQSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

TASK_SENT = "a task has sent its rows"
COMMITTING = "between two commits"
TRIES = "tries"
ROWS_PER_BATCH = 20


def mortal_source(step: str, batch: int, directory: Path) -> type[RocketMQSource]:
    """The format `mortal`: at the step of the first batch from this number on, its process is killed, once.

    Classes made here travel by value: workers do not have this module.
    """
    from skylark.pipelines.row_transactions import BatchTransaction, Halves
    from skylark.pipelines.sink import StreamSink

    def die() -> None:
        mark = directory / f"killed at {step}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    class MortalSink(StreamSink):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            context = TaskContext.get()
            assert context is not None
            number = int(context.getLocalProperty("streaming.sql.batchId") or "0")
            with (directory / TRIES).open("a") as tries:
                tries.write(f"{number} {context.partitionId()}\n")
            staged = StreamSink.write(self, iterator)
            if step == TASK_SENT and number >= batch and context.partitionId() == 0:
                die()
            return staged

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            end = BatchTransaction.end

            def end_some_and_die(driver: BatchTransaction, halves: Iterator[Halves], outcome: int) -> None:
                for each in halves:
                    end(driver, [Halves(each.topic, each.broker, each.places[: 16 * 2])], outcome)
                    die()
                    end(driver, [each], outcome)

            if step == COMMITTING and batchId >= batch:
                BatchTransaction.end = end_some_and_die  # type: ignore[assignment, method-assign]
            try:
                StreamSink.commit(self, messages, batchId)
            finally:
                BatchTransaction.end = end  # type: ignore[method-assign]

    class MortalSource(RocketMQSource):
        @classmethod
        def name(cls) -> str:
            return "mortal"

        def streamWriter(self, schema: StructType, overwrite: bool) -> MortalSink:
            return MortalSink(dict(self.options), schema, overwrite)

    return MortalSource


def copying(
    spark: SparkSession, namesrv: str, topic: str, to_topic: str, directory: Path
) -> DataStreamWriter:
    """A stream that copies a topic's bodies in small batches, with two tasks each."""
    options = {"namesrv": namesrv, "topic": topic, "startingOffsets": "earliest"}
    options |= {"maxRowsPerTrigger": str(ROWS_PER_BATCH), "minPartitions": "2"}
    frame: DataFrame = spark.readStream.format("rocketmq").options(**options).load().select("body")
    writer = frame.writeStream.format("mortal").option("checkpointLocation", str(directory / "checkpoint"))
    writer = writer.options(namesrv=namesrv, topic=to_topic, delivery="exactly-once")
    return writer.trigger(availableNow=True)
