"""`run` in a real session: steps, rules, several sinks, rejects."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from skylark.errors import SettingsError
from skylark.pipelines.jobs import run
from skylark.pipelines.jobs.pipeline_file import load_pipeline
from skylark.pipelines.jobs.session import register
from tests.pipelines.messages import stored
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = """
name: {name}
source: {{topic: {source}, limit: {{bytes: 64MB}}}}
steps:
  - decode: {{format: json, schema: orders.ddl}}
  - sql: "select *, to_date(storeTimestamp) as dt from input where amount > 0"
  - dedup: {{keys: [orderId], within: 10 minutes}}
  - python: steps.py:enrich
sinks:
  - delta: {{path: lake/orders, partition: [dt], compact: 1h}}
  - rocketmq: {{topic: {target}, keys: orderId, exactlyOnce: keys}}
rejects: {{topic: {rejects}, table: lake/rejects}}
trigger: 1s
quality:
  - {{expect: "customer is not null", on_fail: reject}}
  - {{expect: "amount < 100", on_fail: warn}}
"""
STEPS = """
from pyspark.sql import functions as F

def enrich(df):
    return df.withColumn("net", F.round(F.col("amount") / 1.25, 2))
"""


def order(number: int, **changes: object) -> bytes:
    values = {"orderId": f"o{number}", "customer": f"c{number}", "amount": 10.0 + number, **changes}
    return json.dumps(values).encode()


def test_a_pipeline_from_its_file(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    register(spark)
    name = f"R{uuid.uuid4().hex[:8]}"
    names = {"source": name, "target": f"{name}_clean", "rejects": f"{name}_rejects"}
    for topic in names.values():
        shared_cluster.create_topic(topic, 1)
    (tmp_path / "pipeline.yml").write_text(FILE.format(name=name, **names))
    (tmp_path / "orders.ddl").write_text("orderId string, customer string, amount double")
    (tmp_path / "steps.py").write_text(STEPS)
    bodies = [order(number) for number in range(20)] + [order(3), order(5)]  # two were sent twice
    bodies += [order(30, amount=-1), order(31, customer=None), order(32, amount=5000), b"poison"]
    shared_cluster.send(name, bodies, 0)
    pipeline = load_pipeline(tmp_path / "pipeline.yml")
    state = tmp_path / "state"

    def once() -> object:
        return run.run_pipeline(
            spark, pipeline, namesrv=shared_cluster.namesrv, state=state, once=True
        ).details

    details = once()
    assert isinstance(details, dict)
    assert details["quality"] == {"amount < 100": 1}
    lake = DeltaTable(tmp_path / "lake" / "orders").to_pyarrow_table()
    good = {f"o{number}" for number in [*range(20), 32]}
    assert sorted(lake["orderId"].to_pylist()) == sorted(good)
    assert lake["net"].to_pylist()[0] == round(lake["amount"].to_pylist()[0] / 1.25, 2)
    clean = stored(shared_cluster, names["target"])
    assert {message.keys[0] for message in clean} == good
    assert len(clean) == len(good)
    assert "net" in json.loads(clean[0].body)
    aside = stored(shared_cluster, names["rejects"])
    reasons = {message.properties.get("REJECTED_BECAUSE", "does not decode") for message in aside}
    assert reasons == {"customer is not null", "does not decode"}
    assert len(aside) == 2
    assert DeltaTable(tmp_path / "lake" / "rejects").to_pyarrow_table().num_rows == 2
    once()  # nothing new
    assert DeltaTable(tmp_path / "lake" / "orders").to_pyarrow_table().num_rows == len(good)


def test_a_step_that_fails_is_named_by_its_line(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    topic = f"R{uuid.uuid4().hex[:8]}"
    shared_cluster.create_topic(topic, 1)
    path = tmp_path / "pipeline.yml"
    steps = "steps:\n  - sql: select colour from input\nsinks: [console]\n"
    path.write_text(f"source: {{topic: {topic}}}\n{steps}")
    pipeline = load_pipeline(path)
    with pytest.raises(SettingsError, match=r"pipeline.yml:3: sql: .*colour"):
        run.run_pipeline(spark, pipeline, namesrv=shared_cluster.namesrv, state=tmp_path / "state", once=True)
    path.write_text(
        f"source: {{topic: {topic}}}\nsinks: [console]\nquality:\n  - {{expect: colour > 0, on_fail: drop}}\n"
    )
    pipeline = load_pipeline(path)
    with pytest.raises(SettingsError, match=r"pipeline.yml:4: expect: .*colour"):
        run.run_pipeline(spark, pipeline, namesrv=shared_cluster.namesrv, state=tmp_path / "state", once=True)
    for sink, sentence in (
        ("rocketmq: {topic: x, keys: colour}", "rocketmq: .*colour"),
        ("delta: {path: lake, partition: colour}", "columns: unknown column colour"),
    ):
        path.write_text(f"source: {{topic: {topic}}}\nsinks:\n  - {sink}\n")
        pipeline, state = load_pipeline(path), tmp_path / "state"
        with pytest.raises(SettingsError, match=f"pipeline.yml:3: {sentence}"):
            run.run_pipeline(spark, pipeline, namesrv=shared_cluster.namesrv, state=state, once=True)


PASSED_ON = """
source: {{topic: {source}}}
steps:
  - sql: "select *, 'x' || queueOffset as id from input where keys <> 'k0'"
sinks:
  - rocketmq: {{topic: {target}, keys: id}}
"""


def test_messages_that_are_passed_on_keep_what_they_carry(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    register(spark)
    source, target = f"R{uuid.uuid4().hex[:8]}", f"R{uuid.uuid4().hex[:8]}"
    for topic in (source, target):
        shared_cluster.create_topic(topic, 1)
    shared_cluster.send(source, [b"a", b"b"], properties={"TAGS": "paid", "KEYS": "k{n}", "colour": "red"})
    path = tmp_path / "pipeline.yml"
    path.write_text(PASSED_ON.format(source=source, target=target))
    run.run_pipeline(
        spark, load_pipeline(path), namesrv=shared_cluster.namesrv, state=tmp_path / "state", once=True
    )
    [message] = stored(shared_cluster, target)
    assert (message.body, message.tags, message.keys) == (b"b", "paid", ["x1"])
    assert message.properties["colour"] == "red"
