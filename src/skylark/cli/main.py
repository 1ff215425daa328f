"""The `skylark` command with all its commands."""

from __future__ import annotations

from skylark.cli.app import new_app
from skylark.cli.commands import PLACES, add

app = new_app()
for _name in PLACES:
    add(app, _name)
