"""The console over HTTP, with a broker in this process: every page, its JSON and CSV, and who may ask."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from skylark import Admin, Message, Producer, PullConsumer
from skylark.admin.results import Group
from skylark.cli.main import load_command
from skylark.console.pages.resets import COMMANDS
from skylark.console.server import PAGES
from skylark.console.settings import ConsoleSettings
from skylark.console.texts import TEXTS
from skylark.errors import SettingsError
from skylark.model.names import LAKE_NAMESPACE
from skylark.pipelines.job_reporter import JobReporter
from skylark.testing import EmbeddedServers
from tests.support.broker import until
from tests.support.console import ConsoleClient, console_client
from tests.support.console_data import running_jobs
from tests.support.names import fresh_name

ANYWHERE = "0.0.0.0"  # noqa: S104
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers() as servers:
        servers.create_topic("orders", 2)
        with Admin(namesrv=servers.namesrv) as admin, Producer("shop", namesrv=servers.namesrv) as producer:
            admin.groups.create(Group("billing"))
            for number in range(70):
                producer.send(
                    Message(
                        "orders",
                        b'{"id": %d, "customer": {"name": "c-%d"}}' % (number, number % 3),
                        tags="paid" if number % 10 == 0 else "created",
                        keys=[f"order-{number}"],
                        properties={"region": "eu"},
                    )
                )
            queues = admin.topics.queues("orders")
            admin.offsets.commit("billing", {queues[0]: 5, queues[1]: 0})
        with running_jobs(servers.namesrv):
            yield servers


@pytest.fixture
async def client(servers: EmbeddedServers) -> AsyncIterator[ConsoleClient]:
    async with console_client(ConsoleSettings(clusters={"local": servers.namesrv})) as client:
        yield client


# --- Pages ---


PATHS = [
    path.format(
        topic="orders",
        group="billing",
        broker="broker-a",
        id="order-7",
        queue=0,
        offset=1,
        client="x",
        job="etl-payments-77e0b3f1",
    )
    for path, _ in PAGES
    if not re.search(r"\{(client|id|user|table)\}", path)
]
NO_TABLE = ("sql", "groups/billing/reset")
"""Without a query, or a place to go to, there are no rows."""
NO_COMMAND = ("changes",)
"""They are the console's own."""


async def test_every_page_is_there_in_both_languages_and_as_json(client: ConsoleClient) -> None:
    for path in PATHS:
        page = await client.get(f"/local/{path}")
        assert page.status == 200, (path, page.text)
        assert "<h1>" in page.text
        chinese = await client.get(f"/local/{path}", accept_language="zh-CN,en;q=0.5")
        assert chinese.status == 200, path
        assert "概览" in chinese.text
        document = await client.get(f"/local/{path or 'overview'}.json")
        assert document.status == 200, path
        document.json()
        csv = await client.get(f"/local/{path or 'overview'}.csv")
        assert csv.status == (404 if path in NO_TABLE else 200), path
        assert path in NO_TABLE or csv.headers["content-type"].startswith("text/csv"), path


def parse_command(text: str) -> None:
    """Raises typer.TyperException for a command, argument or option that does not exist."""
    _, name, *words = shlex.split(text)
    command: Any = load_command(name)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, text
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, [word for word in words if word != "--help"])


def test_the_next_steps_for_lag_are_commands_that_exist() -> None:
    for text in COMMANDS.values():
        parse_command(text.format(group="billing", topic="orders", namesrv="127.0.0.1:9876"))


async def test_every_page_says_how_to_get_the_same_elsewhere(client: ConsoleClient) -> None:
    """With commands that exist, in Python, and over HTTP with an address that answers."""
    for path in PATHS:
        page = (await client.get(f"/local/{path}")).text
        shown = [html.unescape(text) for text in re.findall(r"<dd><code>(.*?)</code></dd>", page, re.S)]
        commands = [text for text in shown if text.startswith("skylark ")]
        [curl] = [text for text in shown if text.startswith("curl ")]
        assert commands or path in NO_COMMAND, path
        for text in commands:
            parse_command(text)
        answer = await client.get("/" + curl.split("'")[1].split("/", 3)[3])
        assert answer.status == 200 and answer.headers["content-type"] == "application/json", curl


async def test_tables_show_their_size_and_who_writes_them(tmp_path: Path) -> None:
    pa, deltalake = pytest.importorskip("pyarrow"), pytest.importorskip("deltalake")
    place = tmp_path / "lake" / "orders"
    for _ in range(3):
        deltalake.write_deltalake(place, pa.table({"id": [1, 2], "city": ["Oslo", "Lyon"]}), mode="append")
    lake = {"orders": f"delta:{place}", "gone": f"delta:{tmp_path / 'gone'}"}
    with (
        EmbeddedServers() as servers,
        running_jobs(servers.namesrv),
        JobReporter(
            servers.namesrv, kind="archive", name="archive-now", topics=["orders"],
            outputs=[lake["orders"]], every_s=0.01,
        ) as job,
    ):  # fmt: skip
        job.batch(query="archive", number=0, rows=6, rows_per_s=10.0, lag=64)
        settings = ConsoleSettings(clusters={"local": servers.namesrv}, lake=lake)
        async with console_client(settings) as client:
            for _ in range(100):
                found = (await client.get("/local/tables.json")).json()
                rows = {row["table"]: row for row in found["tables"] if row["location"] != "lake/orders"}
                if rows["orders"]["job"] == "archive-now" and rows["orders"]["lag"] is not None:
                    break
                await asyncio.sleep(0.05)
            own = rows["orders"]
            assert (own["rows"], own["files"], own["small_files"], own["format"]) == (6, 3, 3, "delta")
            assert (own["job"], own["lag"], own["topics"]) == ("archive-now", 64, ["orders"])
            assert abs(own["last_commit"] - time.time() * 1000) < 600_000
            assert rows["gone"]["rows"] is None and "gone" in found["failures"][0]
            # What jobs report is shown and never opened: anybody may write a report.
            assert [row["rows"] for row in found["tables"] if row["location"] == "lake/payments"] == [None]
            one = (await client.get("/local/tables/orders.json")).json()
            assert [commit["version"] for commit in one["commits"]] == [2, 1, 0]
            assert one["columns"] == [{"name": "id", "type": "long"}, {"name": "city", "type": "string"}]
            assert "lake.orders" in (await client.get("/local/tables/orders")).text
            assert (await client.get("/local/tables/nothing")).status == 404


async def test_iceberg_tables_and_those_of_the_lake_service_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa, _ = pytest.importorskip("pyarrow"), pytest.importorskip("pyiceberg")
    from pyiceberg.catalog import load_catalog

    from tests.pipelines.test_iceberg_log import use_catalog

    (tmp_path / "warehouse").mkdir()
    use_catalog(tmp_path, monkeypatch)
    rows = pa.table({"id": [1, 2], "city": ["Oslo", "Lyon"]})
    catalog = load_catalog("default")
    catalog.create_namespace("raw")
    made = catalog.create_table("raw.orders", rows.schema)
    for _ in range(2):
        made.append(rows)
    lake = {"orders": "iceberg:raw.orders", "gone": "iceberg:raw.gone"}
    with EmbeddedServers() as servers, Admin(namesrv=servers.namesrv) as admin:
        admin.name_servers.put(LAKE_NAMESPACE, "orders", lake["orders"])
        admin.name_servers.put(LAKE_NAMESPACE, "payments", "delta:s3://lake/payments")
        async with console_client(ConsoleSettings(clusters={"local": servers.namesrv}, lake=lake)) as client:
            found = (await client.get("/local/tables.json")).json()
            tables = {row["table"]: row for row in found["tables"]}
            assert (tables["orders"]["rows"], tables["orders"]["files"]) == (4, 2)
            assert tables["orders"]["topics"] == ["orders"]
            assert tables["payments"]["topics"] == ["payments"] and tables["payments"]["rows"] is None
            assert "raw.gone" in found["failures"][0]
            one = (await client.get("/local/tables/orders.json")).json()
            assert [commit["what"] for commit in one["commits"]] == ["append", "append"]
            assert [column["name"] for column in one["columns"]] == ["id", "city"]
            answer = (await client.get("/local/sql.json?q=select+count(*)+n+from+lake.orders")).json()
            assert answer["rows"] == [{"n": 4}]


async def test_one_console_serves_several_clusters(servers: EmbeddedServers) -> None:
    with EmbeddedServers() as other:
        other.create_topic("ledger", 1)
        clusters = {"shop": servers.namesrv, "bank": other.namesrv}
        async with console_client(ConsoleSettings(clusters=clusters)) as client:
            home = await client.get("/")
            assert home.headers["location"] == "/shop/"
            for alias, topic in {"shop": "orders", "bank": "ledger"}.items():
                found = (await client.get(f"/{alias}/topics.json")).json()["topics"]
                assert topic in [row["topic"] for row in found]
            assert "ledger" not in (await client.get("/shop/topics.json")).text
            assert '<option value="/bank/" selected>' in (await client.get("/bank/")).text
            missing = await client.get("/other/topics")
            assert missing.status == 404 and "known clusters: shop, bank" in missing.text


async def test_the_list_of_topics_shows_what_the_broker_has(client: ConsoleClient) -> None:
    found = (await client.get("/local/topics.json")).json()
    assert [(row["topic"], row["queues"], row["messages"], row["groups"]) for row in found["topics"]] == [
        ("orders", 2, 70, ["billing"])
    ]
    names = [row["topic"] for row in (await client.get("/local/topics.json?system=1")).json()["topics"]]
    assert "RMQ_SYS_TRANS_HALF_TOPIC" in names
    assert (await client.get("/local/topics.json?q=nothing")).json()["topics"] == []
    csv = await client.get("/local/topics.csv")
    assert csv.headers["content-disposition"].startswith("attachment")
    assert csv.text.splitlines()[1].startswith("orders,")


async def test_a_group_shows_its_lag_in_each_queue(client: ConsoleClient) -> None:
    found = (await client.get("/local/groups/billing.json")).json()
    assert found["lag"] == 65
    assert [(row["queue"], row["committed"], row["end"], row["lag"]) for row in found["queues"]] == [
        (0, 5, 35, 30),
        (1, 0, 35, 35),
    ]
    assert found["state"] == "nobody"
    page = await client.get("/local/groups/billing")
    assert "No member is online, and messages wait." in page.text


async def test_pipelines_show_what_jobs_reported(client: ConsoleClient) -> None:
    rows = (await client.get("/local/pipelines.json")).json()["jobs"]
    assert {row["job"]: (row["state"], row["lag"], row["rejected"]) for row in rows} == {
        "archive-orders-5c1d09aa": ("running", 0, 0),
        "etl-payments-77e0b3f1": ("running", 2190, 12),
        "cdc-users": ("failed", None, 0),
    }
    page = await client.get("/local/pipelines/cdc-users")
    assert "cannot decode the body of users/broker-a/0/12" in page.text
    page = await client.get("/local/pipelines/etl-payments-77e0b3f1")
    assert "topic:payments_rejects" in page.text and "<svg" in page.text
    found = (await client.get("/local/pipelines/etl-payments-77e0b3f1.json")).json()
    assert [part["number"] for part in found["runs"][0]["last"]] == list(range(12))
    assert "No job nothing" in (await client.get("/local/pipelines/nothing")).text


async def test_the_map_shows_who_talks_to_whom() -> None:
    with EmbeddedServers() as servers, Admin(namesrv=servers.namesrv) as admin:
        servers.create_topic("sales", 1)
        [queue] = admin.topics.queues("sales")
        with Producer("till-1", namesrv=servers.namesrv) as producer:
            producer.send(Message("sales", b"{}"))
            admin.groups.create("audit")
            admin.offsets.commit("audit", {queue: 0})
            async with console_client(ConsoleSettings(clusters={"local": servers.namesrv})) as client:
                found = (await client.get("/local/map.json")).json()
                page = await client.get("/local/map")
    assert found["producers"]["till-1"] == 1
    assert {"from": "till-1", "to": "broker-a"} in found["links"]
    assert {"from": "broker-a", "to": "sales"} in found["links"]
    assert {"from": "sales", "to": "audit"} in found["links"]
    assert page.text.count('<path class="link"') == 3 and 'href="/local/groups/audit"' in page.text


async def test_stores_say_what_they_hold_and_delete(client: ConsoleClient) -> None:
    [row] = (await client.get("/local/store.json")).json()["stores"]
    assert (row["broker"], row["role"], row["undispatched"]) == ("broker-a", "master", 0)
    assert row["log_bytes"] > 1000
    assert row["deleted_from"] == row["earliest"] + row["kept_for"]
    page = await client.get("/local/controllers")
    assert "No broker is in controller mode." in page.text


async def test_a_decoder_shows_bodies_and_its_errors(servers: EmbeddedServers) -> None:
    def decode(body: bytes) -> object:
        if b'"id": 68,' in body:
            raise ValueError("no such version")
        return {"bytes": len(body), "shop": "<b>north</b>"}

    settings = ConsoleSettings(clusters={"local": servers.namesrv}, decoders=[("ord.*", decode)])
    async with console_client(settings) as client:
        listed = (await client.get("/local/topics/orders/messages")).text
        assert "ValueError: no such version" in listed and "{&#34;bytes&#34;:" in listed
        page = await client.get("/local/topics/orders/at/broker-a/0/1")
        assert 'id="body-decoded"' in page.text and 'id="body-hex"' in page.text
        assert "&lt;b&gt;north" in page.text and "<b>north" not in page.text
    assert settings.decoder_of("payments") is None


async def test_what_does_not_exist_is_said(client: ConsoleClient) -> None:
    for path, words in (
        ("topics/nothing", "No route info"),
        ("groups/nothing", "No broker knows group nothing"),
        ("brokers/nothing", "No broker nothing is registered"),
        ("topics/orders/at/broker-a/0/4000", "No message at broker-a:0:4000"),
    ):
        page = await client.get(f"/local/{path}")
        assert page.status == 404, path
        assert words in page.text
    assert (await client.get("/other/topics")).status == 404


# --- Messages ---


async def test_messages_are_listed_newest_first_without_end(client: ConsoleClient) -> None:
    seen: list[int] = []
    path = "/local/topics/orders/messages.json"
    before = ""
    while True:
        found = (await client.get(path + (f"?before={before}" if before else ""))).json()
        seen += [int(re.findall(r"\d+", message["keys"][0])[0]) for message in found["messages"]]
        before = found["next_before"]
        if before is None:
            break
    assert seen == list(range(69, -1, -1))


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("tag=paid", range(60, -1, -10)),
        ("key=order-7", [7]),
        ("id=order-7", [7]),
        ("text=c-2", range(68, 1, -3)),
        ("where=TAGS = 'paid' AND body.customer.name = 'c-0'", [60, 30, 0]),
        ("where=region = 'eu' AND body.id BETWEEN 5 AND 7", [7, 6, 5]),
        ("where=body.missing = 'x'", []),
        ("to=2001-01-01", []),
        ("from=2001-01-01&tag=paid", range(60, -1, -10)),
        ("queue=broker-a:0", None),
    ],
)
async def test_messages_are_found(client: ConsoleClient, query: str, numbers: list[int] | None) -> None:
    found = (await client.get(f"/local/topics/orders/messages.json?{query.replace(' ', '%20')}")).json()
    seen = [int(message["keys"][0].removeprefix("order-")) for message in found["messages"]]
    if numbers is None:
        assert {message["queue"] for message in found["messages"]} == {0}
    else:
        assert seen == list(numbers)


async def test_a_bad_filter_is_said(client: ConsoleClient) -> None:
    for query in ("where=TAGS%20=%20", "from=yesterday", "before=x", "queue=broker-a:77"):
        page = await client.get(f"/local/topics/orders/messages?{query}")
        assert page.status == 400, query


async def test_a_message_has_an_address_and_is_shown_in_three_forms(client: ConsoleClient) -> None:
    message = (await client.get("/local/topics/orders/messages.json?key=order-69")).json()["messages"][0]
    moved = await client.get(f"/local/topics/orders/messages/{message['message_id']}")
    assert moved.status == 303
    page = await client.get(moved.headers["location"])
    assert "&#34;customer&#34;" in page.text
    assert "7b 22 69 64 22 3a 20 36 39" in page.text
    assert message["message_id"] in page.text
    journey = await client.get(f"/local/topics/orders/journey/{message['message_id']}")
    assert "Sent by its producer" in journey.text
    assert "The group has not reached it" in journey.text


async def test_a_message_is_sent_and_then_shown(client: ConsoleClient) -> None:
    fields = {
        "body": f'{{"name": "{SCRIPT}"}}',
        "tag": "<b>",
        "keys": f"key-1 {SCRIPT}",
        "properties": f"note={SCRIPT}\nregion=eu",
    }
    sent = await client.post("/local/topics/orders/send", fields)
    assert sent.status == 303, sent.text
    page = await client.get(sent.headers["location"])
    assert "Done: sent to orders." in page.text
    assert SCRIPT not in page.text
    assert page.text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3
    listed = await client.get("/local/topics/orders/messages")
    assert SCRIPT not in listed.text
    place = ":".join(sent.headers["location"].partition("?")[0].split("/")[-3:])
    again = await client.get(f"/local/topics/orders/send?like={place}")
    assert 'name="keys" value="key-1 &lt;script&gt;alert(1)&lt;/script&gt;"' in again.text
    refused = await client.post("/local/topics/orders/send", {"body": "x", "properties": "nothing"})
    assert refused.status == 400
    assert "write NAME=VALUE" in refused.text
    # The later tests expect the messages of the fixture.
    await client.post("/local/topics/orders/send", {"body": "x", "count": "0"})


async def test_new_messages_are_streamed(client: ConsoleClient, servers: EmbeddedServers) -> None:
    servers.create_topic("fresh", 1)
    with Producer("shop", namesrv=servers.namesrv) as producer:
        stream = client.stream("GET", "/local/topics/fresh/tail?tag=paid")
        async for message in stream:
            if message["type"] == "http.response.start":
                assert dict(message["headers"])[b"content-type"].startswith(b"text/event-stream")
                producer.send(Message("fresh", b"no", tags="created"))
                producer.send(Message("fresh", b"yes", tags="paid"))
            elif b"yes" in message.get("body", b""):
                assert b'"no"' not in message["body"]
                break
        await stream.aclose()


# --- Access ---


async def test_another_host_name_is_refused(client: ConsoleClient) -> None:
    refused = await client.get("/local/topics", host="evil.example:8088")
    assert refused.status == 421
    assert (await client.get("/local/topics", host="localhost:8088")).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "same-site"},
        {"cookie": "skylark_console=x"},
    ],
)
async def test_a_form_of_another_site_is_refused(client: ConsoleClient, headers: dict[str, str]) -> None:
    answer = await client.ask("POST", "/local/topics/orders/send", b"body=x", headers)
    assert answer.status == 403


async def test_every_answer_forbids_inline_code_and_frames(client: ConsoleClient) -> None:
    for path in ("/local/", "/local/topics/nothing", "/static/console.js"):
        answer = await client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = (await client.get("/local/")).text
    assert not re.search(r"<script>|\son\w+=|\sstyle=|javascript:", page)


async def test_large_requests_are_refused(client: ConsoleClient) -> None:
    body = b"body=" + b"x" * (6 << 20)
    own = {"origin": "http://127.0.0.1:8088"}
    answer = await client.ask("POST", "/local/topics/orders/send", body, own)
    assert answer.status == 413
    lying = await client.ask(
        "POST", "/local/topics/orders/send", b"", {**own, "content-length": str(6 << 20)}
    )
    assert lying.status == 413


async def test_a_console_that_only_reads_has_no_forms(servers: EmbeddedServers) -> None:
    settings = ConsoleSettings(clusters={"local": servers.namesrv}, read_only=True, hide_bodies=True)
    async with console_client(settings) as client:
        assert (await client.post("/local/topics/orders/send", {"body": "x"})).status in (404, 405)
        assert (await client.get("/local/topics/orders/send")).status == 404
        page = await client.get("/local/topics/orders/at/broker-a/0/0")
        assert page.status == 200
        assert "customer" not in page.text
        assert "customer" not in (await client.get("/local/topics/orders/messages.json")).text
        assert (await client.get("/local/topics/orders/messages?text=c-1")).status == 400


async def test_a_token_opens_the_console(servers: EmbeddedServers) -> None:
    settings = ConsoleSettings(clusters={"local": servers.namesrv}, host=ANYWHERE, token="secret-token")
    async with console_client(settings) as client:
        asked = await client.get("/local/topics")
        assert asked.status == 303
        assert asked.headers["location"].startswith("/login?next=")
        assert (await client.get("/?token=wrong")).headers["location"].startswith("/login")
        opened = await client.get("/?token=secret-token")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert (await client.get("/local/topics", cookie=cookie.partition(";")[0])).status == 200


def test_other_addresses_need_a_token_or_a_login() -> None:
    with pytest.raises(SettingsError, match="pass --token or --login"):
        ConsoleSettings(clusters={"local": "127.0.0.1:9876"}, host=ANYWHERE)
    with pytest.raises(SettingsError, match="invalid name 'static'"):
        ConsoleSettings(clusters={"static": "127.0.0.1:9876"})


def test_every_text_is_there_in_both_languages() -> None:
    for key, pair in TEXTS.items():
        assert len(pair) == 2 and all(pair), key
        fields = [sorted(re.findall(r"{(\w+)", text)) for text in pair]
        assert fields[0] == fields[1], key


def test_every_text_that_is_used_exists() -> None:

    import skylark.console

    root = Path(skylark.console.__file__).parent
    used = {
        key
        for path in [*root.rglob("*.py"), *root.rglob("*.html")]
        for key in re.findall(r"""\bt\(["']([\w.]+)["'][,)\s]""", path.read_text())
    }
    assert len(used) > 50
    missing = {key for key in used if not key.endswith(".")} - TEXTS.keys()
    assert not missing


def test_templates_have_no_inline_code_and_escape_everything() -> None:

    import skylark.console

    for path in (Path(skylark.console.__file__).parent / "templates").glob("*.html"):
        text = path.read_text()
        assert not re.search(r"\|\s*safe|\son\w+=|\sstyle=|<script>|<style", text), path.name


# --- Changes ---


async def test_a_reset_is_previewed_applied_and_put_back(
    client: ConsoleClient, servers: EmbeddedServers
) -> None:
    with Admin(namesrv=servers.namesrv) as admin:
        admin.groups.create(Group("resetting"))
        admin.offsets.commit("resetting", {queue: 10 for queue in admin.topics.queues("orders")})
    planned = (await client.get("/local/groups/resetting/reset.json?topic=orders&to=begin")).json()["preview"]
    assert [(row["now"], row["then"], row["again"], row["skipped"]) for row in planned] == [
        (10, 0, 10, 0)
    ] * 2
    page = await client.get("/local/groups/resetting/reset?topic=orders&to=begin")
    assert "20 messages come again, 0 are skipped" in page.text
    expected = re.findall(r'name="expected" value="([^"]+)"', page.text)[0]
    stale = await client.post(
        "/local/groups/resetting/reset", {"topic": "orders", "to": "begin", "expected": "broker-a:0:9"}
    )
    assert stale.status == 400
    assert "The group has moved since the preview" in stale.text
    done = await client.post(
        "/local/groups/resetting/reset", {"topic": "orders", "to": "begin", "expected": expected}
    )
    assert done.status == 303, done.text

    async def committed() -> list[int]:
        found = (await client.get("/local/groups/resetting.json")).json()
        return [row["committed"] for row in found["queues"]]

    assert await committed() == [0, 0]
    number = done.headers["location"].partition("changed=")[2]
    assert (await client.post(f"/local/changes/{number}/undo")).status == 303
    assert await committed() == [10, 10]
    assert (await client.post(f"/local/changes/{number}/undo")).status == 400
    log = (await client.get("/local/changes")).text
    assert "put back" in log and "resetting orders" in log


@pytest.mark.parametrize(("to", "offsets"), [("group:resetting-like", [4, 5]), ("at:broker-a:1:7", [9, 7])])
async def test_a_group_is_reset_to_another_groups_place_or_to_an_offset(
    client: ConsoleClient, servers: EmbeddedServers, to: str, offsets: list[int]
) -> None:
    group = fresh_name("moved")
    with Admin(namesrv=servers.namesrv) as admin:
        queues = sorted(admin.topics.queues("orders"))
        admin.groups.create_all([Group(group), Group("resetting-like")])
        admin.offsets.commit(group, dict.fromkeys(queues, 9))
        admin.offsets.commit("resetting-like", dict(zip(queues, (4, 5), strict=True)))
        page = await client.get(f"/local/groups/{group}/reset?topic=orders&to={to}")
        expected = re.findall(r'name="expected" value="([^"]+)"', page.text)[0]
        form = {"topic": "orders", "to": to, "expected": expected}
        done = await client.post(f"/local/groups/{group}/reset", form)
        assert done.status == 303, done.text
        assert [at for _, at in sorted(admin.offsets.committed(group, "orders").items())] == offsets
        number = done.headers["location"].partition("changed=")[2]
        assert (await client.post(f"/local/changes/{number}/undo")).status == 303
        assert set(admin.offsets.committed(group, "orders").values()) == {9}
    unknown = await client.get(f"/local/groups/{group}/reset?topic=orders&to=group:stranger")
    assert unknown.status == 400
    assert "stranger has no offsets in orders" in unknown.text


async def test_why_says_that_nobody_consumes(client: ConsoleClient) -> None:
    page = await client.get("/local/groups/billing/why")
    assert "No member is online" in page.text
    assert "Start a consumer of this group." in page.text


@pytest.mark.parametrize("filtered", [{"expression": "absent"}, {"sql": "region = 'us'"}])
async def test_why_says_that_a_filter_passes_few(
    servers: EmbeddedServers, client: ConsoleClient, filtered: dict[str, str]
) -> None:
    group = fresh_name("choosy")
    with (
        Admin(namesrv=servers.namesrv) as admin,
        PullConsumer(group, namesrv=servers.namesrv) as consumer,
    ):
        consumer.subscribe("orders", **filtered)
        queues = admin.topics.queues("orders")
        admin.offsets.commit(group, {queues[0]: 0, queues[1]: 0})

        async def is_online() -> bool:
            return bool((await client.get(f"/local/groups/{group}/members.json")).json()["members"])

        await until(is_online)
        causes = (await client.get(f"/local/groups/{group}/why.json")).json()["causes"]
    assert "filtered" in [cause["name"] for cause in causes], causes


async def test_a_topic_is_created_changed_put_back_and_deleted(client: ConsoleClient) -> None:
    made = await client.post("/local/new-topic", {"topic": "made", "queues": "2"})
    assert made.status == 303, made.text
    assert (await client.post("/local/new-topic", {"topic": "made", "queues": "2"})).status == 400
    changed = await client.post("/local/topics/made/settings", {"read_queues": "4", "write_queues": "4"})
    number = changed.headers["location"].partition("changed=")[2]

    async def queues() -> object:
        return (await client.get("/local/topics/made/settings.json")).json()["settings"][0]

    assert 4 in (await queues()).values()  # type: ignore[attr-defined]
    await client.post(f"/local/changes/{number}/undo")
    assert 2 in (await queues()).values()  # type: ignore[attr-defined]
    assert (await client.post("/local/topics/made/delete", {"name": "other"})).status == 400
    assert (await client.post("/local/topics/made/delete", {"name": "made"})).status == 303
    assert (await client.get("/local/topics/made")).status == 404


async def test_values_of_the_name_servers_are_set_deleted_and_put_back(client: ConsoleClient) -> None:
    place = {"namespace": "SHOP", "key": "region"}

    async def values() -> dict[str, str]:
        found = (await client.get("/local/name-servers.json?namespace=SHOP")).json()
        return {row["key"]: row["value"] for row in found["kv"]}

    assert (await client.post("/local/name-servers/kv", {**place, "value": "eu"})).status == 303
    deleted = await client.post("/local/name-servers/kv", {**place, "value": "", "delete": "1"})
    assert deleted.status == 303, deleted.text
    assert await values() == {}
    number = deleted.headers["location"].partition("changed=")[2]
    assert (await client.post(f"/local/changes/{number}/undo")).status == 303
    assert await values() == {"region": "eu"}
    assert (await client.post("/local/name-servers/kv", {"namespace": "SHOP"})).status == 400


async def test_the_density_of_messages_leads_to_a_part_of_the_time(client: ConsoleClient) -> None:
    path = "/local/topics/orders/messages"
    assert "strip-chart" not in (await client.get(path)).text
    page = (await client.get(f"{path}?density=1")).text
    counts = [int(text.replace(",", "")) for text in re.findall(r"<title>[^<]*Z: ([\d,]+)</title>", page)]
    assert sum(counts) >= 70
    hrefs = re.findall(r'<a href="([^"]+)"><title>[^<]*Z: [1-9][\d,]*</title>', page)
    part = (await client.get(html.unescape(hrefs[0]).replace("messages?", "messages.json?"))).json()
    assert 0 < len(part["messages"]) <= 50


async def test_fields_with_fractions_are_compared_with_whole_numbers(
    client: ConsoleClient, servers: EmbeddedServers
) -> None:
    topic = fresh_name("priced")
    servers.create_topic(topic, 1)
    with Producer("shop", namesrv=servers.namesrv) as producer:
        for amount in (99.5, 300, 312.5):
            producer.send(Message.json(topic, {"amount": amount, "note": "it is 7"}))
    for where, count in {
        "body.amount > 100": 2, "body.amount = 300": 1, "body.amount BETWEEN 99 AND 100": 1,
        "body.note = 'it is 7' AND body.amount < 313": 3,
    }.items():  # fmt: skip
        found = (await client.get(f"/local/topics/{topic}/messages.json?where={quote(where)}")).json()
        assert len(found["messages"]) == count, where


async def test_columns_show_fields_of_bodies_and_properties(client: ConsoleClient) -> None:
    path = "/local/topics/orders/messages"
    query = "columns=body.customer.name,region,body.gone&where=body.id+%3D+4"
    answer = (await client.get(f"{path}.csv?{query}")).text
    head, row = answer.splitlines()
    assert head.split(",")[-3:] == ["body.customer.name", "properties.region", "body.gone"]
    assert row.split(",")[-3:] == ["c-1", "eu", ""]
    page = (await client.get(f"{path}?{query}")).text
    assert 'data-columns="body.customer.name,properties.region,body.gone"' in page


async def test_settings_of_groups_and_brokers_are_changed_and_put_back(client: ConsoleClient) -> None:
    changed = await client.post("/local/groups/billing/settings", {"retries": "3"})
    assert changed.status == 303
    rows = (await client.get("/local/groups/billing/settings.json")).json()["settings"]
    assert [list(row.values())[1] for row in rows[:1]] == [False]
    await client.post(f"/local/changes/{changed.headers['location'].partition('changed=')[2]}/undo")
    rows = (await client.get("/local/groups/billing/settings.json")).json()["settings"]
    assert [list(row.values())[1] for row in rows[:1]] == [True]
    fields = {"name": "autoCreateTopicEnable", "value": "false"}
    changed = await client.post("/local/brokers/broker-a/settings", fields)
    assert changed.status == 303, changed.text
    found = (await client.get("/local/brokers/broker-a/settings.json")).json()["settings"]
    assert found["autoCreateTopicEnable"] == "false"
    await client.post(f"/local/changes/{changed.headers['location'].partition('changed=')[2]}/undo")
    found = (await client.get("/local/brokers/broker-a/settings.json")).json()["settings"]
    assert found["autoCreateTopicEnable"] == "true"
    assert (
        await client.post("/local/brokers/broker-a/settings", {"name": "nothing", "value": "1"})
    ).status == 400
    assert (
        await client.post("/local/brokers/127.0.0.1:9/settings", {"name": "nothing", "value": "1"})
    ).status == 404


async def test_the_log_of_changes_is_kept_in_a_file(servers: EmbeddedServers, tmp_path: Path) -> None:
    settings = ConsoleSettings(clusters={"local": servers.namesrv}, state=tmp_path)
    async with console_client(settings) as client:
        await client.post("/local/new-topic", {"topic": "kept", "queues": "1"})
    async with console_client(settings) as client:
        assert "created topic" in (await client.get("/local/changes")).text


# --- Dead letters ---


async def test_dead_letters_are_listed_edited_and_sent_again(
    client: ConsoleClient, servers: EmbeddedServers
) -> None:
    with Admin(namesrv=servers.namesrv) as admin, Producer("shop", namesrv=servers.namesrv) as producer:
        admin.groups.create(Group("dying"))
        admin.topics.create("%DLQ%dying", queues=1)
        admin.topics.create("%RETRY%dying", queues=1)
        for number in range(3):
            producer.send(Message("%DLQ%dying", b'{"n": %d}' % number, keys=[f"dead-{number}"]))
    groups = (await client.get("/local/dead-letters.json")).json()["dead_letters"]
    assert [(row["group"], row["waiting"]) for row in groups] == [("dying", 3)]
    found = (await client.get("/local/dead-letters/dying.json?q=dead-1")).json()["letters"]
    assert [(row["keys"], row["topic"], row["state"]) for row in found] == [
        (["dead-1"], "%DLQ%dying", "waiting")
    ]
    page = await client.get("/local/dead-letters/dying")
    first, second, _ = re.findall(r'name="chosen" value="([0-9A-F]+)"', page.text)
    edited = await client.post(f"/local/dead-letters/dying/edit/{first}", {"body": '{"n": 100}'})
    assert edited.status == 303, edited.text
    sent = await client.post("/local/dead-letters/dying/resend", {"chosen": [second], "rate": "100/s"})
    assert "1 sent, 0 failed" in sent.text
    copies = (await client.get("/local/topics/%25RETRY%25dying/messages.json")).json()["messages"]
    assert [message["body"] for message in copies] == ['{"n": 1}', '{"n": 100}']
    assert copies[1]["properties"]["SKYLARK_EDITED_FROM"] != copies[1]["message_id"]
    states = (await client.get("/local/dead-letters/dying.json")).json()["letters"]
    assert [row["state"] for row in states] == ["waiting", "sent", "waiting"]
    slow = await client.post("/local/dead-letters/dying/resend", {"rate": "0.1"})
    assert slow.status == 400
    everything = await client.post("/local/dead-letters/dying/resend", {})
    assert "3 sent, 0 failed" in everything.text
    assert (await client.get("/local/dead-letters/dying.json")).json()["letters"] == []
