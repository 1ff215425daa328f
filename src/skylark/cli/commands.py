"""Which commands there are and where: a command's module is imported when the command is wanted."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand

RUN, TALK, LOOK, DATA = "Run", "Send and receive", "Administer", "Store, pipelines, proof"


class Place(NamedTuple):
    """A module that has a command: as `app`, with commands of its own, or as a function of its name.

    `line` is how the help of the command begins, short enough for a terminal of 80 columns.
    """

    module: str
    panel: str
    line: str


PLACES = {
    "serve": Place("servers", RUN, "Run a name server and a broker in one process until Ctrl-C."),
    "broker": Place("broker", RUN, "Run a broker until Ctrl-C, or ask and tell those that run."),
    "namesrv": Place("namesrv", RUN, "Run a name server until Ctrl-C, or ask and tell those that run."),
    "doctor": Place("view", RUN, "Check this machine and the servers; say for each fault what to do."),
    "send": Place("talk", TALK, "Send a message, or many."),
    "tail": Place("talk", TALK, "Follow a topic: its last messages, then each new one."),
    "top": Place("view", LOOK, "Watch the whole system: brokers, topics, groups, rates and lag."),
    "cluster": Place("cluster", LOOK, "Clusters of brokers: how they are, and what is on them."),
    "topic": Place("topic", LOOK, "Topics: make, change, delete, and see what is in them."),
    "group": Place("group", LOOK, "Consumer groups: make, change, delete, and see how far they are."),
    "consumer": Place("consumer", LOOK, "Consumers that are connected, and what they say of themselves."),
    "producer": Place("producer", LOOK, "Producers that are connected."),
    "offset": Place("offset", LOOK, "Offsets of groups: read, reset, skip, clone."),
    "message": Place("message", LOOK, "Stored messages: find them, and follow what became of them."),
    "dlq": Place("dlq", LOOK, "Dead letters: messages that a group has failed too often."),
    "store": Place("store", DATA, "Look into a store directory, ours or Apache's, or back it up."),
    "spark": Place("spark", DATA, "Spark pipelines: archive, transform, aggregate, replay, report."),
    "bench": Place("bench", DATA, "Measure servers: our own, started for it, or those at --namesrv."),
    "torture": Place("torture", DATA, "Break a small cluster under load, and check every message."),
    "plan": Place("plan", DATA, "Plan for a load: brokers, machines, disk, memory, network."),
    "demo": Place("demo", DATA, "See it work: orders are sent, billed, retried, archived by Spark."),
}


def listed() -> dict[str, Any]:
    """Every command as a list of them shows it; none of them can be run."""
    return {
        name: TyperCommand(name, help=place.line, rich_help_panel=place.panel)
        for name, place in PLACES.items()
    }


def load(name: str) -> Any:
    """A command of `PLACES`, ready to run."""
    place = PLACES[name]
    module = import_module(f"skylark.cli.{place.module}")
    around = typer.Typer()
    if hasattr(module, "app"):
        around.add_typer(module.app, name=name)
    else:
        around.command(name)(getattr(module, name))
    return typer.main.get_group(around).commands[name]
