"""`skylark spark dlq`: dead letters, looked at, taken out, and sent again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.mistake import Mistake
from skylark.cli.option_groups import grouped
from skylark.cli.spark_options import (
    NamesrvOption,
    OriginOptions,
    OutputOption,
    PlaceOptions,
    RateOption,
    ShowOptions,
    StateOption,
    WhereOption,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skylark.pipelines.jobs.dlq import Edit
    from skylark.pipelines.jobs.running import Summary

app = typer.Typer(no_args_is_help=True, help="Dead letters of consumer groups.")

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
LimitOption = Annotated[int, typer.Option("--limit", help="At most so many.")]
SHOWN = ("originTopic", "originId", "keys", "tags", "reconsumeTimes", "storeTimestamp", "text")


@app.command(name="list")
@grouped
def list_groups(
    *,
    origin: OriginOptions,
    show: ShowOptions,
    place: PlaceOptions,
) -> None:
    """By group and topic: how many dead letters, since when, until when.

    Example: skylark spark dlq list -n 127.0.0.1:9876
    """
    from skylark.cli import spark_launch as run  # noqa: PLC0415

    source = run.make_input(origin, "%DLQ%.*")
    if not run.is_to_run(source, show):
        return
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415

    def work(spark: SparkSession) -> None:
        found = job.overview(job.transform(source.read(spark)))
        run.show_rows(found, limit=1000, as_json=show.as_json)

    run.launch(place, work)


@app.command(name="show")
@grouped
def show_letters(
    *,
    group: GroupArgument,
    origin: OriginOptions,
    where: WhereOption = None,
    limit: LimitOption = 100,
    show: ShowOptions,
    place: PlaceOptions,
) -> None:
    """Dead letters of a group, those that --where picks.

    Example: skylark spark dlq show billing -n 127.0.0.1:9876 --where "text like '%timeout%'"
    """
    from skylark.cli import spark_launch as run  # noqa: PLC0415

    source = run.make_input(origin, f"%DLQ%{group}")
    if not run.is_to_run(source, show):
        return
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415

    def work(spark: SparkSession) -> None:
        letters = job.chosen(job.transform(source.read(spark)), where)
        run.show_rows(letters.orderBy("storeTimestamp").select(*SHOWN), limit=limit, as_json=show.as_json)

    run.launch(place, work)


@app.command()
@grouped
def export(
    *,
    group: GroupArgument,
    to: OutputOption,
    origin: OriginOptions,
    where: WhereOption = None,
    show: ShowOptions,
    place: PlaceOptions,
) -> None:
    """Dead letters of a group to a table, or to another topic.

    Example: skylark spark dlq export billing -n 127.0.0.1:9876 --to delta:lake/dead
    """
    from skylark.cli import spark_launch as run  # noqa: PLC0415

    source = run.make_input(origin, f"%DLQ%{group}")
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415
    from skylark.pipelines.jobs.places import parse_output  # noqa: PLC0415

    output = parse_output(to)
    if not run.is_to_run(source, show):
        return

    def work(spark: SparkSession) -> Summary:
        return job.export(spark, source, output, where)

    run.launch(place, work)


@app.command()
@grouped
def resend(
    *,
    group: GroupArgument,
    namesrv: NamesrvOption = None,
    where: WhereOption = None,
    to: Annotated[str, typer.Option("--to", help="original, or the name of a topic.")] = "original",
    rate: RateOption = None,
    edit: Annotated[
        str | None, typer.Option("--edit", metavar="FILE.py:NAME", help="A function DataFrame -> DataFrame.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also those that were sent again before.")] = False,
    audit: Annotated[
        Path | None,
        typer.Option(
            "--audit", metavar="DIR", help="Delta table of what was sent; in the state if not given."
        ),
    ] = None,
    state: StateOption = None,
    show: ShowOptions,
    place: PlaceOptions,
) -> None:
    """Send chosen dead letters again, each once, and write each down.

    Example: skylark spark dlq resend billing -n 127.0.0.1:9876 --where "keys = 'order-7'" --rate 200/s
    """
    from skylark.cli import spark_launch as run  # noqa: PLC0415

    source = run.make_input(OriginOptions(namesrv=namesrv), f"%DLQ%{group}")
    run.check_source(source)
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415
    from skylark.pipelines.jobs.places import parse_output, state_directory  # noqa: PLC0415

    directory = state_directory(state, "dlq", group, namesrv)
    book = parse_output(f"delta:{(audit or directory / 'audit').expanduser().absolute()}")
    wanted = job.Resend(where=where, to=to, rate=rate, edit=_edit(edit), again=again)

    def work(spark: SparkSession) -> Summary | None:
        if show.dry_run:
            letters = job.pending(spark, source, group, wanted, book)
            run.show_rows(letters.select(*SHOWN), limit=1000, as_json=show.as_json)
            return None
        return job.resend(spark, source, group, wanted, state=directory, audit=book)

    run.launch(place, work)


def _edit(text: str | None) -> Edit | None:
    if text is None:
        return None
    from skylark.pipelines.jobs.run import function_from  # noqa: PLC0415

    name, colon, function = text.rpartition(":")
    if not colon:
        raise Mistake(f"--edit {text}: write FILE.py:NAME")
    return function_from(Path(name).expanduser().absolute(), function)
