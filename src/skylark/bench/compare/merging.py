"""Pure. Several comparisons as one: cells that take too long for one sitting, or were measured again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from skylark.bench.compare.cells import CELLS, OURS, PEERS
from skylark.bench.compare.figures import Comparison, NotRun, Outcome, Row, SystemFacts
from skylark.bench.machine import Machine
from skylark.bench.results import Value

CELLS_CONDITION = "cells"
BETWEEN = " / "
PARTS = "; "
"""Between what a system's settings say."""


def merge(parts: Sequence[Comparison]) -> Comparison:
    """All of them, in the order given, of which there is at least one.

    What several of them measured counts as the last of these has it, rows and rounds.
    """
    outcomes = _outcomes(parts)
    return Comparison(
        made_at=_together(part.made_at for part in parts),
        skylark=_together(part.skylark for part in parts),
        machine=_machine([part.machine for part in parts]),
        conditions=_conditions(parts),
        systems=_systems(parts),
        rows=_rows(parts),
        not_run=_not_run(parts, outcomes.keys()),
        outcomes=[outcome for rounds in outcomes.values() for outcome in rounds],
    )


def _rows(parts: Sequence[Comparison]) -> list[Row]:
    chosen: dict[tuple[str, str, str], Row] = {}
    for part in parts:
        for row in part.rows:
            key = row.peer, row.cell, row.metric
            if key not in chosen or _is_whole(row) or not _is_whole(chosen[key]):
                chosen[key] = row
    cells = [cell.name for cell in CELLS]
    peers = [*PEERS, ""]
    return sorted(chosen.values(), key=lambda row: (peers.index(row.peer), cells.index(row.cell)))


def _is_whole(row: Row) -> bool:
    return row.ours is not None and (row.theirs is not None or not row.peer)


def _outcomes(parts: Sequence[Comparison]) -> dict[tuple[str, str], list[Outcome]]:
    """By cell and system."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for part in parts:
        of_part: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in part.outcomes:
            of_part.setdefault((outcome.cell, outcome.system), []).append(outcome)
        found |= of_part
    return found


def _not_run(parts: Sequence[Comparison], measured: Iterable[tuple[str, str]]) -> list[NotRun]:
    """What no part has, and what went wrong in the part that counts."""
    found: dict[tuple[str, str], NotRun] = {}
    tried = set(measured)
    for part in parts:
        here = {(each.cell, each.system) for each in part.outcomes}
        wrong = {(each.cell, each.system): each for each in part.not_run}
        found = {key: each for key, each in found.items() if key not in here}
        found |= {key: each for key, each in wrong.items() if key in here or key not in tried}
    return list(found.values())


def _systems(parts: Sequence[Comparison]) -> list[SystemFacts]:
    found: dict[str, SystemFacts] = {}
    for facts in (facts for part in parts for facts in part.systems):
        known = found.get(facts.name, facts)
        words = dict.fromkeys((*known.settings.split(PARTS), *facts.settings.split(PARTS)))
        found[facts.name] = SystemFacts(facts.name, facts.title, PARTS.join(words), facts.client)
    return [found[name] for name in (OURS, *PEERS) if name in found]


def _conditions(parts: Sequence[Comparison]) -> dict[str, Value]:
    names = dict.fromkeys(name for part in parts for name in part.conditions if name != CELLS_CONDITION)
    found: dict[str, Value] = {}
    for name in names:
        values = list(dict.fromkeys(part.conditions[name] for part in parts if name in part.conditions))
        found[name] = values[0] if len(values) == 1 else _together(map(str, values))
    measured = {outcome.cell for part in parts for outcome in part.outcomes}
    found[CELLS_CONDITION] = ", ".join(cell.name for cell in CELLS if cell.name in measured)
    return found


def _machine(machines: Sequence[Machine]) -> Machine:
    """The last, with the highest load of all."""
    return msgspec.structs.replace(
        machines[-1],
        processor=_together(machine.processor for machine in machines),
        load_1m=max(machine.load_1m for machine in machines),
        commit=_together(machine.commit for machine in machines if machine.commit) or None,
    )


def _together(values: Iterable[str]) -> str:
    """Each once, also of those that were merged before."""
    return BETWEEN.join(dict.fromkeys(part for value in values for part in value.split(BETWEEN)))
