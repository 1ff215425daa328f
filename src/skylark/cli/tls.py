"""`skylark tls`: certificates for a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Make certificates for TLS, for a trial.")


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="Host name or address of servers; repeat it for more."),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, help="How long the certificates are valid.")] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the certificates; the CA in DIR stays.")
    ] = False,
) -> None:
    """Make a private CA, and certificates for servers and clients.

    One certificate serves all servers: give every host name and address that clients connect to. The name of
    this machine and its loopback addresses are always in it. Only you can read the files. Running servers
    load renewed ones by themselves. In production, use the CA of your organisation.

    Examples: skylark tls init certificates --name 10.0.0.5 --name mq.example.org

    skylark tls init certificates --name 10.0.0.5 --renew
    """
    from skylark.certificates import make_directory, names_of_machine  # noqa: PLC0415 - slow, see the module

    found = names_of_machine(names or ())
    files = make_directory(directory, found, days=days, renew=renew)
    typer.echo(
        f"certificates for {', '.join(found)}, valid for {days} days\n"
        f"servers: --set tls.config.file={files.properties}\n"
        f"clients: export SKYLARK_TLS_ENABLED=true SKYLARK_TLS_TRUSTED={files.authority}\n"
        f"keep {files.authority_key} secret: it signs certificates that your clients trust"
    )
