"""`cdc` in a real session: keys that change, tables that share a topic, columns that are added later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from skylark.errors import SettingsError
from skylark.pipelines.jobs import cdc
from skylark.pipelines.jobs.endpoints import Input, parse_output
from skylark.pipelines.jobs.session import register
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def events(spark: SparkSession, *told: dict[str, Any]) -> DataFrame:
    rows = [(json.dumps(event).encode(), number) for number, event in enumerate(told)]
    return spark.createDataFrame(rows, "body binary, queueOffset bigint")


def states(df: DataFrame, changes: cdc.ChangeEvents) -> list[tuple[Any, ...]]:
    found = cdc.transform(df, changes).drop(cdc.SEQUENCE).collect()
    return sorted(tuple(row) for row in found)


@pytest.mark.nightly
def test_a_row_that_gets_another_key_leaves_the_old_one(spark: SparkSession) -> None:
    canal = events(
        spark,
        {"type": "INSERT", "data": [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}]},
        {"type": "UPDATE", "data": [{"id": "9", "name": "a"}], "old": [{"id": "1"}]},
        # Every id one higher, the highest first: 2 is left and then taken again.
        {
            "type": "UPDATE",
            "data": [{"id": "3", "name": "b"}, {"id": "2", "name": "c"}],
            "old": [{"id": "2"}, {"id": "1"}],
        },
        {"type": "UPDATE", "data": [{"id": "3", "name": "B"}], "old": [{"name": "b"}]},
    )
    changes = cdc.ChangeEvents(format="canal", keys=["id"], schema="id bigint, name string")
    gone = {(row[0], row[2]) for row in states(canal, changes) if row[2]}
    assert gone == {(1, True)}
    assert [row for row in states(canal, changes) if not row[2]] == [
        (2, "c", False),
        (3, "B", False),
        (9, "a", False),
    ]
    debezium = events(
        spark,
        {"op": "c", "before": None, "after": {"id": 1, "shop": "x", "name": "a"}},
        {"op": "u", "before": {"id": 1, "shop": "x"}, "after": {"id": 1, "shop": "y", "name": "a"}},
        {"op": "u", "before": {"id": 1, "shop": "y"}, "after": {"id": 1, "shop": "y", "name": "A"}},
    )
    changes = cdc.ChangeEvents(keys=["id", "shop"], schema="id bigint, shop string, name string")
    assert states(debezium, changes) == [(1, "x", None, True), (1, "y", "A", False)]


def test_of_a_topic_with_several_tables_one_is_followed(spark: SparkSession) -> None:
    row = {"id": "1", "name": "user"}
    canal = events(
        spark,
        {"database": "shop", "table": "users", "type": "INSERT", "data": [row]},
        {"database": "shop", "table": "orders", "type": "INSERT", "data": [{"id": "1", "name": "order"}]},
        {"database": "test", "table": "users", "type": "INSERT", "data": [{"id": "1", "name": "test"}]},
    )
    for table, name in (("shop.users", "user"), ("orders", "order"), ("nobody.users", None)):
        changes = cdc.ChangeEvents(format="canal", keys=["id"], schema="id bigint, name string", table=table)
        assert [each[1] for each in states(canal, changes)] == ([name] if name else [])
    debezium = events(
        spark,
        {"op": "c", "after": {"id": 1}, "source": {"db": "crm", "schema": "shop", "table": "users"}},
        {"op": "c", "after": {"id": 2}, "source": {"db": "crm", "schema": "shop", "table": "orders"}},
    )
    for table in ("users", "shop.users", "crm.users"):
        assert states(debezium, cdc.ChangeEvents(keys=["id"], schema="id bigint", table=table)) == [
            (1, False)
        ]


def test_a_value_that_does_not_fit_is_null_and_ends_nothing(spark: SparkSession) -> None:
    row = {"id": "1", "born": "0000-00-00", "age": "old"}
    changes = cdc.ChangeEvents(format="canal", keys=["id"], schema="id bigint, born date, age int")
    assert states(events(spark, {"type": "INSERT", "data": [row]}), changes) == [(1, None, None, False)]


def test_a_table_gets_the_columns_that_its_source_got(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    register(spark)
    topic = fresh_name("people")
    shared_cluster.create_topic(topic, 1)
    output = parse_output(f"delta:{tmp_path / 'people'}")

    def follow(schema: str, *told: dict[str, Any]) -> list[dict[str, Any]]:
        shared_cluster.send(topic, [json.dumps(event).encode() for event in told])
        source = Input(namesrv=shared_cluster.namesrv, topic=topic)
        changes = cdc.ChangeEvents(keys=["personId"], schema=schema)
        cdc.cdc(spark, source, output, state=tmp_path / "state", changes=changes, once=True)
        rows: list[dict[str, Any]] = DeltaTable(output.where).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: row["personId"])

    one, two = {"personId": 1, "name": "Ada"}, {"personId": 2, "name": "Bo", "shoeSize": 41}
    assert follow("personId bigint, name string", {"op": "c", "after": one}) == [one]
    grown = follow("personId bigint, name string, shoeSize int", {"op": "c", "after": two})
    assert grown == [{**one, "shoeSize": None}, two]
    fewer = follow("personId bigint, name string", {"op": "u", "after": {"personId": 2, "name": "Bob"}})
    assert fewer[1] == {"personId": 2, "name": "Bob", "shoeSize": 41}
    with pytest.raises(SettingsError, match="name is string in the table, integer in the schema"):
        follow("personId bigint, name int")
