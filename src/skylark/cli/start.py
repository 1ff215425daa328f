"""Entry point of the `skylark` command: `serve` is up at once, as it does not wait for the other commands."""

from __future__ import annotations

import sys

import typer

from skylark.cli.app import EXIT_INTERRUPTED, new_app


def run() -> None:
    """Run the command that the arguments name."""
    try:
        _app(sys.argv[1:2])()
    except KeyboardInterrupt:  # while modules were being imported
        sys.exit(EXIT_INTERRUPTED)


def _app(words: list[str]) -> typer.Typer:
    if words == ["serve"]:
        from skylark.cli import servers  # noqa: PLC0415

        app = new_app()
        app.command()(servers.serve)
        return app
    from skylark.cli.main import app as whole  # noqa: PLC0415

    return whole


if __name__ == "__main__":
    run()
