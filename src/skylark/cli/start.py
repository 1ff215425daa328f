"""Entry point of the `skylark` command."""

from __future__ import annotations

import io
import sys

from skylark.cli.errors import EXIT_INTERRUPTED


def run() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # messages may hold characters that the terminal cannot show
    try:
        from skylark.cli.main import app  # noqa: PLC0415 - Ctrl-C may come during the import

        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
