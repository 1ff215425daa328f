"""Settings of clients: Java's defaults, ranges, and where name servers come from."""

from dataclasses import fields
from enum import Enum
from pathlib import Path

import pytest

from skylark.errors import SettingsError
from skylark.settings.client import ClientSettings, Compression, ProducerSettings, name_server_list
from skylark.settings.fields import allowed_range


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


def shown(value: object) -> str:
    """A default as the reference writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Enum):
        return f"`{value.name}`"
    return f"`{value}`" if value != "" else "empty"


def test_the_reference_tells_every_setting_with_its_default_and_range() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "producer-settings.md").read_text()
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in page.splitlines() if row.startswith("| `")
    ]
    settings = [*fields(ProducerSettings), *fields(ClientSettings)]
    assert [row[0].strip("`") for row in rows] == [each.name for each in settings]
    for row, each in zip(rows, settings, strict=True):
        assert row[1:3] == [f"`{each.metadata['java']}`", shown(each.default)], each.name
        assert row[4].endswith(".")
        if allowed_range(each):
            assert row[3] == allowed_range(each)
