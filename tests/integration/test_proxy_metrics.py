"""What a proxy exports: on its own page, and on that of the broker in whose process it runs."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from skylark.cli.grpc_front import GrpcFront
from skylark.console.settings import ConsoleSettings
from skylark.proxy.schema import v2
from tests.support.broker import running_cluster, until
from tests.support.console import console_client
from tests.support.grpc_client import (
    GrpcTestClient,
    consumer_settings,
    new_message,
    resource,
    running_proxy,
)

_SAMPLE = re.compile(r"^(skylark_proxy_\w+(?:\{[^}]*\})?) ([\d.]+)$", re.MULTILINE)


async def scrape(address: str, token: str = "") -> dict[str, float]:
    """The proxy's samples of a page."""

    def read() -> str:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://{address}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
            return str(reply.read().decode())

    return {name: float(value) for name, value in _SAMPLE.findall(await asyncio.to_thread(read))}


async def test_calls_clients_and_streams_are_counted(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path) as (name_server, _),
        running_proxy(name_server.address, metrics_port=5557, metrics_token="secret") as proxy,
        GrpcTestClient(proxy.address) as client,
    ):
        await until(lambda: proxy.monitor is not None and bool(proxy.monitor.address))
        assert proxy.monitor is not None
        address = proxy.monitor.address
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await scrape(address)
        absent = v2.QueryRouteRequest(topic=resource("absent"))
        for _ in range(2):
            await client.code("QueryRoute", absent)
        await client.send(new_message("absent"))
        await client.receive("absent", "G")
        async with client.telemetry(consumer_settings("G", "absent")):
            found = await scrape(address, "secret")
        calls = {name.partition("{")[2]: value for name, value in found.items() if "_calls_total" in name}
        assert calls == {
            'code="TOPIC_NOT_FOUND",method="QueryRoute"}': 2,
            'code="TOPIC_NOT_FOUND",method="SendMessage"}': 1,
            'code="TOPIC_NOT_FOUND",method="ReceiveMessage"}': 1,
        }
        assert found['skylark_proxy_clients{kind="simple_consumer",language="JAVA"}'] == 1
        assert (found["skylark_proxy_streams"], found["skylark_proxy_connections"]) == (1, 1)
        await until(lambda: proxy.counts.streams == 0)


async def test_brokers_page_has_the_metrics_of_the_proxy_in_its_process(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (_, broker):
        broker.monitor.start("127.0.0.1", 0)
        front = GrpcFront("0")
        await front.start(broker)
        try:
            found = await scrape(broker.monitor.address)
        finally:
            await front.stop()
        assert found["skylark_proxy_connections"] == 0


async def test_the_console_shows_a_proxy_and_one_that_is_away(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path) as (name_server, _),
        running_proxy(name_server.address, metrics_port=5557) as proxy,
        GrpcTestClient(proxy.address) as client,
    ):
        await until(lambda: proxy.monitor is not None and bool(proxy.monitor.address))
        assert proxy.monitor is not None
        await client.code("QueryRoute", v2.QueryRouteRequest(topic=resource("absent")))
        places = {"edge": f"http://{proxy.monitor.address}/metrics", "gone": "http://127.0.0.1:1/metrics"}
        settings = ConsoleSettings(clusters={"local": name_server.address}, proxies=places)
        async with console_client(settings) as console:
            found = (await console.get("/local/proxies.json")).json()
        rows = {row["proxy"]: row for row in found["proxies"]}
        assert (rows["edge"]["state"], rows["edge"]["calls"], rows["edge"]["calls_failed"]) == ("ok", 1, 1)
        assert rows["edge"]["connections"] == 1
        assert (rows["gone"]["state"], rows["gone"]["calls"]) == ("away", None)
        assert "gone" in found["failures"][0]
