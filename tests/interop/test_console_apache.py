"""The console against Apache's broker: every page, sending, a reset with its preview."""

from __future__ import annotations

import re

import pytest

from skylark.console.server import PAGES
from skylark.console.settings import ConsoleSettings
from tests.interop.servers import ApacheServers
from tests.support.console import console_client
from tests.support.names import fresh_name

pytestmark = [pytest.mark.nightly, pytest.mark.interop("java", "mvn")]


async def test_every_page_shows_apaches_cluster(apache: ApacheServers) -> None:
    topic = fresh_name("console")
    async with console_client(ConsoleSettings(clusters={"local": apache.name_server})) as client:
        made = await client.post("/local/new-topic", {"topic": topic, "queues": "2"})
        assert made.status == 303, made.text
        sent = await client.post(
            f"/local/topics/{topic}/send", {"body": '{"id": 1}', "tag": "paid", "keys": "k-1"}
        )
        assert sent.status == 303, sent.text
        place = sent.headers["location"].partition("?")[0]
        assert "&#34;id&#34;" in (await client.get(place)).text
        broker = place.split("/")[5]
        group = (await client.ask("PUT", f"/api/v1/local/groups/{topic}", b"{}")).json()["group"]
        for path, _ in PAGES:
            if not re.search(r"\{(client|id|offset|job|user|table)\}", path):
                page = await client.get(f"/local/{path.format(topic=topic, group=group, broker=broker)}")
                assert page.status == 200, (path, page.text)
        found = (await client.get(f"/local/topics/{topic}/messages.json?where=body.id=1")).json()
        assert [message["keys"] for message in found["messages"]] == [["k-1"]]
