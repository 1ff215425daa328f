"""Cells of `benchmarks/spark.py`: `archive` to Delta, and the sink."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skylark.pipelines.jobs import archive as job
from skylark.pipelines.jobs.places import Input, parse_output
from skylark.pipelines.jobs.session import register

SINK_ROWS = 200_000


def archive_cell(spark: Any, source: Input, directory: Path, columns: Sequence[str]) -> dict[str, float]:
    """Thousand rows a second of AvailableNow to Delta, all batches of one run; the table is removed."""
    register(spark)
    output = parse_output(f"delta:{directory / 'archive'}", columns=",".join(columns), partitionBy="dt")
    started = time.perf_counter()
    summary = job.archive(spark, source, output, state=directory / "archive-state", once=True)
    seconds = time.perf_counter() - started
    shutil.rmtree(directory / "archive")
    shutil.rmtree(directory / "archive-state")
    return {
        "krows": round(summary.messages / seconds / 1000, 1),
        "batches": summary.batches,
        "megabytes": round(summary.details["bytes"] / 1e6, 1),
    }


def sink_cell(spark: Any, namesrv: str, topic: str, body_bytes: int, **options: str) -> dict[str, float]:
    """Thousand rows a second into a topic, every one acknowledged."""
    df = spark.range(0, SINK_ROWS, 1, 2).selectExpr(f"lpad(cast(id as string), {body_bytes}, 'x') as body")
    started = time.perf_counter()
    df.write.format("rocketmq").mode("append").options(namesrv=namesrv, topic=topic, **options).save()
    return {"krows": round(SINK_ROWS / (time.perf_counter() - started) / 1000, 1)}
