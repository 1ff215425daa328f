"""Modes of a run: what is promised, and which faults it has to stand."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.torture.faults import CLIENT_FAULTS, CLOCK_FAULT, REPLICA_FAULTS, SERVER_FAULTS

SERVERS = tuple(SERVER_FAULTS)
WITHOUT_CLOCK = tuple(name for name in SERVERS if name != CLOCK_FAULT)


@dataclass(frozen=True, slots=True)
class Mode:
    """A kind of run."""

    flush: str = "async"
    ordered: bool = False
    delayed: bool = False
    transactions: bool = False
    with_slaves: bool = False
    brokers: int = 2
    server_faults: tuple[str, ...] = SERVERS
    client_faults: tuple[str, ...] = tuple(CLIENT_FAULTS)

    @property
    def stored_once(self) -> bool:
        """What is delayed may come twice after a kill: how far it is delivered is noted now and then."""
        return not self.delayed


MODES = {
    "async": Mode(),
    "sync": Mode(flush="sync"),
    "sync-master": Mode(with_slaves=True, brokers=1, server_faults=(*SERVERS, *REPLICA_FAULTS)),
    "transactions": Mode(transactions=True),
    "orderly": Mode(ordered=True),
    # Whether a delay is over is a question to the wall clock: one that jumps makes it end early.
    "delay": Mode(delayed=True, server_faults=WITHOUT_CLOCK),
}
