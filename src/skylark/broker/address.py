"""The ports of a broker, and the addresses that it advertises to clients and slaves."""

from dataclasses import dataclass
from typing import Self

from skylark.model.message import pack_host
from skylark.remoting.address import check_host, free_port, ip_of, join_address
from skylark.settings import BrokerSettings
from skylark.settings.fields import FAST_PORT_DISTANCE


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    host: str
    """The host that clients are given."""
    port: int
    replica_port: int
    text: str
    """`host:port`."""
    replica: str
    """`host:port` for slaves."""
    packed: bytes
    """Host and port as records hold them."""

    @classmethod
    def choose(cls, settings: BrokerSettings) -> Self:
        """Take the addresses of the settings; a port of 0 becomes a free one.

        Raises SettingsError for a host that cannot be listened on or advertised.
        """
        check_host(settings.host)
        port = settings.port or free_port(settings.host, -FAST_PORT_DISTANCE, 0, 1)
        replica_port = port + 1 if settings.replica_port is None else settings.replica_port
        replica_port = replica_port or free_port(settings.host, 0)
        host = settings.advertised_host or settings.host
        return cls(
            host,
            port,
            replica_port,
            join_address(host, port),
            join_address(settings.advertised_replica_host or host, replica_port),
            pack_host(ip_of(host), port),
        )
