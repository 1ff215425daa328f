"""The HTTP API: produce, read by cursor, wait, stream, offsets, administration; and logging in as a user."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark import Admin, ClientSettings, Message, Producer
from skylark.admin.results import AclRule, Group
from skylark.console.api import CALLS
from skylark.console.settings import ConsoleSettings
from skylark.settings.auth import AuthSettings
from skylark.testing import EmbeddedServers
from tests.support.console import Answer, ConsoleClient, console_client
from tests.support.names import fresh_name

API = "/api/v1/local"


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers() as servers:
        yield servers


@pytest.fixture
async def client(servers: EmbeddedServers) -> AsyncIterator[ConsoleClient]:
    settings = ConsoleSettings(clusters={"local": servers.namesrv}, pages=False)
    async with console_client(settings) as client:
        yield client


async def send(client: ConsoleClient, method: str, path: str, value: object, **headers: str) -> Answer:
    sent = {"content-type": "application/json", **headers}
    return await client.ask(method, f"{API}/{path}", json.dumps(value).encode(), sent)


async def test_messages_are_produced_and_read_by_cursor(client: ConsoleClient) -> None:
    assert (await send(client, "PUT", "topics/bought", {"queues": 2})).status == 200
    one = await send(
        client, "POST", "topics/bought/messages", {"json": {"n": 0}, "tag": "a", "keys": ["k-0"]}
    )
    assert one.status == 200, one.text
    assert one.json()["status"] == "SEND_OK"
    many = {"messages": [{"body": f"{n}", "tag": "b"} for n in range(1, 6)]}
    assert len((await send(client, "POST", "topics/bought/messages", many)).json()["results"]) == 5
    raw = await client.ask(
        "POST", f"{API}/topics/bought/messages", b"\xff\x00", {"x-tag": "raw", "x-property-region": "eu"}
    )
    assert raw.status == 200
    seen = []
    path = f"{API}/topics/bought/messages?limit=2"
    while True:
        found = (await client.get(path)).json()
        if not found["messages"]:
            break
        seen += found["messages"]
        path = f"{API}/topics/bought/messages?limit=2&after={found['after']}"
    assert sorted(message.get("body", "binary") for message in seen) == [
        "1",
        "2",
        "3",
        "4",
        "5",
        "binary",
        '{"n":0}',
    ]
    binary = next(message for message in seen if "body_base64" in message)
    assert base64.b64decode(binary["body_base64"]) == b"\xff\x00"
    assert binary["properties"]["region"] == "eu"
    by_id = await client.get(f"{API}/topics/bought/messages/{one.json()['message_id']}")
    assert by_id.json()["keys"] == ["k-0"]
    tagged = (await client.get(f"{API}/topics/bought/messages?tag=a")).json()["messages"]
    assert [message["body"] for message in tagged] == ['{"n":0}']


async def test_messages_are_received_with_a_lease_and_acknowledged(
    client: ConsoleClient, servers: EmbeddedServers
) -> None:
    await send(client, "PUT", "topics/leased", {"queues": 1})
    await send(client, "PUT", "groups/workers", {"retries": 3})
    bodies = {"messages": [{"body": f"{n}", "tag": "odd" if n % 2 else "even"} for n in range(6)]}
    await send(client, "POST", "topics/leased/messages", bodies)

    async def receive(**more: object) -> list[dict[str, Any]]:
        answer = await send(client, "POST", "groups/workers/receive", {"topic": "leased", **more})
        assert answer.status == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["messages"]
        return found

    first = await receive(limit=4, wait="10s", tags="odd")
    assert [message["body"] for message in first] == ["1", "3", "5"]
    assert await receive(tags="odd") == []
    # Another gateway acknowledges one; the second comes again at once; the third has a new lease.
    other = ConsoleSettings(clusters={"local": servers.namesrv}, pages=False)
    async with console_client(other) as elsewhere:
        answer = await send(elsewhere, "POST", "groups/workers/ack", {"receipts": [first[0]["receipt"]]})
        assert answer.json() == {"results": [{"receipt": first[0]["receipt"]}]}
    hidden = await send(
        client, "POST", "groups/workers/lease", {"receipt": first[1]["receipt"], "invisible": "0s"}
    )
    assert hidden.status == 200, hidden.text
    kept = await send(
        client, "POST", "groups/workers/lease", {"receipt": first[2]["receipt"], "invisible": "10m"}
    )
    assert kept.json()["receipt"] != first[2]["receipt"]
    again = await receive(tags="odd", wait="20s")
    assert [(message["body"], message["reconsume_times"]) for message in again] == [("3", 1)]
    acks = {"receipts": [again[0]["receipt"], kept.json()["receipt"]]}
    assert (await send(client, "POST", "groups/workers/ack", acks)).json()["results"] == [
        {"receipt": receipt} for receipt in acks["receipts"]
    ]


async def test_what_cannot_be_received_or_acknowledged_is_said(client: ConsoleClient) -> None:
    await send(client, "PUT", "topics/leased", {"queues": 1})
    for call, body, words in (
        ("receive", {"topic": "leased", "limit": 33}, "invalid limit 33; pass 1 to 32"),
        ("receive", {"topic": "leased", "invisible": "soon"}, "soon"),
        ("receive", {}, "missing required field `topic`"),
        ("ack", {"receipts": []}, "0 receipts"),
        ("ack", {"receipts": ["nonsense"]}, "invalid receipt"),
        ("lease", {"receipt": "leased 1 2", "invisible": "1s"}, "invalid receipt"),
    ):
        answer = await send(client, "POST", f"groups/workers/{call}", body)
        assert answer.status == 400, answer.text
        assert words in answer.json()["title"]
    missing = await send(client, "POST", "groups/workers/receive", {"topic": "nothing"})
    assert missing.status == 404
    # A receipt must not send us to a server of its choice.
    forged = "leased 0 1 30000 0 0 127.0.0.1:1 0 0"
    [result] = (await send(client, "POST", "groups/workers/ack", {"receipts": [forged]})).json()["results"]
    assert "is not on broker 127.0.0.1:1" in result["error"]


async def test_a_read_waits_for_the_next_message(client: ConsoleClient) -> None:
    await send(client, "PUT", "topics/waited", {"queues": 1})
    at = (await client.get(f"{API}/topics/waited/messages?from=end")).json()["after"]
    waiting = asyncio.create_task(client.get(f"{API}/topics/waited/messages?after={at}&wait=30"))
    await asyncio.sleep(0)
    await send(client, "POST", "topics/waited/messages", {"body": "now"})
    found = (await waiting).json()
    assert [message["body"] for message in found["messages"]] == ["now"]


async def test_messages_are_streamed_and_resumed(client: ConsoleClient) -> None:
    await send(client, "PUT", "topics/streamed", {"queues": 1})
    await send(client, "POST", "topics/streamed/messages", {"messages": [{"body": "one"}, {"body": "two"}]})
    wanted = {"accept": "text/event-stream"}
    cursor = ""
    async for message in client.stream("GET", f"{API}/topics/streamed/messages", headers=wanted):
        body = message.get("body", b"")
        if b"id: " in body:
            cursor = body.partition(b"id: ")[2].partition(b"\n")[0].decode()
            break
    assert cursor == "broker-a:0:2"
    await send(client, "POST", "topics/streamed/messages", {"body": "three"})
    stream = client.stream(
        "GET", f"{API}/topics/streamed/messages", headers={**wanted, "last-event-id": cursor}
    )
    async for message in stream:
        if b"data: " in message.get("body", b""):
            assert b"three" in message["body"]
            break
    await stream.aclose()


async def test_offsets_are_previewed_and_committed(client: ConsoleClient) -> None:
    await send(client, "PUT", "topics/counted", {"queues": 1})
    await send(client, "PUT", "groups/counting", {"retries": 3})
    await send(client, "POST", "topics/counted/messages", {"messages": [{"body": str(n)} for n in range(5)]})
    done = await send(client, "PUT", "groups/counting/offsets/counted", {"offsets": "broker-a:0:3"})
    assert done.status == 200, done.text
    dry = await send(client, "PUT", "groups/counting/offsets/counted?dry_run", {"to": "end"})
    assert dry.json() == {"before": "broker-a:0:3", "after": "broker-a:0:5"}
    found = (await client.get(f"{API}/groups/counting/offsets?topic=counted")).json()
    assert [(part["committed"], part["lag"]) for part in found["queues"]] == [(3, 2)]
    await send(client, "PUT", "groups/counting/offsets/counted", {"to": "begin"})
    assert (await client.get(f"{API}/groups/counting/offsets?topic=counted")).json()["lag"] == 5
    assert (await send(client, "DELETE", "topics/counted", None)).status == 200
    assert (await client.get(f"{API}/topics/counted")).status == 404


@pytest.mark.parametrize(
    ("method", "path", "value", "status", "title"),
    [
        ("POST", "topics/bad-topic/messages", {"body": "x", "json": 1}, 400, "exactly one of"),
        ("POST", "topics/bad-topic/messages", {"boddy": "x"}, 400, "unknown field `boddy`"),
        ("POST", "topics/bad-topic/messages", {"body": "x", "delay": "soon"}, 400, "invalid duration"),
        ("GET", "topics/missing", None, 404, "No route info"),
        ("GET", "topics/missing/messages?limit=0", None, 400, "invalid limit"),
        ("PUT", "topics/a b", {}, 400, "illegal characters"),
        ("PUT", "groups/g/offsets/t", {}, 400, "either offsets or to"),
    ],
)
async def test_errors_are_problems(
    client: ConsoleClient, method: str, path: str, value: object, status: int, title: str
) -> None:
    answer = await send(client, method, path.replace(" ", "%20"), value)
    assert answer.status == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert title in answer.json()["title"]


async def test_the_description_has_every_call_and_a_gateway_has_no_pages(client: ConsoleClient) -> None:
    described = (await client.get("/api/v1/openapi.json")).json()
    found = {(method.upper(), path) for path, calls in described["paths"].items() for method in calls}
    assert found == {(method, f"/api/v1/{{cluster}}/{path}") for method, path, *_ in CALLS}
    assert "NewMessage" in described["components"]["schemas"]
    assert (await client.get("/local/topics")).status == 404
    assert (await client.get("/api/v1/other/topics")).status == 404


async def test_a_gateway_that_only_reads_has_no_changes(servers: EmbeddedServers) -> None:
    settings = ConsoleSettings(clusters={"local": servers.namesrv}, pages=False, read_only=True)
    async with console_client(settings) as client:
        assert (await send(client, "PUT", "topics/never", {})).status == 405
        assert (await send(client, "POST", "topics/never/messages", {"body": "x"})).status == 405


async def test_letters_journeys_clients_and_settings_are_there(
    client: ConsoleClient, servers: EmbeddedServers
) -> None:
    group = fresh_name("dying")
    with Admin(namesrv=servers.namesrv) as admin, Producer("shop", namesrv=servers.namesrv) as producer:
        admin.groups.create(Group(group))
        for topic in (f"%DLQ%{group}", f"%RETRY%{group}"):
            admin.topics.create(topic, queues=1)
        ids = [producer.send(Message(f"%DLQ%{group}", b"x")).message_id for _ in range(2)]
        clients = (await client.get(f"{API}/clients?q=shop")).json()["clients"]
        assert [row["group"] for row in clients] == ["shop"]
    assert group in [row["group"] for row in (await client.get(f"{API}/dead-letters")).json()["dead_letters"]]
    letters = (await client.get(f"{API}/dead-letters/{group}")).json()["letters"]
    assert [row["state"] for row in letters] == ["waiting", "waiting"]
    wanted = {"letters": [letters[0]["id"]], "rate": "100/s"}
    results = (await send(client, "POST", f"dead-letters/{group}/resend", wanted)).json()["results"]
    assert [(row["state"], row["letter"]) for row in results] == [("sent", letters[0]["id"])]
    nothing = await send(client, "POST", f"dead-letters/{group}/resend", {"letters": ["0"]})
    assert nothing.status == 400
    steps = (await client.get(f"{API}/topics/%25DLQ%25{group}/messages/{ids[0]}/journey")).json()["journey"]
    assert "Stored" in " ".join(step["what"] for step in steps)
    path = "brokers/broker-a/settings"
    key = "fileReservedTime"
    changed = await send(client, "PUT", path, {"settings": {key: "71"}})
    assert (changed.status, changed.json()["after"]) == (200, {key: "71"})
    assert (await client.get(f"{API}/{path}")).json()["settings"][key] == "71"
    assert (await send(client, "PUT", path, {"settings": {"noSuchKey": "1"}})).status == 400
    assert (await send(client, "PUT", "brokers/127.0.0.1:1/settings", {"settings": {}})).status == 404


# --- Users ---


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedServers]:
    first = json.dumps({"username": "root", "password": "root-secret"})
    inner = json.dumps({"accessKey": "inner", "secretKey": "inner-secret"})
    auth = AuthSettings(enabled=True, authorization=True, first_user=first, inner_credentials=inner)
    with EmbeddedServers(settings={"auth": auth}) as servers:
        own = ClientSettings(access_key="root", secret_key="root-secret")
        with Admin(namesrv=servers.namesrv, client=own) as admin:
            admin.topics.create("ledger", queues=1)
            admin.users.create("reader", "reader-secret")
            admin.acls.create(
                "reader", [AclRule("Topic:*", ("Get", "List", "Sub")), AclRule("Cluster:*", ("Get", "List"))]
            )
        yield servers


async def test_people_log_in_as_users_of_the_broker(guarded: EmbeddedServers) -> None:
    settings = ConsoleSettings(clusters={"local": guarded.namesrv}, login=True)
    async with console_client(settings) as client:
        asked = await client.get("/local/topics")
        assert asked.status == 303 and asked.headers["location"] == "/login?next=%2Flocal%2Ftopics"
        assert "Secret" in (await client.get("/login?next=/local/topics")).text
        wrong = await client.post("/login", {"name": "root", "secret": "wrong", "next": "/"})
        assert wrong.status == 403
        right = await client.post(
            "/login", {"name": "root", "secret": "root-secret", "next": "//evil.example"}
        )
        assert (right.status, right.headers["location"]) == (303, "/")
        cookie = {"cookie": right.headers["set-cookie"].partition(";")[0]}
        page = await client.get("/local/topics", **cookie)
        assert page.status == 200 and "ledger" in page.text
        assert "reader" in (await client.get("/local/access", **cookie)).text
        made = await client.post("/local/new-topic", {"topic": "owned", "queues": "1"}, **cookie)
        assert made.status == 303, made.text
        assert "root" in (await client.get("/local/changes", **cookie)).text
        await client.post("/logout", {}, **cookie)
        assert (await client.get("/local/topics", **cookie)).status == 303


async def test_users_and_rules_are_changed_and_put_back(guarded: EmbeddedServers) -> None:
    settings = ConsoleSettings(clusters={"local": guarded.namesrv}, login=True)
    async with console_client(settings) as client:
        root = await client.post("/login", {"name": "root", "secret": "root-secret", "next": "/"})
        cookie = {"cookie": root.headers["set-cookie"].partition(";")[0]}

        async def user(name: str) -> dict[str, Any]:
            found: dict[str, Any] = (await client.get(f"/local/access/users/{name}.json", **cookie)).json()
            return found

        made = await client.post("/local/access/users", {"name": "clerk"}, **cookie)
        assert made.status == 200, made.text
        [secret] = re.findall(r'id="secret">([^<]+)<', made.text)
        assert secret not in (await client.get("/local/access/users/clerk", **cookie)).text
        assert secret not in (await client.get("/local/changes.json", **cookie)).text
        fields = {"resource": "Topic:led*", "actions": ["Pub", "Sub"], "sources": "10.0.0.0/8"}
        put = await client.post("/local/access/users/clerk/rules", fields, **cookie)
        assert put.status == 303, put.text
        assert [
            (rule["resource"], rule["actions"], rule["sources"]) for rule in (await user("clerk"))["rules"]
        ] == [("Topic:led*", ["Pub", "Sub"], ["10.0.0.0/8"])]
        await client.post("/local/access/users/clerk/rules", {**fields, "decision": "Deny"}, **cookie)
        assert (await user("clerk"))["rules"][0]["decision"] == "Deny"
        change = (await client.get("/local/changes.json", **cookie)).json()["changes"][0]
        assert "Topic:led*" in change["target"]
        await client.post("/local/changes/3/undo", {}, **cookie)
        assert (await user("clerk"))["rules"][0]["decision"] == "Allow"
        deleted = await client.post(
            "/local/access/users/clerk/rules/delete", {"resource": "Topic:led*"}, **cookie
        )
        assert (await user("clerk"))["rules"] == []
        number = deleted.headers["location"].rpartition("=")[2]
        await client.post(f"/local/changes/{number}/undo", {}, **cookie)
        assert len((await user("clerk"))["rules"]) == 1
        await client.post("/local/access/users/clerk", {"super": "1"}, **cookie)
        assert ((await user("clerk"))["super"], (await user("clerk"))["enabled"]) == (True, False)
        renewed = await client.post("/local/access/users/clerk/secret", {}, **cookie)
        assert re.findall(r'id="secret">([^<]+)<', renewed.text) != [secret]
        assert (await client.post("/local/access/users/clerk/delete", {"name": "x"}, **cookie)).status == 400
        await client.post("/local/access/users/clerk/delete", {"name": "clerk"}, **cookie)
        assert (await client.get("/local/access/users/clerk", **cookie)).status == 404


async def test_users_are_made_changed_and_deleted_over_http(guarded: EmbeddedServers) -> None:
    settings = ConsoleSettings(clusters={"local": guarded.namesrv}, login=True, pages=False)
    async with console_client(settings) as client:
        root = {"authorization": "Basic " + base64.b64encode(b"root:root-secret").decode()}
        made = (await send(client, "PUT", "users/typist", {}, **root)).json()
        own = {"authorization": "Basic " + base64.b64encode(f"typist:{made['secret']}".encode()).decode()}
        assert (await send(client, "PUT", "users/other", {}, **own)).status == 502
        names = [row["user"] for row in (await client.get(f"{API}/users", **root)).json()["users"]]
        assert {"root", "typist"} <= set(names)
        changed = await send(client, "PUT", "users/typist", {"enabled": False}, **root)
        assert (changed.status, changed.json()["enabled"]) == (200, False)
        assert (await client.get(f"{API}/users/typist", **root)).json()["enabled"] is False
        assert (await send(client, "DELETE", "users/typist", {}, **root)).status == 200
        assert (await client.get(f"{API}/users/typist", **root)).status == 404


async def test_who_is_no_super_user_changes_no_rules(guarded: EmbeddedServers) -> None:
    settings = ConsoleSettings(clusters={"local": guarded.namesrv}, login=True)
    async with console_client(settings) as client:
        reader = await client.post("/login", {"name": "reader", "secret": "reader-secret", "next": "/"})
        cookie = {"cookie": reader.headers["set-cookie"].partition(";")[0]}
        refused = await client.post("/local/access/users", {"name": "thief", "super": "1"}, **cookie)
        assert refused.status == 502 and "has no permission" in refused.text
        foreign = await client.post(
            "/local/access/users", {"name": "x"}, **cookie, origin="http://evil.example"
        )
        assert foreign.status == 403


async def test_the_broker_decides_what_a_user_may_do(guarded: EmbeddedServers) -> None:
    settings = ConsoleSettings(clusters={"local": guarded.namesrv}, login=True)
    async with console_client(settings) as client:
        reader = "Basic " + base64.b64encode(b"reader:reader-secret").decode()
        assert (await client.get(f"{API}/topics/ledger")).status == 401
        allowed = await client.get(f"{API}/topics/ledger", authorization=reader)
        assert allowed.status == 200, allowed.text
        refused = await send(client, "POST", "topics/ledger/messages", {"body": "x"}, authorization=reader)
        assert refused.status == 502
        assert "reader" in refused.json()["title"] or "permission" in refused.json()["title"].lower()


async def test_a_name_without_its_secret_gets_nothing(guarded: EmbeddedServers, tmp_path: Path) -> None:
    """Not even while the user is connected, and not what no broker guards: files of the console's machine."""
    store = tmp_path / "store"
    settings = ConsoleSettings(clusters={"local": guarded.namesrv}, login=True, store=store)
    async with console_client(settings) as client:
        right = "Basic " + base64.b64encode(b"root:root-secret").decode()
        assert (await client.get(f"{API}/topics", authorization=right)).status == 200
        for given in (b"root:wrong", b"root:", b"nobody:root-secret"):
            wrong = "Basic " + base64.b64encode(given).decode()
            for path in ("topics", "topics/ledger", "brokers", "sql?query=select+1"):
                refused = await client.get(f"{API}/{path}", authorization=wrong)
                assert refused.status == 401, (given, path, refused.text)
            page = await client.get("/local/changes", authorization=wrong)
            assert (page.status, page.headers["location"]) == (303, "/login?next=%2Flocal%2Fchanges")
        assert (await client.get(f"{API}/topics", authorization=right)).status == 200
