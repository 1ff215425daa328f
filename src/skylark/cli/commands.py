"""Which commands there are and where: a command's module is imported when the command is wanted."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import typer

RUN, TALK, LOOK, DATA = "Run", "Send and receive", "Administer", "Store, pipelines, proof"


class Place(NamedTuple):
    """A module that has a command: as a function of its name, or with commands of its own as `app`."""

    module: str
    panel: str
    is_group: bool = True


PLACES = {
    "serve": Place("servers", RUN, is_group=False),
    "broker": Place("broker", RUN),
    "namesrv": Place("namesrv", RUN),
    "doctor": Place("view", RUN, is_group=False),
    "send": Place("talk", TALK, is_group=False),
    "tail": Place("talk", TALK, is_group=False),
    "top": Place("view", LOOK, is_group=False),
    "cluster": Place("cluster", LOOK),
    "topic": Place("topic", LOOK),
    "group": Place("group", LOOK),
    "consumer": Place("consumer", LOOK),
    "producer": Place("producer", LOOK),
    "offset": Place("offset", LOOK),
    "message": Place("message", LOOK),
    "dlq": Place("dlq", LOOK),
    "store": Place("store", DATA),
    "spark": Place("spark", DATA),
    "bench": Place("bench", DATA),
    "torture": Place("torture", DATA, is_group=False),
    "plan": Place("plan", DATA, is_group=False),
    "demo": Place("demo", DATA, is_group=False),
}


def add(app: typer.Typer, name: str) -> None:
    """Give the app a command of `PLACES`."""
    place = PLACES[name]
    module = import_module(f"skylark.cli.{place.module}")
    if place.is_group:
        app.add_typer(module.app, name=name, rich_help_panel=place.panel)
    else:
        app.command(name, rich_help_panel=place.panel)(getattr(module, name))
