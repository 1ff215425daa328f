"""Entry point of the `skylark` command: a command does not wait for the modules of the others."""

from __future__ import annotations

import io
import sys

import typer

from skylark.cli.app import EXIT_INTERRUPTED, new_app
from skylark.cli.commands import PLACES, add


def run() -> None:
    """Run the command that the arguments name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a message may hold what the terminal cannot show
    try:
        _app(sys.argv[1:2])()
    except KeyboardInterrupt:  # while modules were being imported
        sys.exit(EXIT_INTERRUPTED)


def _app(words: list[str]) -> typer.Typer:
    if words and words[0] in PLACES:
        app = new_app()
        add(app, words[0])
        return app
    from skylark.cli.main import app as whole  # noqa: PLC0415

    return whole


if __name__ == "__main__":
    run()
