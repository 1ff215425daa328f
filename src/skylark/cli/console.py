"""`skylark console`: the web console."""

from __future__ import annotations

import importlib
import importlib.util
import re
import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import NAMESRV, Namesrv, pairs

PORT = 8088
FIRST = "local"
PORT_MAX = 65_535


def console(
    clusters: Annotated[
        list[str] | None,
        typer.Option("--cluster", metavar="NAME=HOST:PORT", help="One more cluster; may be repeated."),
    ] = None,
    host: Annotated[
        str, typer.Option("--bind", metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=PORT_MAX, help="0: any free port.")] = PORT,
    token: Annotated[
        bool, typer.Option("--token", help="Only for who has the link, which holds a new token.")
    ] = False,
    login: Annotated[
        bool, typer.Option("--login", help="People log in as users of the cluster; its rules decide.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Without any change.")] = False,
    hide_bodies: Annotated[
        bool, typer.Option("--hide-bodies", help="Without the bodies of messages.")
    ] = False,
    public_url: Annotated[
        str, typer.Option("--public-url", metavar="URL", help="Its address behind a proxy.")
    ] = "",
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="Keep the log of changes here.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="DIR", help="SQL can query this store directory.")
    ] = None,
    lake: Annotated[
        list[str] | None,
        typer.Option("--lake", metavar="NAME=delta:DIR", help="SQL can query this table; may be repeated."),
    ] = None,
    proxies: Annotated[
        list[str] | None,
        typer.Option("--proxy", metavar="NAME=URL", help="Metrics page of a gRPC proxy; may be repeated."),
    ] = None,
    decoders: Annotated[
        list[str] | None,
        typer.Option(
            "--decoder", metavar="[TOPICS=]MODULE:FUNCTION", help="Shows bodies of topics; may be repeated."
        ),
    ] = None,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Serve the web console until Ctrl-C: topics, messages, groups.

    Open the printed link. It serves Skylark's clusters and Apache RocketMQ's. On other addresses than
    127.0.0.1 it needs --token or --login.

    Examples: skylark console --namesrv 127.0.0.1:9876

    skylark console --cluster live=10.0.0.5:9876 --read-only
    """
    run(
        namesrv,
        clusters,
        host=host,
        port=port,
        token=token,
        login=login,
        public_url=public_url,
        read_only=read_only,
        hide_bodies=hide_bodies,
        state=state,
        store=store,
        lake=pairs(lake, "--lake"),
        proxies=pairs(proxies, "--proxy"),
        decoders=[_decoder(text) for text in decoders or ()],
    )


def _decoder(text: str) -> tuple[str, Any]:
    """A pattern of topics and a function of a module that can be imported here. Raises UsageError."""
    names, equals, place = text.rpartition("=")
    module, colon, function = place.partition(":")
    if not colon:
        raise UsageError(f"invalid --decoder {text!r}; write MODULE:FUNCTION, or TOPICS=MODULE:FUNCTION")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        re.compile(names)
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, re.error) as error:
        raise UsageError(f"invalid --decoder {text!r}: {error}") from None
    finally:
        sys.path.pop(0)
    return (names if equals else ".*"), found


def run(
    namesrv: str, clusters: list[str] | None, *, token: bool, pages: bool = True, **settings: Any
) -> None:
    """Serve the console, or without pages its API. Raises UsageError without the extra, OSError."""
    if importlib.util.find_spec("starlette") is None or importlib.util.find_spec("uvicorn") is None:
        raise UsageError("the console is not installed; run: pip install 'skylarkmq[console]'")
    import asyncio  # noqa: PLC0415 - `skylark console --help` must not wait for it

    from skylark.console.server import serve  # noqa: PLC0415
    from skylark.console.settings import ConsoleSettings  # noqa: PLC0415

    made = ConsoleSettings(
        clusters={FIRST: namesrv, **pairs(clusters, "--cluster")},
        token=secrets.token_urlsafe(24) if token else "",
        pages=pages,
        **settings,
    )
    name = "console" if pages else "gateway"
    asyncio.run(serve(made, lambda link: typer.echo(f"{name} on {link}")))
