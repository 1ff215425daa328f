"""The Spark part of the demo: an archive in Delta, totals back to a topic, an HTML report."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from skylark.demo.scenario import TOPIC, TOTALS_TOPIC, DemoOptions, DemoResult, Say
from skylark.html_report import render
from skylark.pipelines.jobs import agg, report
from skylark.pipelines.jobs import archive as archiving
from skylark.pipelines.jobs.endpoints import Input, Output, write_batch
from skylark.pipelines.jobs.session import SessionSettings, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_CHECK_S = 0.1
ORDER_SCHEMA = "id bigint, customer string, amount double, state string"


async def archive(wanted: DemoOptions, namesrv: str, say: Say, outcome: DemoResult) -> None:
    """Run the Spark part in a thread while the loop keeps serving. Raises RocketMQError."""
    sessions: list[SparkSession] = []
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(None, _archive, wanted, namesrv, say, outcome, sessions)
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await _stopped(work, sessions)
        raise


async def _stopped(work: asyncio.Future[None], sessions: list[SparkSession]) -> None:
    """Wait for the Spark thread. It cannot be cancelled, but fails once its session is stopped."""
    while not work.done():
        while sessions:
            sessions.pop().stop()
        await asyncio.wait([work], timeout=STOP_CHECK_S)
    work.exception()  # retrieved, not reported


def _archive(
    wanted: DemoOptions, namesrv: str, say: Say, outcome: DemoResult, sessions: list[SparkSession]
) -> None:
    say("Spark starts, which takes a few seconds")
    with session(SessionSettings(master="local[2]")) as spark:
        sessions.append(spark)
        orders = Input(namesrv=namesrv, topic=TOPIC)
        say("Spark is up: a streaming query copies the topic to a Delta table")
        _to_delta(spark, wanted, orders, outcome)
        say("the orders are in the table; now their totals, by state and ten seconds")
        _to_totals(spark, wanted, orders, namesrv, outcome)
        say(f"the totals are in topic {TOTALS_TOPIC}; now a report as an HTML page")
        page = wanted.directory / "report.html"
        page.write_text(render(report.report(spark, orders)))
        outcome.places["report"] = page


def _to_delta(spark: SparkSession, wanted: DemoOptions, orders: Input, outcome: DemoResult) -> None:
    started = time.monotonic()
    table = wanted.directory / "orders-delta"
    output = Output(kind="delta", where=str(table))
    summary = archiving.archive(spark, orders, output, state=wanted.directory / "archive-state", once=True)
    seconds = time.monotonic() - started
    outcome.rates.append(("archived, with Spark's start of a query", summary.messages, seconds))
    outcome.check("orders archived", wanted.delivered, summary.messages)
    outcome.places["Delta table"] = table


def _to_totals(
    spark: SparkSession, wanted: DemoOptions, orders: Input, namesrv: str, outcome: DemoResult
) -> None:
    decoded = orders.read(spark, decode="json", decodeSchema=ORDER_SCHEMA).select("bornTimestamp", "value.*")
    totals = agg.transform(
        decoded,
        window=agg.Window(length="10 seconds"),
        by=["state"],
        metrics=["count(*) as orders", "sum(amount) as amount"],
    )
    write_batch(totals, Output(kind="topic", where=TOTALS_TOPIC), namesrv)
    back = Input(namesrv=namesrv, topic=TOTALS_TOPIC).read(spark, decode="json", decodeSchema="orders bigint")
    row = back.select(F.sum("value.orders")).first()
    outcome.check("orders in the totals", wanted.delivered, int(row[0] or 0) if row is not None else 0)
