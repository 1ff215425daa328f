"""Counts of a job: what became of the messages that it read.

Rows are counted while they pass (`DataFrame.observe`), so that no data is read a second time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

READ, WRITTEN, REJECTED = "read", "written", "rejected"
"""Names of observed metrics."""
REJECTED_AT = "rejected_at"
"""Name of the metric with the place of a rejected message."""
OBSERVATION_TIMEOUT_S = 30.0

Loss = Literal["filtered", "rejected", "duplicates"]


class JobCounts(msgspec.Struct, kw_only=True):
    """What became of the rows of one output: read + added = written + filtered + rejected + duplicates."""

    read: int = 0
    """Messages that the source returned, without those that `--tags` or `--sql92` left out."""
    added: int = 0
    """Rows that a step made in addition, as `explode` does."""
    written: int = 0
    filtered: int = 0
    """Rows that a condition or a step removed."""
    rejected: int = 0
    """Messages that could not be decoded, and rows that broke a rule."""
    duplicates: int = 0
    """Rows that were recognised as repeated, or that the table already held."""

    @property
    def is_balanced(self) -> bool:
        return self.read + self.added == self.written + self.filtered + self.rejected + self.duplicates


def followed(read: int, steps: Iterable[tuple[Loss, int]]) -> JobCounts:
    """Counts of rows that pass through steps. Pure.

    A step is the number of rows that it passed on, and the name of the count for the others.
    """
    losses: dict[str, int] = {}
    added, now = 0, read
    for name, passed in steps:
        losses[name] = losses.get(name, 0) + max(now - passed, 0)
        added += max(passed - now, 0)
        now = passed
    return JobCounts(read=read, added=added, written=now, **losses)


# --- Observations ---


def rows() -> Column:
    return F.count(F.lit(1))


def place() -> Column:
    """The position of a message, as text."""
    return F.concat_ws("/", "topic", "brokerName", F.col("queueId"), F.col("queueOffset"))


def observe_source(df: DataFrame, is_rejected: Column | None = None) -> DataFrame:
    """Count the messages of a source, and those that are rejected, with the place of one of them."""
    metrics = [rows().alias(READ)]
    if is_rejected is not None:
        metrics.append(F.count(F.when(is_rejected, 1)).alias(REJECTED))
        metrics.append(F.min(F.when(is_rejected, place())).alias(REJECTED_AT))
    return df.observe(READ, *metrics)


def observe_rows(df: DataFrame, name: str) -> DataFrame:
    return df.observe(name, rows().alias(name))


def observe_choice(df: DataFrame, where: str | None, observation: Observation) -> DataFrame:
    """Keep the rows that match a condition; observe how many were read, and how many are left."""
    # A column, so that Spark cannot remove the observation together with a condition that is never true.
    chosen = df.withColumn("_chosen", F.coalesce(F.expr(where or "true"), F.lit(False)))
    metrics = (rows().alias(READ), F.count(F.when(F.col("_chosen"), 1)).alias(WRITTEN))
    return chosen.observe(observation, *metrics).where("_chosen").drop("_chosen")


def observed(observation: Observation) -> Mapping[str, Any]:
    """The metrics of a finished action; empty if Spark removed the observed part as it had no rows."""
    found: dict[str, Any] = {}
    # `get` waits forever for metrics that were removed.
    waiting = threading.Thread(target=lambda: found.update(observation.get), daemon=True)
    waiting.start()
    waiting.join(OBSERVATION_TIMEOUT_S)
    return found


def choice_counts(metrics: Mapping[str, Any]) -> JobCounts:
    """Counts of `observe_choice`."""
    return followed(metrics.get(READ, 0), [("filtered", metrics.get(WRITTEN, 0))])
