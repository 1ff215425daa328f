"""Options that the `skylark spark` commands share, each said once, and the groups that they go in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from skylark.cli.mistake import Mistake


def _check_trigger(text: str) -> str:
    from skylark.pipelines.options import parse_duration_ms  # noqa: PLC0415

    try:
        parse_duration_ms(text)
    except ValueError as error:
        raise Mistake(f"--trigger: {error}") from None
    return text


def _check_rate(text: str | None) -> str | None:
    from skylark.pipelines.options import parse_rate  # noqa: PLC0415

    try:
        if text is not None:
            parse_rate(text)
    except ValueError as error:
        raise Mistake(f"--rate: {error}") from None
    return text


def _check_decode(text: str | None) -> str | None:
    if text not in (None, "json", "text"):
        raise Mistake(f"--decode: {text!r} is neither json nor text")
    return text


NamesrvOption = Annotated[
    str | None,
    typer.Option(
        "--namesrv", "-n", envvar="NAMESRV_ADDR", metavar="HOST:PORT", help="Name servers, several with ';'."
    ),
]
StoreOption = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="Read store files, without a broker.")
]
TopicOption = Annotated[
    str, typer.Option("--topic", "-t", help="Topics, comma-separated; each a name or a pattern.")
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="START",
        help="earliest, latest, group, a time ('2026-11-01 08:00', -10m), '-1000 rows', or JSON offsets.",
    ),
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="END", help="Before this time, as --from.")]
OutputOption = Annotated[
    str, typer.Option("--to", metavar="WHERE", help="delta:DIR, parquet:DIR, topic:NAME or console.")
]
GroupOption = Annotated[
    str | None, typer.Option("--group", help="Consumer group to which progress is written.")
]
TagsOption = Annotated[str | None, typer.Option("--tags", help="Only these tags: 'Create || Pay'.")]
Sql92Option = Annotated[str | None, typer.Option("--sql92", help="Only messages whose properties match.")]
_DECODE = typer.Option("--decode", callback=_check_decode, help="How bodies are decoded: json or text.")
DecodeOption = Annotated[str, _DECODE]
DecodeIfOption = Annotated[str | None, _DECODE]
SchemaOption = Annotated[str, typer.Option("--schema", help="DDL of JSON bodies, or auto: from a sample.")]
WhereOption = Annotated[str | None, typer.Option("--where", help="Only rows of which this is true.")]
RejectsOption = Annotated[
    str | None, typer.Option("--rejects", metavar="WHERE", help="For bodies that do not decode; as --to.")
]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", help="Which columns are kept, comma-separated; all if not given.")
]
RateOption = Annotated[
    str | None,
    typer.Option("--rate", callback=_check_rate, help="At most so many messages a second: 200/s."),
]
OnceOption = Annotated[bool, typer.Option("--once", help="Stop at the end of what is there now.")]
TriggerOption = Annotated[
    str, typer.Option("--trigger", callback=_check_trigger, help="Without --once: a batch so often.")
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="Where the pipeline keeps what it needs to go on."),
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Any other option of the source; several times."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be read: ranges, messages, bytes.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, for scripts.")]
MasterOption = Annotated[
    str | None, typer.Option("--master", help="spark://HOST:7077, yarn, k8s://…; this machine if not given.")
]
RemoteOption = Annotated[
    str | None, typer.Option("--remote", metavar="sc://HOST:15002", help="A Spark Connect server.")
]
PackOption = Annotated[
    bool, typer.Option("--pack", help="With --master: send this environment to workers that have none.")
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; several times.")
]
MetricsOption = Annotated[
    int | None, typer.Option("--metrics-port", help="With --group: lag as Prometheus text on this port.")
]


@dataclass(frozen=True, kw_only=True)
class OriginOptions:
    """Where messages come from, and from when on."""

    namesrv: NamesrvOption = None
    store: StoreOption = None
    start: FromOption = None


@dataclass(frozen=True, kw_only=True)
class StretchOptions(OriginOptions):
    """A stretch of time."""

    end: ToOption = None


@dataclass(frozen=True, kw_only=True)
class StreamOptions(OriginOptions):
    """What a pipeline reads as long as it runs."""

    topic: TopicOption
    group: GroupOption = None
    metrics_port: MetricsOption = None
    tags: TagsOption = None
    sql92: Sql92Option = None
    option: OptionOption = None


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What is shown, and how."""

    dry_run: DryRunOption = False
    as_json: JsonOption = False


@dataclass(frozen=True, kw_only=True)
class RunOptions(ShowOptions):
    """How long a pipeline runs, and where it goes on."""

    once: OnceOption = False
    state: StateOption = None


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where Spark runs."""

    master: MasterOption = None
    remote: RemoteOption = None
    pack: PackOption = False
    conf: ConfOption = None
