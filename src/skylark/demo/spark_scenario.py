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


async def archive(options: DemoOptions, namesrv: str, say: Say, result: DemoResult) -> None:
    """Run the Spark part in a thread while the loop keeps serving. Raises RocketMQError."""
    sessions: list[SparkSession] = []
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(None, _archive, options, namesrv, say, result, sessions)
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
    options: DemoOptions, namesrv: str, say: Say, result: DemoResult, sessions: list[SparkSession]
) -> None:
    say("starting Spark (takes a few seconds)")
    with session(SessionSettings(master="local[2]")) as spark:
        sessions.append(spark)
        orders = Input(namesrv=namesrv, topic=TOPIC)
        say("Spark started; copying the topic to a Delta table with a streaming query")
        _to_delta(spark, options, orders, result)
        say("archived the orders; computing totals by state and ten-second window")
        _to_totals(spark, options, orders, namesrv, result)
        say(f"wrote the totals to topic {TOTALS_TOPIC}; writing the HTML report")
        page = options.directory / "report.html"
        page.write_text(render(report.report(spark, orders)))
        result.places["report"] = page


def _to_delta(spark: SparkSession, options: DemoOptions, orders: Input, result: DemoResult) -> None:
    started = time.monotonic()
    table = options.directory / "orders-delta"
    output = Output(kind="delta", where=str(table))
    summary = archiving.archive(spark, orders, output, state=options.directory / "archive-state", once=True)
    seconds = time.monotonic() - started
    result.rates.append(("archived, including query start", summary.counts.written, seconds))
    result.check("orders archived", options.delivered, summary.counts.written)
    result.places["Delta table"] = table


def _to_totals(
    spark: SparkSession, options: DemoOptions, orders: Input, namesrv: str, result: DemoResult
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
    result.check("orders in the totals", options.delivered, int(row[0] or 0) if row is not None else 0)
