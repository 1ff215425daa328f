"""`skylark spark report`: tables on the screen, JSON, or a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skylark.cli import spark_launch as run
from skylark.cli.mistake import Mistake
from skylark.cli.output import Screen, print_json
from skylark.cli.spark_options import PlaceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skylark.pipelines.jobs.places import Input


def check_kinds(kinds: Sequence[str]) -> Sequence[str]:
    """All, unless some are named. Raises Mistake."""
    from skylark.pipelines.jobs.report import NAMES  # noqa: PLC0415

    if unknown := [kind for kind in kinds if kind not in NAMES]:
        raise Mistake(f"there is no report {unknown[0]!r}; there are {', '.join(NAMES)}")
    return kinds or NAMES


def check_page(html: Path | None) -> None:
    """Raise Mistake, before the work, if the page could not be written after it."""
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise Mistake(f"--html {html}: give a file in a directory that is there")


def show(
    source: Input,
    kinds: Sequence[str],
    groups: Sequence[str],
    html: Path | None,
    place: PlaceOptions,
    *,
    as_json: bool,
) -> None:
    """Make the report and print or write it."""
    from skylark.page import render  # noqa: PLC0415
    from skylark.pipelines.jobs.report import report  # noqa: PLC0415

    def work(spark: SparkSession) -> None:
        made = report(spark, source, kinds=kinds, groups=groups)
        if html is not None:
            html.write_text(render(made))
            print_json({"pipeline": "report", "html": str(html), "sections": [s.name for s in made.sections]})
        elif as_json:
            print_json(made)
        else:
            screen = Screen()
            for section in made.sections:
                screen.line()
                screen.line(section.title, "bold")
                screen.table(section.columns, [[run.short(cell) for cell in row] for row in section.rows])
                if section.note:
                    screen.line(section.note)

    run.launch(place, work)
