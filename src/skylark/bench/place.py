"""Where a benchmark runs: servers of its own, started for it and thrown away, or those that run already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from skylark.bench.load import BadLoad, Load
from skylark.bench.machine import scratch
from skylark.bench.measuring import Target, messages_that_fit
from skylark.bench.processes import BROKER_CPU, CLIENT_CPU, can_pin
from skylark.bench.results import Value
from skylark.bench.servers import Served, own_servers
from skylark.bench.thin import ThinClient
from skylark.errors import BrokerUnknown
from skylark.protocol.requests.route import GetBrokerClusterInfo
from skylark.remoting.blocking import BlockingConnection

FLUSH_MODES = ("async", "sync")
MASTER_ID = 0


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a person says about servers. Raises BadLoad."""

    namesrv: str = ""
    """Empty: servers of our own."""
    broker: str = ""
    """The name of one broker; empty: the first."""
    flush: str = "async"
    """Of our own broker."""
    settings: dict[str, str | int] = field(default_factory=dict)
    """Of our own broker, by Apache's names."""
    pin: bool = True
    """Our own broker gets one processor, clients the others, where there are several."""

    def __post_init__(self) -> None:
        if self.flush not in FLUSH_MODES:
            raise BadLoad(f"flush is {self.flush!r}: {' or '.join(FLUSH_MODES)} is possible")
        if self.broker and not self.namesrv:
            raise BadLoad("a broker is chosen among those of a name server: say which name server")

    @property
    def is_own(self) -> bool:
        return not self.namesrv

    @property
    def client_cpu(self) -> int | None:
        return CLIENT_CPU if self.is_own and self.pin else None


@dataclass(frozen=True)
class Site:
    """Servers that are ready."""

    place: Place
    served: Served
    client: ThinClient
    directory: Path | None
    """Of our own servers."""

    @property
    def name_server(self) -> str:
        """The first of them."""
        return self.served.namesrv.split(";")[0].strip()

    def target(self) -> Target:
        """Close it after use."""
        return Target(self.served.broker, self.client, cpu=self.place.client_cpu)

    def fitted(self, load: Load) -> Load:
        """The load, aimed at the broker, and ended where the disk of our own one would be full."""
        load = replace(load, address=self.served.broker)
        if self.directory is None:
            return load
        room = messages_that_fit(self.directory, load.body_bytes)
        return replace(load, messages_max=min(load.messages_max or room, room))

    def conditions(self, **more: Value) -> dict[str, Value]:
        """For the document."""
        own = self.place.is_own
        return {
            "servers": "our own, started for this run" if own else self.place.namesrv,
            "broker": self.served.broker,
            **({"flush": self.place.flush, "pinned": self.place.pin and can_pin()} if own else {}),
            **self.place.settings,
            "client": self.client.kind,
            **more,
        }


@contextmanager
def standing(place: Place) -> Iterator[Site]:
    """The servers of a place. Raises ProcessFailed, RocketMQError."""
    client = ThinClient()
    if not place.is_own:
        yield Site(place, _find(place), client, None)
        return
    with scratch() as directory:
        cpu = BROKER_CPU if place.pin else None
        with own_servers(directory, flush=place.flush, settings=place.settings, cpu=cpu) as served:
            yield Site(place, served, client, directory)


def _find(place: Place) -> Served:
    """A master that the name servers know. Raises BrokerUnknown, RocketMQError."""
    with BlockingConnection(place.namesrv.split(";")[0].strip()) as connection:
        table = connection.call(GetBrokerClusterInfo()).broker_addr_table
    masters = {
        name: group.broker_addrs[MASTER_ID]
        for name, group in sorted(table.items())
        if MASTER_ID in group.broker_addrs
    }
    name = place.broker or next(iter(masters), "")
    if name not in masters:
        raise BrokerUnknown(name)
    return Served(place.namesrv, masters[name], 0)
