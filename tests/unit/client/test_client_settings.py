"""Settings of clients: Java's defaults, ranges, and where name servers come from."""

import pytest

from skylark.errors import SettingsError
from skylark.settings.client import ClientSettings, Compression, ProducerSettings, name_server_list


def test_the_defaults_are_java_s() -> None:
    client = ClientSettings()
    assert (client.route_refresh_interval_ms, client.heartbeat_interval_ms) == (30_000, 30_000)
    assert (client.request_timeout_ms, client.connect_timeout_ms, client.vip_channel) == (3000, 3000, False)
    producer = ProducerSettings()
    assert (producer.send_timeout_ms, producer.retries, producer.new_topic_queues) == (3000, 2, 4)
    assert (producer.compress_from_bytes, producer.compress_level) == (4096, 5)
    assert (producer.compression, producer.message_bytes_max) == (Compression.ZLIB, 4 << 20)
    assert (producer.in_flight_max, producer.in_flight_bytes_max) == (1024, 100 << 20)
    assert (producer.batching, producer.batch_delay_ms, producer.batch_bytes_max) == (False, 10, 32 << 10)
    assert not producer.avoid_slow_brokers


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"send_timeout_ms": 0}, "send_timeout_ms"),
        ({"retries": -1}, "retries"),
        ({"batch_delay_ms": 30_001}, "batch_delay_ms"),
        ({"compress_level": 10}, "compress_level"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, int], name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        ProducerSettings(**settings)  # type: ignore[arg-type]


def test_name_servers_are_given_or_set_or_in_the_environment() -> None:
    settings = ClientSettings(name_servers="b:2")
    environment = {"NAMESRV_ADDR": "c:3;d:4"}
    assert name_server_list("a:1; a:1 ;b:2;", settings, environment) == ("a:1", "b:2")
    assert name_server_list("", settings, environment) == ("b:2",)
    assert name_server_list("", ClientSettings(), environment) == ("c:3", "d:4")
    assert name_server_list("http://host:9876", ClientSettings(), {}) == ("host:9876",)
    assert name_server_list("[::1]:9876", ClientSettings(), {}) == ("[::1]:9876",)


@pytest.mark.parametrize("given", ["host", "host:port", ":9876", "host:99999"])
def test_a_name_server_without_a_port_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match="host:port"):
        name_server_list(given, ClientSettings(), {})


def test_without_name_servers_it_is_said_how_to_give_them() -> None:
    with pytest.raises(SettingsError, match="NAMESRV_ADDR"):
        name_server_list("", ClientSettings(), {})
