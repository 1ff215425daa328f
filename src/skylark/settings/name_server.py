"""Settings of a name server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from skylark.settings.auth import AuthSettings
from skylark.settings.fields import check_ranges, setting
from skylark.settings.tls import ServerTlsSettings


@dataclass(frozen=True, kw_only=True)
class NameServerSettings:
    """Address, behaviour and limits of a name server."""

    tls: ServerTlsSettings = field(default_factory=ServerTlsSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    open_routes: bool = setting(False, "nameServerRoutesOpen")  # routes need no signature

    host: str = setting("127.0.0.1", "bindAddress")
    port: int = setting(9876, "listenPort", 0, 65_535)
    require_secure_listener: bool = setting(False, "requireSecureListener")
    kv_config_path: Path = setting(Path("skylark-data/namesrv/kvConfig.json"), "kvConfigPath")
    config_path: Path | None = setting(None, "configStorePath")  # changes at run time are saved here

    scan_interval_ms: int = setting(5000, "scanNotActiveBrokerInterval", 1, live=True)
    broker_timeout_ms: int = setting(120_000, "brokerTimeoutMillis", 1)
    idle_timeout_s: int = setting(120, "serverChannelMaxIdleTimeSeconds", 1)
    wait_for_service: bool = setting(False, "needWaitForService", live=True)
    wait_for_service_s: int = setting(45, "waitSecondsForService", 0, live=True)

    # A controller in the same process, with its settings in the same file.
    with_controller: bool = setting(False, "enableControllerInNamesrv")
    order_messages: bool = setting(False, "orderMessageEnable", live=True)
    return_order_config: bool = setting(True, "returnOrderTopicConfigToBroker", live=True)
    all_topic_list: bool = setting(True, "enableAllTopicList", live=True)
    topic_list: bool = setting(True, "enableTopicList", live=True)
    delete_absent_topics: bool = setting(False, "deleteTopicWithBrokerRegistration", live=True)

    metrics_port: int = setting(0, "metricsPromExporterPort", 0, 65_535)  # 0: none
    metrics_token: str = setting("", "metricsToken", secret=True)

    connections_max: int = setting(16_384, "connectionsMax", 1)
    brokers_max: int = setting(10_000, "brokersMax", 1)
    topics_max: int = setting(100_000, "topicsMax", 1)
    topic_entries_max: int = setting(1_000_000, "topicEntriesMax", 1)  # pairs of topic and broker
    topic_queues_max: int = setting(65_536, "topicQueuesMax", 1)  # per topic and broker
    filter_servers_max: int = setting(64, "filterServersMax", 0)  # per broker
    kv_entries_max: int = setting(10_000, "kvEntriesMax", 1)
    kv_chars_max: int = setting(16 << 20, "kvCharsMax", 1)  # all keys and values together

    def __post_init__(self) -> None:
        check_ranges(self)
