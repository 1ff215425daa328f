"""`skylark serve`: a name server and a broker in one process, or several broker processes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import server_process
from skylark.cli.grpc_front import OFF, GrpcFront, GrpcPort
from skylark.cli.options import NAMESRV
from skylark.cli.server_process import (
    ANY_ADDRESS,
    BROKER_PREFIX,
    NAME_SERVER_PREFIX,
    PORT_MAX,
    TEXT,
    Advertise,
    Bind,
    Config,
    Data,
    Flush,
    LogFormat,
    LogLevels,
    Sets,
    load,
    say_broker_ready,
    say_ready,
)

if TYPE_CHECKING:
    from skylark.settings import BrokerSettings, NameServerSettings
    from skylark.settings.loader import LoadedSettings

NAMESRV_VARIABLE = "NAMESRV_ADDR"
CONSOLE_PORT = 8088
CONSOLE_PAUSE_S = 0.5
CONSOLE_PAUSE_S_MAX = 30.0
"""Pauses before a console that ended is started again."""
CONSOLE_STOP_S = 5.0
Brokers = Annotated[
    int, typer.Option("--brokers", metavar="N", help="Number of broker processes, ports 10 apart.")
]
Secure = Annotated[
    bool, typer.Option("--secure", help="Only TLS and only users; makes certificates and an administrator.")
]
Console = Annotated[
    bool, typer.Option("--console", help="Also serve the web console, in a process of its own.")
]
ConsolePort = Annotated[int, typer.Option("--console-port", min=0, max=PORT_MAX, help="0: any free port.")]


def serve(
    data: Data = None,
    name_server_port: Annotated[
        int, typer.Option("--namesrv-port", min=0, max=PORT_MAX, help="0: any free port.")
    ] = 9876,
    broker_port: Annotated[
        int | None,
        typer.Option("--broker-port", min=0, max=PORT_MAX, help="10911 by default; 0: any free port."),
    ] = None,
    brokers: Brokers = 1,
    secure: Secure = False,
    console: Console = False,
    console_port: ConsolePort = CONSOLE_PORT,
    flush: Flush = None,
    bind: Bind = None,
    advertise: Advertise = None,
    grpc_port: GrpcPort = None,
    config: Config = None,
    sets: Sets = None,
    log_format: LogFormat = TEXT,
    log_levels: LogLevels = None,
) -> None:
    """Run a name server and a broker in one process until Ctrl-C.

    That is all that one machine needs. With --brokers, each broker is a process with its own core; one that
    exits is restarted. With --secure, for a trial, the first start makes certificates and an administrator in
    the directory `secure` of the data; the lines that a client needs are printed.

    Examples: skylark serve --data ./skylark-data

    skylark serve --secure

    skylark serve --brokers 4
    """
    from skylark.cli.broker_processes import check_layout, serve_processes  # noqa: PLC0415
    from skylark.settings import BrokerSettings  # noqa: PLC0415

    started = time.monotonic()
    server_process.configure_logs(log_format, log_levels)
    flags = {
        "port": broker_port, "host": bind, "advertised_host": advertise,
        **server_process.store_flags(data, flush),
    }  # fmt: skip
    loaded = load(BrokerSettings, BROKER_PREFIX, config, flags, sets)
    _warn_of_name_servers(loaded)
    server_process.check_log_of_data(loaded)
    settings = server_process.with_role_of_last_master(loaded.settings, loaded.origins)
    server_process.warn_of_any_address(settings)
    trial = _trial(settings) if secure else None
    if trial is not None:
        settings = trial.applied(settings)
    name_server = _name_server_settings(settings, name_server_port)
    check_layout(settings.store.path, brokers)
    say = _say_next if trial is None else trial.say_next
    with console_beside(say, console_port if console else None, trial) as say_next:
        if brokers == 1:
            _serve_one(name_server, settings, started, say_next, GrpcFront(grpc_port))
            return

        def ready(namesrv: str) -> None:
            say_ready(started, f"name server on {namesrv}, {brokers} brokers")
            say_next(namesrv)

        for_all = [*_shared(sets), *("=".join(pair) for pair in (trial.sets() if trial else {}).items())]
        more = _shared_flags(flush=flush, bind=bind, advertise=advertise, config=config, sets=for_all)
        more += ["--grpc-port", OFF, *server_process.log_flags(log_format, log_levels)]
        arguments = (name_server, settings, brokers, more, typer.echo, ready)
        server_process.run(lambda stopping: serve_processes(*arguments, stopping, GrpcFront(grpc_port)))


@contextlib.contextmanager
def console_beside(
    say_next: Callable[[str], None], port: int | None, trial: SecureTrial | None
) -> Iterator[Callable[[str], None]]:
    """What to call when the servers are ready. With a port it starts the console, which ends with them.

    A process of its own, so that pages never wait on a broker's loop, nor it on them.
    """
    import subprocess  # noqa: PLC0415 - only with --console
    import threading  # noqa: PLC0415

    stopping, running = threading.Event(), list[subprocess.Popen[bytes]]()

    def keep(words: list[str], environment: dict[str, str]) -> None:
        """Start it again, after a pause that grows, until the servers stop."""
        pause_s = CONSOLE_PAUSE_S
        while not stopping.is_set():
            started_s = time.monotonic()
            with subprocess.Popen(words, env=environment) as process:  # noqa: S603 - ourselves
                running[:] = [process]
                if stopping.is_set():
                    process.terminate()
                code = process.wait()
            if stopping.is_set():
                return
            is_new = time.monotonic() - started_s < CONSOLE_PAUSE_S_MAX
            pause_s = min(2 * pause_s, CONSOLE_PAUSE_S_MAX) if is_new else CONSOLE_PAUSE_S
            typer.echo(
                f"skylark: the console ended with code {code}; it starts again in {pause_s:g} s", err=True
            )
            stopping.wait(pause_s)

    def start(namesrv: str) -> None:
        say_next(namesrv)
        words = [sys.executable, "-m", "skylark", "console", "--namesrv", namesrv, "--port", str(port)]
        environment = dict(os.environ)
        if trial is not None:
            words.append("--login")
            environment |= {"SKYLARK_TLS_ENABLED": "true", "SKYLARK_TLS_TRUSTED": str(trial.authority)}
        threads.append(threading.Thread(target=keep, args=(words, environment), name="skylark-console"))
        threads[0].start()

    threads: list[threading.Thread] = []
    try:
        yield say_next if port is None else start
    finally:
        stopping.set()
        for process in running:
            process.terminate()
        for thread in threads:
            thread.join(CONSOLE_STOP_S)
            if thread.is_alive():
                running[0].kill()
                thread.join()


@dataclass(frozen=True)
class SecureTrial:
    """Certificates and credentials of `serve --secure`, made at the first start and kept."""

    properties: Path
    authority: Path
    administrator: Path
    first: Path
    """The administrator, as a setting of the brokers."""
    inner: Path

    @classmethod
    def prepare(cls, directory: Path, addresses: Iterable[str]) -> SecureTrial:
        """Make what is missing, readable only by this user. Raises SettingsError, OSError."""
        from skylark.certificates import TRIAL_DAYS, make_directory, names_of_machine, write_private  # noqa: PLC0415
        from skylark.settings.credentials import read_credentials  # noqa: PLC0415

        path = directory.absolute()
        made = cls(
            path / "tls.properties", path / "ca.pem", path / "admin.credentials", path / "admin.json",
            path / "inner.credentials",
        )  # fmt: skip
        if not made.properties.exists():
            names = [address for address in addresses if address and address not in ANY_ADDRESS]
            make_directory(path, names_of_machine(names), days=TRIAL_DAYS)
        for name, file in (("admin", made.administrator), ("skylark-inner", made.inner)):
            if not file.exists():
                write_private(file, f"accessKey={name}\nsecretKey={secrets.token_hex(16)}\n".encode())
        administrator = read_credentials(made.administrator)
        user = {"username": administrator.access_key, "password": administrator.secret_key}
        write_private(made.first, json.dumps(user).encode())
        return made

    def sets(self) -> dict[str, str]:
        """What `applied` changes, by RocketMQ's keys. No secret is in them: others can see command lines."""
        return {
            "tls.server.mode": "enforcing",
            "tls.config.file": str(self.properties),
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": f"@{self.first}",
            "innerClientAuthenticationCredentials": f"@{self.inner}",
        }

    def client_variables(self) -> dict[str, str]:
        """What the environment of a client needs, besides the address of the name server."""
        return {
            "SKYLARK_TLS_ENABLED": "true",
            "SKYLARK_TLS_TRUSTED": str(self.authority),
            "SKYLARK_CREDENTIALS_FILE": str(self.administrator),
        }

    def applied(self, settings: BrokerSettings) -> BrokerSettings:
        """Return the settings with TLS enforced and users required. Raises SettingsError."""
        from skylark.settings import ServerTlsSettings, TlsMode  # noqa: PLC0415
        from skylark.settings.auth import AuthSettings  # noqa: PLC0415

        auth = AuthSettings(
            enabled=True, authorization=True, first_user=f"@{self.first}", inner_credentials=f"@{self.inner}"
        )
        tls = ServerTlsSettings(mode=TlsMode.ENFORCING, config_file=self.properties)
        return replace(settings, tls=tls, auth=auth)

    def say_next(self, namesrv: str) -> None:
        """The lines that a client needs."""
        typer.echo(
            f"export NAMESRV_ADDR='{namesrv}'\n"
            f"export SKYLARK_TLS_ENABLED=true SKYLARK_TLS_TRUSTED='{self.authority}'\n"
            f"export SKYLARK_CREDENTIALS_FILE='{self.administrator}'"
        )


def _trial(settings: BrokerSettings) -> SecureTrial:
    return SecureTrial.prepare(settings.store.path / "secure", [settings.host, settings.advertised_host])


def _serve_one(
    name_server: NameServerSettings,
    settings: BrokerSettings,
    started: float,
    say_next: Callable[[str], None],
    front: GrpcFront,
) -> None:
    from skylark import embedded  # noqa: PLC0415

    async def main(stopping: Callable[[Signals], None]) -> None:
        both = embedded.Embedded(name_server, settings)

        def ready() -> None:
            assert both.broker is not None
            say_ready(started, f"name server on {both.name_server.address}")
            say_broker_ready(started, both.broker)
            say_next(both.name_server.address)

        await embedded.serve(both, ready, stopping, beside=front)

    server_process.run(main)


def _warn_of_name_servers(loaded: LoadedSettings[BrokerSettings]) -> None:
    """If a file or a flag names name servers. The variable is mostly set for clients."""
    origin = loaded.origins.get("name_servers", NAMESRV_VARIABLE)
    if origin != NAMESRV_VARIABLE:
        typer.echo(
            f"skylark: namesrvAddr ({origin}) has no effect: `serve` runs its own name server;"
            " `skylark broker` registers with others",
            err=True,
        )


def _name_server_settings(settings: BrokerSettings, port: int) -> NameServerSettings:
    """From the environment, else TLS and users as the broker's; its files are in the broker's directory."""
    from skylark.settings import NameServerSettings  # noqa: PLC0415

    flags = {"host": settings.host, "port": port}
    loaded: LoadedSettings[NameServerSettings] = load(
        NameServerSettings, NAME_SERVER_PREFIX, None, flags, None
    )
    made = loaded.settings
    if not any(name.startswith("tls.") for name in loaded.origins):
        made = replace(made, tls=settings.tls)
    # Without inner credentials the broker could not register with a name server that has users.
    if settings.auth.inner is not None and not any(name.startswith("auth.") for name in loaded.origins):
        made = replace(made, auth=settings.auth)
    if "kv_config_path" in loaded.origins:
        return made
    return replace(made, kv_config_path=settings.store.path / "namesrv/kvConfig.json")


def _say_next(namesrv: str) -> None:
    """Two lines to copy."""
    where = "" if namesrv == NAMESRV else f" --namesrv {namesrv}"
    typer.echo(f"try: skylark send orders 'hello'{where}\n     skylark tail orders{where}")


def _shared(sets: list[str] | None) -> list[str]:
    """The --set texts for all brokers, without OWN_SETTINGS."""
    from skylark.cli.broker_processes import OWN_SETTINGS  # noqa: PLC0415
    from skylark.settings import BrokerSettings  # noqa: PLC0415
    from skylark.settings.loader import known_settings  # noqa: PLC0415

    known = known_settings(BrokerSettings)
    own = {key for key, setting in known.items() if setting.name in OWN_SETTINGS}
    return [text for text in sets or () if text.partition("=")[0].strip() not in own]


def _shared_flags(
    *, flush: str | None, bind: str | None, advertise: str | None, config: Path | None, sets: list[str]
) -> list[str]:
    """The flags that every broker process gets as they were given."""
    flags = {"--flush": flush, "--bind": bind, "--advertise": advertise, "--config": config}
    arguments = [str(word) for flag, value in flags.items() if value is not None for word in (flag, value)]
    return arguments + [word for text in sets for word in ("--set", text)]
