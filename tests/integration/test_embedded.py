"""Servers that say that they are up can be used."""

from __future__ import annotations

from pathlib import Path

from skylark.broker.broker import Broker
from skylark.embedded import Embedded
from skylark.settings import BrokerSettings, NameServerSettings, StoreSettings


def broker_settings(directory: Path, name_servers: str = "") -> BrokerSettings:
    return BrokerSettings(
        port=0, metrics_port=0, name_servers=name_servers, store=StoreSettings(path=directory)
    )


async def test_clients_find_the_broker_as_soon_as_both_are_up(tmp_path: Path) -> None:
    name_server = NameServerSettings(port=0, kv_config_path=tmp_path / "kvConfig.json")
    both = Embedded(name_server, broker_settings(tmp_path / "store"))
    await both.start()
    try:
        assert both.broker is not None
        assert both.broker.registration.registered == {both.name_server.address}
    finally:
        await both.stop()


async def test_a_name_server_that_is_away_is_not_waited_for(tmp_path: Path) -> None:
    broker = Broker(broker_settings(tmp_path, "127.0.0.1:1"))
    await broker.start()
    try:
        await broker.registration.first_attempt()
        assert broker.registration.registered == set()
    finally:
        await broker.stop()
