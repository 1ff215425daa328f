"""Modes of a run: what is promised, and which faults it has to stand."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.torture.faults import CLOCK_FAULT, FAULTS, REPLICA_FAULTS

ALL = tuple(FAULTS)
WITHOUT_CLOCK = tuple(name for name in FAULTS if name != CLOCK_FAULT)


@dataclass(frozen=True, slots=True)
class Mode:
    """A kind of run."""

    flush: str = "async"
    ordered: bool = False
    delayed: bool = False
    transactions: bool = False
    with_slaves: bool = False
    brokers: int = 2
    faults: tuple[str, ...] = ALL

    @property
    def stored_once(self) -> bool:
        """What is delayed may come twice after a kill: how far it is delivered is noted now and then."""
        return not self.delayed


MODES = {
    "async": Mode(),
    "sync": Mode(flush="sync"),
    "sync-master": Mode(with_slaves=True, brokers=1, faults=(*ALL, *REPLICA_FAULTS)),
    "transactions": Mode(transactions=True),
    "orderly": Mode(ordered=True),
    # Whether a delay is over is a question to the wall clock: one that jumps makes it end early.
    "delay": Mode(delayed=True, faults=WITHOUT_CLOCK),
}
