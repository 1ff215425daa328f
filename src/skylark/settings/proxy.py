"""Settings of the gRPC proxy, under the keys of RocketMQ's rmq-proxy.json."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from skylark.errors import SettingsError
from skylark.settings.auth import AuthSettings
from skylark.settings.fields import check_ranges, setting
from skylark.settings.tls import ServerTlsSettings

GRPC_PORT = 8081


@dataclass(frozen=True, kw_only=True)
class ProxySettings:
    """Address, behaviour and limits of a proxy for RocketMQ 5 clients."""

    tls: ServerTlsSettings = field(default_factory=ServerTlsSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)

    host: str = setting("127.0.0.1", "bindAddress")
    port: int = setting(GRPC_PORT, "grpcServerPort", 0, 65_535)
    name_servers: str = setting("127.0.0.1:9876", "namesrvAddr")
    advertised_endpoint: str = setting("", "advertisedEndpoint")  # host:port in routes; empty: as asked
    proxy_protocol_from: str = setting("", "proxyProtocolFrom")  # peers whose HAProxy header is believed
    connections_max: int = setting(16_384, "connectionsMax", 1)
    metrics_port: int = setting(0, "metricsPromExporterPort", 0, 65_535)  # 0: no page
    metrics_token: str = setting("", "metricsToken", secret=True)
    calls_max: int = setting(10_000, "grpcThreadPoolQueueCapacity", 1)  # at the same time
    inbound_bytes_max: int = setting(130 << 20, "grpcMaxInboundMessageSize", 1)
    idle_timeout_ms: int = setting(120_000, "grpcClientIdleTimeMills", 1)  # without a call
    client_expiry_ms: int = setting(120_000, "channelExpiredTimeout", 1)  # without a heartbeat

    body_bytes_max: int = setting(4 << 20, "maxMessageSize", 1)
    properties_bytes_max: int = setting(16 << 10, "maxUserPropertySize", 0)
    properties_max: int = setting(128, "userPropertyMaxNum", 0)
    message_group_bytes_max: int = setting(64, "maxMessageGroupSize", 1)
    lite_topic_bytes_max: int = setting(64, "maxLiteTopicSize", 1, 100)
    lite_unacknowledged_max: int = setting(100, "maxLiteRenewNumPerChannel", 1)  # of a client
    refuse_empty_body: bool = setting(True, "enableMessageBodyEmptyCheck")
    check_message_type: bool = setting(True, "enableTopicMessageTypeCheck")
    delay_ms_max: int = setting(86_400_000, "maxDelayTimeMills", 0)
    recovery_s_max: int = setting(3600, "maxTransactionRecoverySecond", 0)

    invisible_ms_min: int = setting(10_000, "minInvisibleTimeMillsForRecv", 1)
    invisible_ms_max: int = setting(12 * 3_600_000, "maxInvisibleTimeMills", 1)
    invisible_ms: int = setting(60_000, "defaultInvisibleTimeMills", 1)  # of pops that are renewed
    poll_ms_min: int = setting(5000, "grpcClientConsumerMinLongPollingTimeoutMillis", 1)
    poll_ms_max: int = setting(20_000, "grpcClientConsumerMaxLongPollingTimeoutMillis", 1)
    receive_batch: int = setting(32, "grpcClientConsumerLongPollingBatchSize", 1, 32)
    renew: bool = setting(True, "enableProxyAutoRenew")
    renew_interval_ms: int = setting(5000, "renewSchedulePeriodMillis", 1)
    renew_ahead_ms: int = setting(10_000, "renewAheadTimeMillis", 1)
    renew_ms_max: int = setting(3 * 3_600_000, "renewMaxTimeMillis", 1)
    renew_attempts_max: int = setting(3, "maxRenewRetryTimes", 1)
    released_ms: int = setting(1000, "invisibleTimeMillisWhenClear", 0)

    producer_attempts_max: int = setting(3, "grpcClientProducerMaxAttempts", 1)
    producer_backoff_initial_ms: int = setting(10, "grpcClientProducerBackoffInitialMillis", 0)
    producer_backoff_ms_max: int = setting(1000, "grpcClientProducerBackoffMaxMillis", 0)
    producer_backoff_multiplier: int = setting(2, "grpcClientProducerBackoffMultiplier", 1)
    relay_timeout_ms: int = setting(5000, "grpcProxyRelayRequestTimeoutInMillis", 1)
    metadata_fresh_ms: int = setting(20_000, "metadataRefreshMills", 1)  # of topics and groups

    def __post_init__(self) -> None:
        check_ranges(self)
        self.believes("127.0.0.1")

    def believes(self, host: str) -> bool:
        """Return whether the HAProxy header of this peer is believed. Raises SettingsError."""
        words = [word.strip() for word in self.proxy_protocol_from.replace(",", ";").split(";")]
        try:
            networks = [ipaddress.ip_network(word) for word in words if word]
        except ValueError as error:
            raise SettingsError("proxy_protocol_from", f"{error}; use addresses such as 10.0.0.0/8") from None
        return any(ipaddress.ip_address(host.partition("%")[0]) in network for network in networks)
