"""`python -m skylark`: the `skylark` command."""

from skylark.cli.start import run

run()
