"""Settings of a controller, which elects the masters of brokers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from skylark.errors import SettingsError
from skylark.settings.auth import AuthSettings
from skylark.settings.fields import check_address, check_ranges, setting
from skylark.settings.tls import ClientTlsSettings, ServerTlsSettings


class RegisterKind(Enum):
    """Where a controller keeps its documents. A file serves one controller, etcd any number."""

    FILE = "file"
    ETCD = "etcd"


@dataclass(frozen=True, kw_only=True)
class EtcdSettings:
    """How to reach etcd, by its JSON gateway."""

    endpoints: str = setting("http://127.0.0.1:2379", "etcdEndpoints")  # separated by commas
    prefix: str = setting("/skylark/DefaultCluster/", "etcdPrefix")  # of all keys; one per set of controllers
    lease_s: int = setting(2, "etcdLeaseSeconds", 2, 60)  # another leads this long after a leader is gone
    timeout_ms: int = setting(1000, "etcdTimeout", 50)  # of one request
    user: str = setting("", "etcdUser")  # empty: etcd has no users
    password: str = setting("", "etcdPassword", secret=True)  # or @FILE
    trusted: Path | None = setting(None, "etcdTrustedCa")
    certificate: Path | None = setting(None, "etcdCertificate")
    key: Path | None = setting(None, "etcdKey")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.prefix.endswith("/"):
            raise SettingsError("etcdPrefix", f"{self.prefix!r} does not end in /")
        if not self.addresses:
            raise SettingsError("etcdEndpoints", "missing; use http://host:2379, several separated by commas")
        if self.user and not self.password:
            raise SettingsError("etcdPassword", f"missing, but etcdUser is {self.user}; use @FILE")

    @property
    def addresses(self) -> list[str]:
        return [word.strip().rstrip("/") for word in self.endpoints.split(",") if word.strip()]


@dataclass(frozen=True, kw_only=True)
class ControllerSettings:
    """Identity, address, register and behaviour of a controller.

    As in RocketMQ, the entry of this controller in `peers` is where it listens; without peers it is alone,
    and listens on `port`.
    """

    tls: ServerTlsSettings = field(default_factory=ServerTlsSettings)
    tls_client: ClientTlsSettings = field(default_factory=ClientTlsSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    etcd: EtcdSettings = field(default_factory=EtcdSettings)

    host: str = setting("127.0.0.1", "bindAddress")
    port: int = setting(9878, "listenPort", 0, 65_535)
    group: str = setting("controllers", "controllerDLegerGroup")
    self_id: str = setting("n0", "controllerDLegerSelfId")
    peers: str = setting("", "controllerDLegerPeers")  # n0-host:port;n1-host:port
    register: RegisterKind = setting(RegisterKind.FILE, "controllerType")
    store_path: Path = setting(Path("skylark-data/controller"), "controllerStorePath")
    config_path: Path | None = setting(None, "configStorePath")  # changes at run time are saved here
    require_secure_listener: bool = setting(False, "requireSecureListener")

    scan_interval_ms: int = setting(100, "scanNotActiveBrokerInterval", 1, live=True)
    unseen_grace_ms: int = setting(10_000, "unseenBrokerGrace", 0)  # after the start, for masters to connect
    elect_unclean: bool = setting(False, "enableElectUncleanMaster", live=True)
    notify_roles: bool = setting(True, "notifyBrokerRoleChanged", live=True)

    groups_max: int = setting(10_000, "brokerNamesMax", 1)
    connections_max: int = setting(16_384, "connectionsMax", 1)
    idle_timeout_s: int = setting(120, "serverChannelMaxIdleTimeSeconds", 1)
    metrics_host: str = setting("", "metricsPromExporterHost")  # empty: the host
    metrics_port: int = setting(0, "metricsPromExporterPort", 0, 65_535)  # 0: none
    metrics_token: str = setting("", "metricsToken", secret=True)

    def __post_init__(self) -> None:
        check_ranges(self)
        addresses = self.peer_addresses
        if addresses and self.self_id not in addresses:
            raise SettingsError(
                "controllerDLegerSelfId", f"{self.self_id} is not in controllerDLegerPeers {self.peers}"
            )

    @property
    def peer_addresses(self) -> dict[str, str]:
        """The addresses of all controllers by id; empty if this one is alone. Raises SettingsError."""
        addresses = {}
        for entry in (word.strip() for word in self.peers.split(";") if word.strip()):
            peer_id, _, address = entry.partition("-")
            if not address:
                raise SettingsError("controllerDLegerPeers", f"invalid peer {entry!r}; use id-host:port")
            check_address(address, "controllerDLegerPeers")
            addresses[peer_id] = address
        return addresses
