"""The sink in processes that are killed at a chosen step; run as a script, a stream that copies a topic.

Arguments: master, name server, topic, topic to write, directory, step, batch. At that step of the first
batch from this number on, the step's process is killed; with the step `none` nothing is.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from skylark.pipelines.jobs.session import SessionSettings, session
from skylark.pipelines.source import RocketMQSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

NONE = "none"
TASK_SENT = "task has sent its rows"
TASK_SLOW = "task is slow"
DRIVER_SENDS = "driver, tasks send"
DRIVER_SENT = "driver, a task has sent its rows"
DRIVER_BEFORE = "driver, before the record"
DRIVER_DECIDED = "driver, after the record"
DRIVER_BETWEEN = "driver, between two commits"
DRIVER_AFTER = "driver, after the last commit"
DRIVER_STEPS = (DRIVER_SENDS, DRIVER_SENT, DRIVER_BEFORE, DRIVER_DECIDED, DRIVER_BETWEEN, DRIVER_AFTER)
TRIES = "tries"
ROWS_PER_BATCH = 20
ARROW_ROWS = 3
SLOW_S = 20


def mortal_source(
    step: str, batch: int, directory: Path, victims: Sequence[int] = ()
) -> type[RocketMQSource]:
    """The format `mortal`. Classes made here travel by value: workers do not have this module.

    A step of the driver kills `victims`, or without them the process that commits, once for each directory.
    """
    from skylark.pipelines.row_transactions import (
        BatchRecord,
        BatchTransaction,
        CommitTopic,
        Halves,
        Manifest,
    )
    from skylark.pipelines.sink import StreamSink

    def die() -> None:
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def die_once() -> None:
        mark = directory / "killed"
        if victims or not mark.exists():
            mark.touch()
            die()

    def killed_in(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, each in enumerate(rows):
            if number:
                die_once()
            yield each

    class MortalSink(StreamSink):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            context = TaskContext.get()
            assert context is not None
            number = int(context.getLocalProperty("streaming.sql.batchId") or "0")
            part, attempt = context.partitionId(), context.attemptNumber()
            with (directory / TRIES).open("a") as tries:
                tries.write(f"{number} {part} {attempt}\n")
            is_mine = number >= batch and part == 0
            if is_mine and step == DRIVER_SENDS:
                iterator = killed_in(iterator)
            staged = StreamSink.write(self, iterator)
            if is_mine and step == TASK_SENT and attempt == 0:
                die()
            if is_mine and step == TASK_SLOW and attempt == 0:
                time.sleep(SLOW_S)
            if is_mine and step == DRIVER_SENT:
                die_once()
            return staged

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            if batchId < batch or step not in DRIVER_STEPS:
                StreamSink.commit(self, messages, batchId)
                return
            if step == DRIVER_BEFORE:
                die_once()
            append, end = CommitTopic.append, BatchTransaction.end

            def append_and_die(self: CommitTopic, record: Manifest | BatchRecord) -> int:
                at = append(self, record)
                if isinstance(record, BatchRecord) and step == DRIVER_DECIDED:
                    die_once()
                return at

            def end_some_and_die(driver: BatchTransaction, halves: Iterator[Halves], outcome: int) -> None:
                for each in halves:
                    if step == DRIVER_BETWEEN:
                        end(driver, [Halves(each.topic, each.broker, each.places[: 16 * 2])], outcome)
                        die_once()
                    end(driver, [each], outcome)

            CommitTopic.append = append_and_die  # type: ignore[method-assign]
            BatchTransaction.end = end_some_and_die  # type: ignore[assignment, method-assign]
            try:
                StreamSink.commit(self, messages, batchId)
            finally:
                CommitTopic.append, BatchTransaction.end = append, end  # type: ignore[method-assign]
            if step == DRIVER_AFTER:
                die_once()

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


def main(master: str, namesrv: str, topic: str, to_topic: str, directory: str, step: str, batch: str) -> None:
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
        "spark.speculation": str(step == TASK_SLOW).lower(),
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with session(SessionSettings(master=master, conf=conf)) as spark:
        java: Any = spark.sparkContext._jvm
        jvm = int(java.java.lang.ProcessHandle.current().pid())
        where = Path(directory)
        spark.dataSource.register(mortal_source(step, int(batch), where, (jvm, os.getpid())))
        copying(spark, namesrv, topic, to_topic, where).start().awaitTermination()
    sys.stdout.write('{"is_done": true}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
