"""What followed a message: its retries, its dead letter, and the traces that clients wrote about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from skylark.model.names import TRACE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from skylark.pipelines.jobs.endpoints import Input

ORIGIN_TOPIC = "RETRY_TOPIC"
JOURNEY_COLUMNS = ["time", "after", "what", "where"]
EVENTS_MAX = 200
SENT = "sent by the producer"
CLOCKS_DIFFER_MS = 1000
"""So far a producer's clock may be ahead of the broker's, and its message is still shown as sent first."""
RECORD_END, FIELD_END = "\x02", "\x01"
"""Separators of trace records."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What followed the messages of a report; None where the cluster has no such topics.

    `returned`: retries and dead letters. `calls`: listener calls, from traces.
    """

    returned: DataFrame | None
    calls: DataFrame | None


def aftermath(spark: SparkSession, source: Input, known: Sequence[str], topics: Sequence[str]) -> Aftermath:
    """Find what followed the messages of `topics`; `known` are all topics."""
    prefixes = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)
    names = [name for name in known if name.startswith(prefixes)]
    whole = dataclasses.replace(source, start=None, end=None, tags=None, sql92=None)
    returned = calls = None
    if names:
        read = dataclasses.replace(whole, topic=",".join(names)).read(spark)
        returned = returned_messages(read).where(F.col("originTopic").isin(*topics))
    if TRACE_TOPIC in known:
        calls = listener_calls(dataclasses.replace(whole, topic=TRACE_TOPIC).read(spark))
    return Aftermath(returned, calls)


def returned_messages(df: DataFrame) -> DataFrame:
    """Retries and dead letters with group and original topic. Pure."""
    is_dead = F.col("topic").startswith(DEAD_LETTER_TOPIC_PREFIX)
    return df.select(
        F.expr("substring_index(topic, '%', -1)").alias("group"),
        F.when(is_dead, "dead letters").otherwise("retries").alias("what"),
        F.col("properties")[ORIGIN_TOPIC].alias("originTopic"),
        "uniqKey",
        "reconsumeTimes",
        "storeTimestamp",
        "brokerName",
        "queueId",
        "queueOffset",
    )


def listener_calls(df: DataFrame) -> DataFrame:
    """Finished listener calls from trace messages, as clients write them since RocketMQ 4.9. Pure."""
    records = df.select(F.explode(F.split(F.col("body").cast("string"), RECORD_END)).alias("record"))
    fields = records.select(F.split("record", FIELD_END).alias("f"))

    def number(place: int) -> Column:
        return F.get("f", F.lit(place)).try_cast("bigint")

    return fields.where("f[0] = 'SubAfter' and size(f) > 8").select(
        F.get("f", F.lit(2)).alias("uniqKey"),
        F.get("f", F.lit(8)).alias("group"),
        (F.get("f", F.lit(4)) == "true").alias("isOk"),
        number(3).alias("tookMs"),
        number(7).alias("endedMs"),
    )


def consumed(df: DataFrame, calls: DataFrame) -> DataFrame:
    """Messages that a group has consumed, with the milliseconds since their birth. Pure."""
    done = calls.where("isOk").select("uniqKey", "group", "endedMs")
    delay = (F.col("endedMs") - F.unix_millis("bornTimestamp")).alias("ms")
    return df.join(done, "uniqKey").select("topic", "group", "storeTimestamp", delay)


# --- The journey of one message ---


def journey(df: DataFrame, found: Aftermath) -> tuple[str, list[list[Any]]]:
    """The unique key of a message, and what happened to it.

    The message is the one with most retries, else the one that took longest to store.
    """
    key = _most_eventful(df, found.returned)
    if key is None:
        return "", []
    events = [event for row in _rows(df, key) for event in _stored(row)]
    if found.returned is not None:
        events += [_returned(row) for row in _rows(found.returned, key)]
    if found.calls is not None:
        events += [_called(row) for row in _rows(found.calls, key)]
    events.sort(key=_order)
    born_ms = events[0][0]
    return key, [[_time(at_ms), _after(at_ms - born_ms), *texts] for at_ms, *texts in events]


def _most_eventful(df: DataFrame, returned: DataFrame | None) -> str | None:
    if returned is not None:
        order = (F.desc("reconsumeTimes"), "what", "storeTimestamp")
        row = returned.where("uniqKey is not null").orderBy(*order).select("uniqKey").first()
        if row is not None:
            return str(row[0])
    took = F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp")
    row = df.where("uniqKey is not null").orderBy(took.desc(), "uniqKey").select("uniqKey").first()
    return None if row is None else str(row[0])


def _rows(df: DataFrame, key: str) -> list[Any]:
    """The rows of a message, with times in milliseconds: Python's have fewer years."""
    times = [name for name in ("bornTimestamp", "storeTimestamp") if name in df.columns]
    plain = df.withColumns({name: F.unix_millis(name) for name in times})
    return plain.where(F.col("uniqKey") == key).limit(EVENTS_MAX).collect()


def _order(event: list[Any]) -> int:
    at_ms, what, _ = event
    return int(at_ms) - CLOCKS_DIFFER_MS if what == SENT else int(at_ms)


def _stored(row: Any) -> list[list[Any]]:
    place = f"{row.topic}, {row.brokerName}, queue {row.queueId}, offset {row.queueOffset}"
    return [
        [row.bornTimestamp, SENT, row.bornHost or ""],
        [row.storeTimestamp, "stored", place],
    ]


def _returned(row: Any) -> list[Any]:
    again = f"retry {row.reconsumeTimes}" if row.reconsumeTimes else "sent to the group again"
    what = "dead letter" if row.what == "dead letters" else again
    place = f"group {row.group}, {row.brokerName}, queue {row.queueId}, offset {row.queueOffset}"
    return [row.storeTimestamp, what, place]


def _called(row: Any) -> list[Any]:
    result = "consumed" if row.isOk else "failed"
    return [row.endedMs, f"{result} in {row.tookMs:,} ms", f"group {row.group}"]


def _time(at_ms: int) -> str:
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a producer may write any number
        return f"{at_ms} ms"
    return at.isoformat(" ", "milliseconds").removesuffix("+00:00")


def _after(ms: int) -> str:
    return f"+{ms:,} ms" if ms < 10_000 else f"+{ms / 1000:,.1f} s"
