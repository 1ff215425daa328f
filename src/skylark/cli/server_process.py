"""How `serve`, `broker` and `namesrv` run a server: settings, logs, file descriptors, event loop.

Logs go to standard error, one line per event, as text or JSON, with a level per component. Rotation is left
to the system. Logs hold names, numbers and reasons, never message bodies.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import Signals, raise_signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark import __version__
from skylark.cli.errors import UsageError
from skylark.cli.options import pairs
from skylark.cli.repeated_warnings import RepeatedWarnings
from skylark.errors import SettingsError

if TYPE_CHECKING:
    from skylark.broker.broker import Broker
    from skylark.settings import BrokerSettings
    from skylark.settings.loader import LoadedSettings

BROKER_PREFIX = "SKYLARK_BROKER_"
NAME_SERVER_PREFIX = "SKYLARK_NAMESRV_"
CONTROLLER_PREFIX = "SKYLARK_CONTROLLER_"
READ_BYTES = 4096
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - looked for, to warn
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
COLLECT_AFTER = (50_000, 20, 50)
"""Thresholds of the garbage collector: a reply consists of up to thousands of views, each of which counts."""
PORT_MAX = 0xFFFF
STOP_REASONS = {
    Signals.SIGINT: "Ctrl-C",
    Signals.SIGTERM: "SIGTERM from another process or the system",
    Signals.SIGHUP: "SIGHUP, its terminal was closed",
}
FLUSH_MODES = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}

TEXT, JSON = "text", "json"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
COMPONENTS = ("broker", "store", "namesrv", "controller", "proxy", "remoting")
"""Parts of the servers that write logs, by the name of their package."""
PACKAGE = "skylark"

Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings: .properties or .toml.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, by its Skylark or RocketMQ name."),
]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print all settings and exit.")]
Bind = Annotated[
    str | None, typer.Option("--bind", metavar="HOST", help="Address to listen on; 127.0.0.1 by default.")
]
Advertise = Annotated[
    str | None, typer.Option("--advertise", metavar="HOST", help="Address that clients connect to.")
]
Flush = Annotated[
    str | None, typer.Option("--flush", help="async or sync: acknowledge before or after the disk.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", file_okay=False, help="Store directory; ./skylark-data by default."
    ),
]
LogFormat = Annotated[str, typer.Option("--log-format", metavar="text|json", help="Format of log lines.")]
LogLevels = Annotated[
    list[str] | None,
    typer.Option(
        "--log-level",
        metavar="[COMPONENT=]LEVEL",
        help="WARNING by default; for one component, such as store=DEBUG; may be repeated.",
    ),
]


# --- Settings ---


def load(
    settings_type: type[Any],
    prefix: str,
    config: Path | None,
    flags: Mapping[str, Any],
    sets: list[str] | None,
    *,
    shared_with: type[Any] | None = None,
) -> LoadedSettings[Any]:
    """Settings from file, environment and flags. Prints warnings. Raises SettingsError, UsageError.

    The file may also hold settings of another server, `shared_with`.
    """
    from skylark.settings.loader import load_settings  # noqa: PLC0415 - `skylark --help` must not wait for it

    given = {key: str(value) for key, value in flags.items() if value is not None}
    given |= {key.strip(): value.strip() for key, value in pairs(sets, "--set").items()}
    loaded = load_settings(
        settings_type,
        file=config,
        environment=os.environ,
        prefix=prefix,
        flags=given,
        shared_with=shared_with,
    )
    for warning in loaded.warnings:
        typer.echo(f"skylark: {warning}", err=True)
    return loaded


def store_flags(data: Path | None, flush: str | None) -> dict[str, Any]:
    """Raises UsageError."""
    if flush is not None and flush not in FLUSH_MODES:
        raise UsageError(f"invalid --flush {flush!r}; choose async or sync")
    mode = FLUSH_MODES[flush] if flush is not None else None
    return {"store.path": None if data is None else str(data), "store.flush_mode": mode}


def check_log_of_data(loaded: LoadedSettings[BrokerSettings]) -> None:
    """Refuse to write to another store's log: `--data` is a copy, but the file names the log of the original.

    Raises SettingsError.
    """
    from skylark.settings.loader import COMMAND_LINE  # noqa: PLC0415

    store, origin = loaded.settings.store, loaded.origins.get("store.commit_log_path", COMMAND_LINE)
    log = store.commit_log_path
    if log is None or origin == COMMAND_LINE or loaded.origins.get("store.path") != COMMAND_LINE:
        return
    if not log.absolute().is_relative_to(store.path.absolute()):
        raise SettingsError(
            "storePathCommitLog",
            f"{log} ({origin}) is not in --data {store.path}; if you copied the log with the store, delete "
            f"that line, or else confirm it with --set storePathCommitLog={log}",
        )


def print_settings(settings: Any) -> None:
    from skylark.settings.loader import shown_properties  # noqa: PLC0415

    typer.echo(shown_properties(settings), nl=False)


def warn_of_any_address(settings: BrokerSettings) -> None:
    if settings.host in ANY_ADDRESS and not settings.advertised_host:
        typer.echo(
            f"skylark: listening on {settings.host}, which clients cannot connect to: pass --advertise HOST",
            err=True,
        )


def with_role_of_last_master(settings: BrokerSettings, origins: Mapping[str, str]) -> BrokerSettings:
    """The settings of a promoted slave: SYNC_MASTER if its master was one and no role is given.

    Raises BadStoreFile.
    """
    from skylark.broker.metadata_files import load_metadata  # noqa: PLC0415
    from skylark.broker.replication.last_master import LAST_MASTER_FILE, LastMaster  # noqa: PLC0415
    from skylark.settings import BrokerRole  # noqa: PLC0415

    if settings.is_slave or "role" in origins:
        return settings
    last = LastMaster()
    load_metadata(settings.config_directory / LAST_MASTER_FILE, last.load)
    if not last.safety.is_sync_master:
        return settings
    typer.echo(
        "skylark: the store is a copy of a SYNC_MASTER's, so this broker is a SYNC_MASTER, too;"
        " --set brokerRole=ASYNC_MASTER changes that",
        err=True,
    )
    return replace(settings, role=BrokerRole.SYNC_MASTER)


# --- Running ---


def run(main: Callable[[Callable[[Signals], None]], Coroutine[Any, Any, None]]) -> None:
    """Run a server on uvloop until it ends; `main` gets a function that says when and why it stops."""
    import uvloop  # noqa: PLC0415 - only servers need it

    raise_descriptor_limit()
    gc.freeze()  # loaded modules are never garbage
    gc.set_threshold(*COLLECT_AFTER)
    began = time.monotonic()

    def stopping(number: Signals) -> None:
        nonlocal began
        began = time.monotonic()
        _say(f"stopping at {time.strftime('%Y-%m-%d %H:%M:%S')}: {STOP_REASONS.get(number, number.name)}")

    uvloop.run(main(stopping))
    _say(f"stopped after {time.monotonic() - began:.2f} s")


def _say(text: str) -> None:
    """Print a line; a terminal that is gone must not keep a server from stopping."""
    with suppress(OSError):
        typer.echo(f"skylark {__version__}: {text}")


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the hard limit: large stores and many clients need it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS names a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def say_ready(started: float, text: str) -> None:
    typer.echo(f"skylark {__version__}: {text}, ready after {time.monotonic() - started:.2f} s")


def say_broker_ready(started: float, server: Broker) -> None:
    settings = server.live.current
    bound = "" if server.addresses.host == settings.host else f", bound to {settings.host}"
    say_ready(started, f"broker {settings.name} on {server.address} (fast port {server.port - 2}{bound})")
    role = f"{settings.role.value}, port for slaves {server.addresses.replica_port}"
    if settings.is_slave:
        role = f"slave {settings.broker_id} of {settings.replication.slave_of or 'the master of its name'}"
    typer.echo(f"store {settings.store.path.absolute()}, flush {settings.store.flush_mode.value}, {role}")
    monitor = server.monitor
    if monitor.address:
        remark = f" ({monitor.remark})" if monitor.remark else ""
        typer.echo(
            f"metrics http://{monitor.address}/metrics, health http://{monitor.address}/health{remark}"
        )
    else:
        typer.echo(monitor.remark)


def stop_with_stdin() -> None:
    """Stop in order when the parent process is gone: standard input is a pipe from it."""
    import asyncio  # noqa: PLC0415 - `skylark --help` must not wait for it

    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if not os.read(descriptor, READ_BYTES):
            loop.remove_reader(descriptor)
            raise_signal(Signals.SIGTERM)

    loop.add_reader(descriptor, read)


# --- Logs ---


class TextLines(logging.Formatter):
    """One line of text per event. Names from clients cannot start another line or steer a terminal."""

    def __init__(self, layout: str = "%(asctime)s %(levelname)s %(name)s %(message)s") -> None:
        super().__init__(layout)

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        if line.isprintable():
            return line
        return "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)


class JsonLines(logging.Formatter):
    """One JSON object per event: time (UTC), level, component, logger, message; error has the traceback."""

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
    """`store` for `skylark.store.flush`; the first part of other names."""
    first, _, rest = logger.partition(".")
    return rest.partition(".")[0] if first == PACKAGE and rest else first


def configure_logs(log_format: str, levels: Iterable[str] | None) -> None:
    """Send logs to standard error, repeated warnings once a minute, unless logging is configured already.

    Raises UsageError.
    """
    by_component = {"": logging.WARNING, **dict(map(_parse_level, levels or ()))}
    handler = logging.StreamHandler()
    if log_format == JSON:
        handler.setFormatter(JsonLines())
    elif log_format == TEXT:
        handler.setFormatter(TextLines())
    else:
        raise UsageError(f"invalid --log-format {log_format!r}; choose text or json")
    logging.basicConfig(handlers=[RepeatedWarnings(handler)])
    for component, level in by_component.items():
        logging.getLogger(f"{PACKAGE}.{component}" if component else None).setLevel(level)


def _parse_level(text: str) -> tuple[str, int]:
    """The component, empty for all, and its level."""
    component, equals, level = text.rpartition("=")
    if equals and component not in COMPONENTS:
        raise UsageError(f"invalid --log-level {text!r}; components are {', '.join(COMPONENTS)}")
    if level.upper() not in LEVELS:
        raise UsageError(f"invalid --log-level {text!r}; levels are {', '.join(LEVELS)}")
    return component, logging.getLevelNamesMapping()[level.upper()]


def log_flags(log_format: str, levels: Iterable[str] | None) -> list[str]:
    """The flags that give a child process the same logs."""
    return ["--log-format", log_format, *(word for text in levels or () for word in ("--log-level", text))]
