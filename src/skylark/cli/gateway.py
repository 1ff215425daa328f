"""`skylark gateway`: the console's HTTP API without pages."""

from __future__ import annotations

from typing import Annotated

import typer

from skylark.cli.console import PORT, PORT_MAX, run
from skylark.cli.options import NAMESRV, Namesrv


def gateway(
    clusters: Annotated[
        list[str] | None,
        typer.Option("--cluster", metavar="NAME=HOST:PORT", help="One more cluster; may be repeated."),
    ] = None,
    host: Annotated[
        str, typer.Option("--bind", metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=PORT_MAX, help="0: any free port.")] = PORT,
    token: Annotated[bool, typer.Option("--token", help="Only with a new token, which is printed.")] = False,
    login: Annotated[
        bool, typer.Option("--login", help="Programs pass a user of the cluster; its rules decide.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Without any change.")] = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Serve the HTTP API: send, read, offsets, administration.

    The description is at /api/v1/openapi.json.

    Example: skylark gateway --namesrv 127.0.0.1:9876
    """
    run(namesrv, clusters, host=host, port=port, token=token, login=login, read_only=read_only, pages=False)
