"""SQL in the console: over topics, store files and tables; in a process that reaches nothing else."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from skylark import Message, Producer, aio
from skylark.console import sql
from skylark.console.settings import ConsoleSettings
from skylark.console.sql import SqlRunner, SqlTable, named_tables
from skylark.errors import SettingsError
from skylark.testing import EmbeddedServers
from tests.support.console import ConsoleClient, console_client

SECRET = "the secret in the file"


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers() as servers:
        servers.create_topic("orders", 2)
        servers.create_topic("odd-name", 1)
        with Producer("shop", namesrv=servers.namesrv) as producer:
            for number in range(20):
                producer.send(
                    Message.json(
                        "orders",
                        {"id": number, "amount": number * 1.5, "customer": {"city": "Oslo"}},
                        tags=("a", "b")[number % 2],
                        properties={"region": "eu"},
                    )
                )
            producer.send(Message("orders", b"\xff\xfe"))
            producer.send(Message("odd-name", b"plain text"))
        yield servers


@pytest.fixture
async def client(servers: EmbeddedServers) -> AsyncIterator[ConsoleClient]:
    async with console_client(ConsoleSettings(clusters={"local": servers.namesrv})) as client:
        yield client


async def test_two_columns_are_drawn(client: ConsoleClient) -> None:
    async def page(query: str, more: str = "") -> str:
        return (await client.get(f"/local/sql?q={quote(query)}{more}")).text

    counts = "select tags, count(*) n, sum(value.id) ids from orders where tags <> '' group by 1 order by 1"
    assert "<caption>n / tags</caption>" in await page(counts)
    chosen = await page(counts, "&y=ids")
    assert "<caption>ids / tags</caption>" in chosen
    assert '<th scope="row">b</th>' in chosen
    times = "select storeTimestamp, value.id from orders where value.id is not null"
    assert 'aria-label="id / storeTimestamp: id' in await page(times)
    assert "<caption>" not in await page("select tags, keys from orders")


async def asked(client: ConsoleClient, query: str) -> Any:
    found = await client.get(f"/local/sql.json?q={quote(query)}")
    return found.json().get("rows", found.json().get("error"))


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_topics_are_tables_with_the_fields_of_bodies(client: ConsoleClient) -> None:
    assert await asked(
        client, "select tags, count(*) n, sum(value.amount) s from orders group by 1 order by 1 nulls last"
    ) == [
        {"tags": "a", "n": 10, "s": 135.0},
        {"tags": "b", "n": 10, "s": 150.0},
        {"tags": None, "n": 1, "s": None},
    ]
    [row] = await asked(
        client, """select bodyText, brokerName, year(storeTimestamp) > 2000 from "odd-name" """
    )
    assert list(row.values()) == ["plain text", "broker-a", True]
    [row] = await asked(
        client, "select value.customer.city c, properties['region'] r from orders where value.id = 3"
    )
    assert row == {"c": "Oslo", "r": "eu"}
    page = await client.get(f"/local/sql?q={quote('select 1 as one, 1 as one')}")
    assert page.status == 200 and "1 rows" in page.text
    csv = await client.get(f"/local/sql.csv?q={quote('select 42 as answer')}")
    assert csv.text.split() == ["answer", "42"]
    answer = (await client.get("/api/v1/local/sql?query=select+count(*)+from+orders")).json()
    assert (answer["rows"], answer["read"]) == ([[21]], ["orders: 21"])


async def test_an_error_is_a_sentence(client: ConsoleClient) -> None:
    assert "Candidate bindings" in str(await asked(client, "select nothing from orders"))
    assert (await client.get("/local/sql?q=select")).status == 400
    wrong = await client.get("/api/v1/local/sql?query=select+*+from+missing")
    assert wrong.status == 400 and "missing does not exist" in wrong.json()["title"]


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_text('{file}')",
        pytest.param("select * from read_csv('{file}')", marks=pytest.mark.nightly),
        pytest.param("select * from read_blob('{file}')", marks=pytest.mark.nightly),
        "select * from '{file}'",
        "select * from glob('{folder}/*')",
        "select * from read_parquet('https://127.0.0.1:1/x.parquet')",
        "select * from query('select * from read_text(''{file}'')')",
        pytest.param(
            "with a as (select * from read_json('{file}', format = 'unstructured')) select * from a",
            marks=pytest.mark.nightly,
        ),
        "attach '{folder}/new.db'",
        "copy orders to '{folder}/copy.csv'",
        pytest.param("export database '{folder}'", marks=pytest.mark.nightly),
        pytest.param("install httpfs", marks=pytest.mark.nightly),
        "load httpfs",
        pytest.param("set enable_external_access = true", marks=pytest.mark.nightly),
        pytest.param("pragma enable_object_cache", marks=pytest.mark.nightly),
        "select 1; copy orders to '{folder}/copy.csv'",
        pytest.param("select getenv('HOME')", marks=pytest.mark.nightly),
        pytest.param("create table t as select * from read_text('{file}')", marks=pytest.mark.nightly),
        pytest.param("select * from python_scan", marks=pytest.mark.nightly),
    ],
)
async def test_nothing_else_can_be_reached(client: ConsoleClient, tmp_path: Path, query: str) -> None:
    file = tmp_path / "secret.txt"
    file.write_text(SECRET)
    answer = await asked(client, query.format(file=file, folder=tmp_path))
    assert isinstance(answer, str), answer
    assert SECRET not in answer
    assert names_in(tmp_path) == ["secret.txt"]


async def test_limits_are_kept(servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = SqlRunner(ConsoleSettings(clusters={"local": servers.namesrv}), seconds_max=20)
    async with aio.Admin(namesrv=servers.namesrv) as admin:
        runner.seconds_max = 1
        endless = "select count(*) from range(100000000000) where md5(range::varchar) = ''"
        assert "takes longer than 1 s" in (await runner.run(endless, admin, [])).error
        runner.seconds_max = 60
        large = "select string_agg(repeat('x', 1000000), '') from range(5000)"
        assert "Out of Memory" in (await runner.run(large, admin, [])).error
        many = await runner.run("select * from range(5000)", admin, [])
        assert (len(many.rows), many.has_more) == (sql.ROWS_MAX, True)
        with pytest.raises(SettingsError, match="more than 20000"):
            await runner.run("x" * 20_001, admin, [])
        monkeypatch.setattr(sql, "AT_ONCE_MAX", 0)
        with pytest.raises(SettingsError, match="queries run already"):
            await runner.run("select 1", admin, [])
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(SettingsError, match="DuckDB is not installed; run: pip install"):
            await runner.run("select 1", admin, [])


async def test_hidden_bodies_close_sql(servers: EmbeddedServers) -> None:
    settings = ConsoleSettings(clusters={"local": servers.namesrv}, hide_bodies=True)
    async with console_client(settings) as client:
        assert (await client.get("/local/sql?q=select+1")).status == 400
        assert (await client.get("/api/v1/local/sql?query=select+1")).status == 400


async def test_store_files_and_tables_of_a_lake_are_tables(servers: EmbeddedServers, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(
        tmp_path / "t", pa.table({"day": ["x", "y", "y"], "n": [1, 2, 3]}), partition_by=["day"]
    )
    settings = ConsoleSettings(
        clusters={"local": servers.namesrv},
        store=servers._settings.store.path,
        lake={"totals": f"delta:{tmp_path / 't'}"},
    )
    async with console_client(settings) as client:
        assert await asked(client, "select day, sum(n) s from lake.totals group by 1 order by 1") == [
            {"day": "x", "s": 1},
            {"day": "y", "s": 5},
        ]
        query = "select count(*) n from store.orders where value.amount > 3"
        assert await asked(client, query) == [{"n": 17}]
        page = (await client.get("/local/sql")).text
        assert "lake.totals" in page and "store.orders" in page
    with pytest.raises(SettingsError, match="invalid table"):
        ConsoleSettings(clusters={"local": "a:1"}, lake={"x": "s3://bucket"})


def test_a_query_names_its_tables() -> None:
    known = [
        SqlTable("", "orders"),
        SqlTable("", "odd-name"),
        SqlTable("lake", "orders"),
        SqlTable("store", "x y"),
    ]
    assert named_tables('select * from orders join "odd-name" using (msgId)', known) == known[:2]
    assert named_tables("select * from lake.orders", known) == [known[2]]
    assert named_tables('select orders.topic from store."x y", orders', known) == [known[0], known[3]]
    assert [table.text for table in known] == ["orders", '"odd-name"', "lake.orders", 'store."x y"']
