"""Logs of the servers: one line per event on standard error, as text or JSON, with a level per component.

Rotation is left to the system. What the servers log are names, numbers and reasons, never bodies of messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Annotated

import typer

from skylark.cli.errors import UsageError

TEXT, JSON = "text", "json"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
COMPONENTS = ("broker", "store", "namesrv", "remoting")
"""Parts of the servers that write logs, by the name of their package."""
PACKAGE = "skylark"

LogFormat = Annotated[str, typer.Option("--log-format", metavar="text|json", help="How events are written.")]
LogLevels = Annotated[
    list[str] | None,
    typer.Option(
        "--log-level",
        metavar="[COMPONENT=]LEVEL",
        help="WARNING by default; of one component, such as store=DEBUG; may be repeated.",
    ),
]


class TextLines(logging.Formatter):
    """An event as a line of text. What clients call things cannot begin another line or steer a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        if line.isprintable():
            return line
        return "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)


class JsonLines(logging.Formatter):
    """An event as a JSON object: time (UTC), level, component, logger, message; error has the traceback."""

    def __init__(self) -> None:
        import msgspec  # noqa: PLC0415 - `skylark --help` must not wait for it

        super().__init__()
        self._encode = msgspec.json.Encoder().encode

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "component": component_of(record.name),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return self._encode(event).decode()


def component_of(logger: str) -> str:
    """`store` for `skylark.store.flush`; the first part of names that are not ours."""
    first, _, rest = logger.partition(".")
    return rest.partition(".")[0] if first == PACKAGE and rest else first


def configure(log_format: str, levels: Iterable[str] | None) -> None:
    """Let all loggers write to standard error, unless they write elsewhere already. Raises Mistake."""
    by_component = {"": logging.WARNING, **dict(map(_parse, levels or ()))}
    handler = logging.StreamHandler()
    if log_format == JSON:
        handler.setFormatter(JsonLines())
    elif log_format == TEXT:
        handler.setFormatter(TextLines())
    else:
        raise UsageError(f"--log-format {log_format}: text or json is possible")
    logging.basicConfig(handlers=[handler])
    for component, level in by_component.items():
        logging.getLogger(f"{PACKAGE}.{component}" if component else None).setLevel(level)


def _parse(text: str) -> tuple[str, int]:
    """The component, empty for all, and its level."""
    component, equals, level = text.rpartition("=")
    if equals and component not in COMPONENTS:
        raise UsageError(f"--log-level {text}: components are {', '.join(COMPONENTS)}")
    if level.upper() not in LEVELS:
        raise UsageError(f"--log-level {text}: levels are {', '.join(LEVELS)}")
    return component, logging.getLevelNamesMapping()[level.upper()]


def given_again(log_format: str, levels: Iterable[str] | None) -> list[str]:
    """The same as flags, for a process that is started by this one."""
    return ["--log-format", log_format, *(word for text in levels or () for word in ("--log-level", text))]
