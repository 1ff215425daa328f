"""`dlq`: lists, exports and resends the dead letters of a group; resends are recorded in an audit table."""

from __future__ import annotations

import dataclasses
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import Observation
from pyspark.sql import functions as F

from skylark.atomic_file import write_file
from skylark.errors import RocketMQError, SettingsError
from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX
from skylark.model.names import dead_letter_topic, topic_name_error
from skylark.pipelines.jobs import counts, queries
from skylark.pipelines.jobs.endpoints import (
    FROM_TABLE,
    Input,
    Output,
    from_table,
    job_name,
    write_batch,
)
from skylark.pipelines.jobs.replay import read_delta
from skylark.pipelines.lake.delta_log import has_delta
from skylark.pipelines.lake.progress import CommitProgress, check_start, end_offsets
from skylark.pipelines.lake.table_commit import open_log
from skylark.pipelines.lake.table_log import PRIVATE, BatchName
from skylark.pipelines.offsets import Offsets, to_nested
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import Planner
from skylark.pipelines.sink import SinkOptions, check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGINAL = "original"
ORIGIN_TOPIC = "RETRY_TOPIC"
ORIGIN_ID = "ORIGIN_MESSAGE_ID"
RESENT_FROM = "DLQ_ORIGIN_TOPIC"
RESENT_ID = "DLQ_ORIGIN_MESSAGE_ID"
SPENT = (ORIGIN_TOPIC, ORIGIN_ID, RESENT_FROM, RESENT_ID, "UNIQ_KEY", "DELAY")
"""Properties removed from a letter before it is sent again."""
PLACE = ("deadTopic", "brokerName", "queueId", "queueOffset")
"""Columns that identify a dead letter."""
OPEN_PLANS = f"{PRIVATE}/open"
"""Inside the audit table: a file for each unfinished resend, with the name of its state directory."""
Edit = Callable[["DataFrame"], "DataFrame"]


class ResendPlan(msgspec.Struct, frozen=True):
    """A decided resend; it is completed, if necessary by a later run."""

    id: str
    dead_topic: str
    rows: str
    """Directory of the messages to send."""
    messages: int


@dataclass(frozen=True, kw_only=True)
class Resend:
    """What to resend, where to, and how fast."""

    where: str | None = None
    to: str = ORIGINAL
    rate: str | None = None
    edit: Edit | None = None
    again: bool = False
    """Include letters that were sent again before."""

    def __post_init__(self) -> None:
        if self.to != ORIGINAL and (fault := topic_name_error(self.to)):
            raise SettingsError("to", f"{self.to!r}: {fault}")


def dead_input(source: Input, group: str | None) -> Input:
    """Input of the dead letters of one group, or of all."""
    topic = dead_letter_topic(group) if group else f"{DEAD_LETTER_TOPIC_PREFIX}.*"
    return dataclasses.replace(source, topic=topic)


def transform(df: DataFrame) -> DataFrame:
    """Dead letters with their origin as columns. Pure."""
    group = F.expr(f"substring(topic, {len(DEAD_LETTER_TOPIC_PREFIX) + 1})")
    return df.select(
        group.alias("group"),
        F.col("topic").alias("deadTopic"),
        "brokerName",
        "queueId",
        "queueOffset",
        F.col("properties")[ORIGIN_TOPIC].alias("originTopic"),
        F.coalesce(F.col("properties")[ORIGIN_ID], "msgId").alias("originId"),
        "uniqKey",
        "tags",
        "keys",
        "reconsumeTimes",
        "bornTimestamp",
        "storeTimestamp",
        F.col("body").cast("string").alias("text"),
        "body",
        "properties",
    )


def overview(letters: DataFrame) -> DataFrame:
    """Counts and times of dead letters by group and topic. Pure."""
    return (
        letters.groupBy("group", "originTopic")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.length("body")).alias("bytes"),
            F.min("storeTimestamp").alias("oldest"),
            F.max("storeTimestamp").alias("newest"),
            F.max("reconsumeTimes").alias("reconsumeTimes"),
        )
        .orderBy("group", "originTopic")
    )


def chosen(letters: DataFrame, where: str | None) -> DataFrame:
    """Letters that match a condition on `text`, `keys`, `originTopic` … Pure."""
    return letters.where(where) if where else letters


def outgoing(letters: DataFrame, to: str) -> DataFrame:
    """Letters as messages to send, with target topic and origin. Pure."""
    kept = F.map_filter("properties", lambda name, _: ~name.isin(*SPENT))
    story = F.create_map(
        *[F.lit(RESENT_FROM), F.col("deadTopic")],
        *[F.lit(RESENT_ID), F.coalesce("originId", F.lit("unknown"))],
    )
    target = F.col("originTopic") if to == ORIGINAL else F.lit(to)
    return letters.select(
        target.alias("topic"),
        "body",
        "tags",
        "keys",
        F.map_concat(kept, story).alias("properties"),
        "deadTopic",
        "brokerName",
        "queueId",
        "queueOffset",
        "originId",
    )


# --- Resend ---


def resend(
    spark: SparkSession, source: Input, group: str, wanted: Resend, *, state: Path, audit: Output
) -> queries.JobSummary:
    """Send chosen dead letters again, each once, and record them. Raises SettingsError, RocketMQError.

    The selection is stored before the first send. An interrupted run is completed by the next one, with the
    same unique keys for repeated messages, before the next run's own selection.
    """
    if source.namesrv is None:
        raise SettingsError("namesrv", "no name server given; use --namesrv HOST:PORT")
    if not audit.is_directory:
        raise SettingsError("audit", f"invalid audit table {audit}; use a directory")
    started = time.monotonic()
    _check_audit(state, audit)
    left_over = [
        _complete(spark, plan, source.namesrv, wanted.rate, state, audit) for plan in _open_plans(state)
    ]
    choice, unsent = Observation(), Observation()
    letters = pending(spark, source, group, wanted, audit, choice)
    rows = outgoing(letters, wanted.to).observe(unsent, counts.rows().alias(counts.READ))
    edited = _edited(rows, wanted.edit, source.namesrv)
    plan = _decide(spark, edited, dead_letter_topic(group), state, audit)
    sent = _carry_out(spark, plan, source.namesrv, wanted.rate, state, audit)
    chosen_ones = counts.observed(choice)
    new = counts.observed(unsent).get(counts.READ, 0) if wanted.edit is not None else sent
    chain: list[tuple[counts.Loss, int]] = [
        ("filtered", chosen_ones.get(counts.WRITTEN, 0)),
        ("duplicates", new),
        ("filtered", sent),
    ]
    return queries.JobSummary(
        pipeline="dlq",
        seconds=round(time.monotonic() - started, 2),
        batches=1 + len(left_over),
        counts=counts.followed(chosen_ones.get(counts.READ, 0), chain),
        state=str(state),
        details={
            "group": group,
            "to": wanted.to,
            "audit": str(audit),
            "resumed": sum(left_over),
            "plan": plan.id,
        },
    )


def pending(
    spark: SparkSession,
    source: Input,
    group: str,
    wanted: Resend,
    audit: Output,
    observation: Observation | None = None,
) -> DataFrame:
    """The letters that a resend would select now; `observation` counts those that match the condition."""
    letters = transform(dead_input(source, group).read(spark))
    if observation is not None:
        letters = counts.observe_choice(letters, wanted.where, observation)
    else:
        letters = chosen(letters, wanted.where)
    return letters if wanted.again else _without_audited(spark, letters, audit)


# --- Export ---


def export(spark: SparkSession, source: Input, output: Output, where: str | None) -> queries.JobSummary:
    """Copy dead letters to a table or a topic. Raises SettingsError, RocketMQError.

    A table receives every letter once: each run continues behind the offsets that the table records. Messages
    that are sent to a topic again have the same unique keys.
    """
    started, observation = time.monotonic(), Observation()
    job = job_name("dlq-export", source, where)
    name, progress = job, None
    if output.is_table:
        name = uuid.uuid4().hex
        source, progress = _rest(source, output, job, BatchName(name, 0))
    else:
        source = from_table(source, output, job)
    letters = counts.observe_choice(transform(source.read(spark)), where, observation)
    if not output.is_table:
        kept = ("body", "tags", "keys", "properties", "brokerName", "queueId", "queueOffset")
        letters = letters.select(F.col("deadTopic").alias("topic"), *kept)
    try:
        write_batch(letters, output, source.namesrv, batch_name=name, progress=progress)
    except Exception as error:
        raise queries.plain_error(error) from error
    return queries.JobSummary(
        pipeline="dlq",
        seconds=round(time.monotonic() - started, 2),
        batches=1,
        counts=counts.choice_counts(counts.observed(observation)),
        details={"to": str(output)},
    )


def _rest(source: Input, output: Output, job: str, batch: BatchName) -> tuple[Input, CommitProgress]:
    """The letters that the table does not hold yet, and what to record with them. Raises SettingsError."""
    entries = [entry for entry in open_log(output.kind, output.where).progress() if entry.job == job]
    given = None if source.start == FROM_TABLE else source.start
    planner = Planner(
        load(SourceOptions, dataclasses.replace(source, start=given).source_options(is_stream=False))
    )
    start, ends = planner.starting("earliest"), planner.ending()
    if given is not None:
        check_start(str(output), entries, start)
    held = end_offsets(entries)
    first = {queue: max(offset, held.get(queue, 0)) for queue, offset in start.items()}
    last = {queue: max(offset, first[queue]) for queue, offset in ends.items()}
    rest = dataclasses.replace(source, start=_as_json(first), end=_as_json(last))
    return rest, CommitProgress(batch.application, batch.number, job, to_nested(last), "")


def _as_json(offsets: Offsets) -> str:
    return msgspec.json.encode(to_nested(offsets)).decode()


def _without_audited(spark: SparkSession, letters: DataFrame, audit: Output) -> DataFrame:
    if not has_delta(audit.where):
        return letters
    done = read_delta(spark, Path(audit.where)).select(*PLACE)
    return letters.join(done, list(PLACE), "left_anti")


def _edited(rows: DataFrame, edit: Edit | None, namesrv: str) -> DataFrame:
    """Apply the user's function. Raises SettingsError if the result cannot be sent or recorded."""
    if edit is None:
        return rows
    edited = edit(rows)
    if not hasattr(edited, "columns"):
        raise SettingsError(
            "edit", f"the function returned {type(edited).__name__}; it must return a DataFrame"
        )
    if missing := {"topic", "body", "originId", *PLACE} - set(edited.columns):
        raise SettingsError("edit", f"the function removed required columns: {', '.join(sorted(missing))}")
    check_columns(_messages(edited).schema, SinkOptions(namesrv=namesrv))
    return edited


def _messages(rows: DataFrame) -> DataFrame:
    return rows.drop("deadTopic", "originId")


def _check_audit(state: Path, audit: Output) -> None:
    """Refuse an audit table and a state that do not belong together. Raises SettingsError.

    The audit table is authoritative; an unfinished plan of another state may have sent more than it holds.
    """
    log, plans = open_log("delta", audit.where), state / "plans"
    for done in sorted(plans.glob("*/done")):
        if done.read_text() and log.last_batch(BatchName(done.parent.name, 0).application) is None:
            raise SettingsError(
                "audit",
                f"{audit.where} does not hold the resend {done.parent.name}, which {state} has completed; "
                "use its audit table, or another --state",
            )
    for mark in sorted((Path(audit.where) / OPEN_PLANS).glob("*")):
        owner = mark.read_text()
        if owner == str(state):
            if (plans / mark.name / "done").exists() or not (plans / mark.name).exists():
                mark.unlink()
        else:
            raise SettingsError(
                "state",
                f"{audit.where} has an unfinished resend of --state {owner}; use that directory to "
                f"complete it, or delete {mark} to drop it",
            )


def _decide(spark: SparkSession, rows: DataFrame, dead_topic: str, state: Path, audit: Output) -> ResendPlan:
    plan_id = uuid.uuid4().hex
    folder = state / "plans" / plan_id
    rows.write.parquet(str(folder / "rows"))
    decided = spark.read.parquet(str(folder / "rows")).agg(counts.rows(), F.count("topic")).first()
    assert decided is not None
    messages, placed = decided
    # Checked before the plan is stored: a plan that cannot be completed would block later runs.
    if messages > placed:
        shutil.rmtree(folder)
        raise SettingsError("to", f"{messages - placed} letters have no original topic; use --to TOPIC")
    plan = ResendPlan(plan_id, dead_topic, str(folder / "rows"), messages)
    mark = Path(audit.where) / OPEN_PLANS / plan_id
    mark.parent.mkdir(parents=True, exist_ok=True)
    write_file(mark, str(state).encode())
    write_file(folder / "plan.json", msgspec.json.encode(plan))
    return plan


def _open_plans(state: Path) -> list[ResendPlan]:
    found = sorted((state / "plans").glob("*/plan.json"))
    open_ones = [path for path in found if not (path.parent / "done").exists()]
    return [msgspec.json.decode(path.read_bytes(), type=ResendPlan) for path in open_ones]


def _complete(
    spark: SparkSession, plan: ResendPlan, namesrv: str, rate: str | None, state: Path, audit: Output
) -> int:
    """Complete the plan of an earlier run."""
    try:
        return _carry_out(spark, plan, namesrv, rate, state, audit)
    except RocketMQError as error:
        folder = state / "plans" / plan.id
        sentence = f"cannot complete an earlier resend: {error}; delete {folder} to drop it"
        raise SettingsError("state", sentence) from error


def _carry_out(
    spark: SparkSession, plan: ResendPlan, namesrv: str, rate: str | None, state: Path, audit: Output
) -> int:
    """Send, record, close the plan; each step may be repeated."""
    rows = spark.read.parquet(plan.rows)
    options = {"rowsPerSecond": rate} if rate else {}
    messages = _messages(rows)
    try:
        if plan.messages:
            ordered = messages.coalesce(1) if rate else messages
            write_batch(ordered, Output(kind="topic", options=options), namesrv, batch_name=plan.id)
            book = rows.select(
                *PLACE,
                "originId",
                F.col("topic").alias("sentTo"),
                F.sha2("body", 256).alias("bodySha256"),
                F.lit(plan.id).alias("plan"),
                F.current_timestamp().alias("sentAt"),
            )
            write_batch(book, audit, namesrv, batch_name=plan.id)
    except Exception as error:
        raise queries.plain_error(error) from error
    (state / "plans" / plan.id / "done").write_text(str(plan.messages or ""))
    (Path(audit.where) / OPEN_PLANS / plan.id).unlink(missing_ok=True)
    return plan.messages
