"""What followed a message: retries, dead letters, and the traces that clients write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from skylark.pipelines.jobs.journey import Aftermath, consumed, journey, listener_calls, returned_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BORN = datetime(2026, 11, 17, 10, tzinfo=UTC)
BORN_MS = round(BORN.timestamp() * 1000)
MESSAGE = (
    "topic string, brokerName string, queueId int, queueOffset long, uniqKey string, bornTimestamp timestamp,"
    " storeTimestamp timestamp, bornHost string"
)
RETURNED = (
    "topic string, brokerName string, queueId int, queueOffset long, uniqKey string, reconsumeTimes int,"
    " storeTimestamp timestamp, properties map<string,string>"
)


def messages(spark: SparkSession) -> DataFrame:
    stored = [("slow", 900), ("bad", 5), ("quick", 1)]
    return spark.createDataFrame(
        [
            ("orders", "a", 0, number, key, BORN, BORN + timedelta(milliseconds=ms), "10.0.0.1:5000")
            for number, (key, ms) in enumerate(stored)
        ],
        MESSAGE,
    )


def calls(spark: SparkSession) -> DataFrame:
    """Three traces of two messages; those of producers and of calls that begin are left out."""
    records = [
        ["Pub", BORN_MS, "region", "shop", "orders", "bad", "", "k1", "a:10911", 3, 2, 0, "id", "true"],
        ["SubBefore", BORN_MS + 8, "region", "billing", "call-1", "bad", 0, "k1"],
        ["SubAfter", "call-1", "bad", 4, "false", "k1", 4, BORN_MS + 12, "billing"],
        ["SubAfter", "call-2", "bad", 3, "true", "k1", 0, BORN_MS + 3000, "billing"],
        ["SubAfter", "call-3", "quick", 1, "true", "null", 0, BORN_MS + 7, "billing"],
        ["SubAfter", "call-4", "slow", 1, "true", "null", 0],  # of an old client
    ]
    texts = ["\x01".join(map(str, fields)) + "\x02" for fields in records]
    bodies = [("".join(texts[:3]).encode(),), ("".join(texts[3:]).encode(),)]
    return listener_calls(spark.createDataFrame(bodies, "body binary"))


def test_the_delay_until_consumed_comes_from_traces(spark: SparkSession) -> None:
    found = consumed(messages(spark), calls(spark)).select("topic", "group", "ms").collect()
    assert sorted(map(tuple, found)) == [("orders", "billing", 7), ("orders", "billing", 3000)]


def test_the_journey_is_that_of_the_message_with_most_retries(spark: SparkSession) -> None:
    def back(topic: str, key: str, times: int, after_ms: int) -> tuple[object, ...]:
        stored = BORN + timedelta(milliseconds=after_ms)
        return (topic, "a", 0, times, key, times, stored, {"RETRY_TOPIC": "orders"})

    rows = [
        back("%RETRY%billing", "bad", 1, 1000),
        back("%DLQ%billing", "bad", 2, 2000),
        back("%RETRY%billing", "bad", 0, 2900),
        back("%RETRY%billing", "slow", 1, 1500),
    ]
    returned = returned_messages(spark.createDataFrame(rows, RETURNED))
    key, found = journey(messages(spark), Aftermath(returned, calls(spark)))
    assert key == "bad"
    assert [row[1:] for row in found] == [
        ["+0 ms", "sent by the producer", "10.0.0.1:5000"],
        ["+5 ms", "stored", "orders, a, queue 0, offset 1"],
        ["+12 ms", "failed in 4 ms", "group billing"],
        ["+1,000 ms", "retry 1", "group billing, a, queue 0, offset 1"],
        ["+2,000 ms", "dead letter", "group billing, a, queue 0, offset 2"],
        ["+2,900 ms", "sent to the group again", "group billing, a, queue 0, offset 0"],
        ["+3,000 ms", "consumed in 3 ms", "group billing"],
    ]
    assert found[0][0] == "2026-11-17 10:00:00.000"


def test_without_retries_the_journey_is_that_of_the_slowest_message(spark: SparkSession) -> None:
    key, found = journey(messages(spark), Aftermath(None, None))
    assert (key, [row[2] for row in found]) == ("slow", ["sent by the producer", "stored"])
    assert journey(messages(spark).where("false"), Aftermath(None, None)) == ("", [])
