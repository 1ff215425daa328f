"""Settings of clients: what all producers, consumers and admins of one client id share, and of producers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from skylark.errors import SettingsError
from skylark.settings.fields import check_address, check_ranges, setting

NAME_SERVERS_VARIABLE = "NAMESRV_ADDR"
UNNAMED_INSTANCE = "DEFAULT"
"""An instance without a name of its own: one id for each client object."""


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Who a client is, whom it asks, and how often. The defaults are the Java client's."""

    name_servers: str = setting("", "namesrvAddr")  # a:9876;b:9876; empty: the variable NAMESRV_ADDR
    client_ip: str = setting("", "clientIP")  # empty: the address by which this machine reaches others
    instance_name: str = setting(UNNAMED_INSTANCE, "instanceName")
    unit_name: str = setting("", "unitName")
    namespace: str = setting("", "namespace")
    vip_channel: bool = setting(False, "vipChannelEnabled")

    route_refresh_interval_ms: int = setting(30_000, "pollNameServerInterval", 1)
    heartbeat_interval_ms: int = setting(30_000, "heartbeatBrokerInterval", 1)
    request_timeout_ms: int = setting(3000, "mqClientApiTimeout", 1)
    connect_timeout_ms: int = setting(3000, "connectTimeoutMillis", 1)
    stop_timeout_ms: int = setting(5000, "stopTimeout", 0)

    def __post_init__(self) -> None:
        check_ranges(self)


class Compression(Enum):
    """How bodies are compressed: with zlib always, with the others where `skylarkmq[compression]` is."""

    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


@dataclass(frozen=True, kw_only=True)
class ProducerSettings:
    """How a producer sends. The defaults are the Java producer's."""

    send_timeout_ms: int = setting(3000, "sendMsgTimeout", 1)  # of all attempts together
    attempt_timeout_ms: int | None = setting(None, "sendMsgMaxTimeoutPerRequest", 1)
    retries: int = setting(2, "retryTimesWhenSendFailed", 0)
    retry_when_not_stored: bool = setting(False, "retryAnotherBrokerWhenNotStoreOK")
    message_bytes_max: int = setting(4 << 20, "maxMessageSize", 1)
    new_topic_queues: int = setting(4, "defaultTopicQueueNums", 1)

    compress_from_bytes: int = setting(4096, "compressMsgBodyOverHowmuch", 1)
    compress_level: int = setting(5, "compressLevel", 0, 9)
    compression: Compression = setting(Compression.ZLIB, "compressType")

    avoid_slow_brokers: bool = setting(False, "sendLatencyFaultEnable")

    in_flight_max: int = setting(1024, "backPressureForAsyncSendNum", 1)
    in_flight_bytes_max: int = setting(100 << 20, "backPressureForAsyncSendSize", 1 << 20)

    batching: bool = setting(False, "autoBatch")
    batch_delay_ms: int = setting(10, "batchMaxDelayMs", 1, 30_000)
    batch_bytes_max: int = setting(32 << 10, "batchMaxBytes", 1, 2 << 20)
    batch_pending_bytes_max: int = setting(32 << 20, "totalBatchMaxBytes", 1)

    trace: bool = setting(False, "enableTrace")
    trace_topic: str = setting("RMQ_SYS_TRACE_TOPIC", "traceTopic")
    trace_flush_ms: int = setting(5000, "traceFlushInterval", 1)

    def __post_init__(self) -> None:
        check_ranges(self)


def name_server_list(
    given: str, settings: ClientSettings, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the addresses of the name servers: as given, else as set, else from the environment.

    Raises SettingsError if there are none, or one is not of the form host:port.
    """
    variables = os.environ if environment is None else environment
    text = given or settings.name_servers or variables.get(NAME_SERVERS_VARIABLE, "")
    addresses = tuple(
        dict.fromkeys(_without_scheme(word.strip()) for word in text.split(";") if word.strip())
    )
    if not addresses:
        raise SettingsError(
            "name_servers",
            f'none is given: pass namesrv="host:9876" or set the variable {NAME_SERVERS_VARIABLE}',
        )
    for address in addresses:
        check_address(address, "name_servers")
    return addresses


def _without_scheme(address: str) -> str:
    return address.rpartition("/")[2] if address.startswith(("http://", "https://")) else address
