"""`sql`: a query over topics, store files and archives, each a view with its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from skylark.errors import SettingsError
from skylark.pipelines.jobs.endpoints import Input, Output
from skylark.pipelines.jobs.replay import ReplayRange, read_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def query(
    spark: SparkSession,
    text: str,
    *,
    source: Input | None = None,
    archives: Mapping[str, Output] | None = None,
    decode: str | None = None,
    schema: str = "auto",
) -> DataFrame:
    """Return the lazy result of a query. Raises SettingsError for an invalid query.

    Every topic is a view with its name (in backquotes if it has other characters than letters, digits and
    underscores), every archive a view with its given name.
    """
    views = _views(source)
    for name, each in views.items():
        more = {"decode": decode, **({"decodeSchema": schema} if decode != "text" else {})} if decode else {}
        each.read(spark, pushdown="true", bodyText="true", **more).createOrReplaceTempView(f"`{name}`")
    for name, archive in (archives or {}).items():
        read_archive(spark, archive, None, ReplayRange()).createOrReplaceTempView(f"`{name}`")
    try:
        return spark.sql(text)
    except PySparkException as error:
        known = ", ".join([*views, *(archives or {})]) or "none; use --topic or --archive"
        raise SettingsError("query", f"{_first_line(error)} (views: {known})") from error


def _views(source: Input | None) -> dict[str, Input]:
    if source is None:
        return {}
    names = [name.strip() for name in source.topic.split(",") if name.strip()]
    if any(char in name for name in names for char in ".*[("):
        return {"messages": source}  # a pattern: one view for all topics
    return {name: dataclasses.replace(source, topic=name) for name in names}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
