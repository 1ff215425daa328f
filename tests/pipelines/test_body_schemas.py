"""Bodies of a topic decoded by the source, with schemas from files and from a registry in a topic."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

from skylark.arrow.body_formats import WIRE
from skylark.arrow.columns import message_schema
from skylark.errors import SettingsError
from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.jobs.session import register
from skylark.pipelines.message_source import OffsetRange
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import read_ranges
from skylark.pipelines.schema_registry import TOPIC, SchemaRegistry, answer
from skylark.pipelines.schema_topic import SchemaTopic
from tests.support.pages import ROOT, blocks
from tests.support.pipeline_cluster import PipelineCluster
from tests.unit.arrow.test_body_formats import avro, descriptors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {"type": "record", "name": "A", "fields": [{"name": "n", "type": "long"}]}
NEWER = {
    "type": "record",
    "name": "A",
    "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": ["null", "string"], "default": None}],
}


@pytest.fixture
def registry(shared_cluster: PipelineCluster) -> Iterator[str]:
    """Address of a registry over HTTP, whose schemas are in a topic of the cluster."""
    shared_cluster.create_topic("schemas", 1)
    client = ClusterClient(shared_cluster.namesrv)
    kept = SchemaRegistry(SchemaTopic(client, "schemas"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            status, value = answer(kept, self.command, self.path, self.rfile.read(size))
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *arguments: Any) -> None:
            """Not in the output of tests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
    client.close()


def add_schema(registry: str, subject: str, schema: Any) -> int:
    body = json.dumps({"schema": json.dumps(schema)}).encode()
    request = Request(f"{registry}/subjects/{subject}/versions", body)  # noqa: S310
    with urlopen(request) as reply:  # noqa: S310
        return int(json.loads(reply.read())["id"])


def values(cluster: PipelineCluster, topic: str, **options: str) -> list[tuple[Any, bytes | None]]:
    """The values and rejects of queue 0, as tasks read them."""
    loaded = load(SourceOptions, cluster.options(topic, **options))
    assert loaded.body_schema is not None
    kind = loaded.body_schema.format().kind
    names = ["value", "rejects"]
    schema = message_schema(["value"], value=kind).append(
        message_schema(["body"]).field("body").with_name("rejects").with_nullable(True)
    )
    queue = cluster.queue(topic)
    end = cluster.wire.max_offsets([queue])[queue]
    return [
        (row[names[0]], row[names[1]])
        for batch in read_ranges(loaded, [OffsetRange(queue, 0, end)], schema)
        for row in batch.to_pylist()
    ]


def test_confluents_wire_format_is_read_with_a_registry_in_a_topic(
    shared_cluster: PipelineCluster, registry: str
) -> None:
    first = add_schema(registry, "wired-value", SCHEMA)
    second = add_schema(registry, "wired-value", NEWER)
    assert (first, second) == (1, 2)
    shared_cluster.create_topic("wired", 1)
    shared_cluster.send(
        "wired",
        [
            WIRE.pack(0, first) + avro(SCHEMA, {"n": 1}),
            WIRE.pack(0, second) + avro(NEWER, {"n": 2, "text": "x"}),
            WIRE.pack(0, 77) + b"\2",
            b"{}",
        ],
    )
    found = values(
        shared_cluster, "wired", decode="confluent", decodeSchema="wired-value", schemaRegistry=registry
    )
    assert [value for value, _ in found] == [{"n": 1, "text": None}, {"n": 2, "text": "x"}, None, None]
    assert [rejected for _, rejected in found] == [None, None, WIRE.pack(0, 77) + b"\2", b"{}"]
    with pytest.raises(SettingsError, match="has no subject 'other'"):
        values(shared_cluster, "wired", decode="confluent", decodeSchema="other", schemaRegistry=registry)


def test_the_registry_of_the_page(shared_cluster: PipelineCluster) -> None:
    shared_cluster.create_topic(TOPIC, 1)
    [block] = [each for each in blocks(ROOT / "docs/spark/schemas.md") if each.run_by]
    code = block.code.replace("127.0.0.1:9876", shared_cluster.namesrv).replace(
        "answer(reg", "said = answer(reg"
    )
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own page
    status, subjects = names["said"]
    assert status == 200
    assert isinstance(subjects, list)


def test_avro_and_protobuf_are_read_with_files(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    shared_cluster.create_topic("filed", 1)
    shared_cluster.send("filed", [avro(SCHEMA, {"n": 5}), b"\x08\x09"])
    (tmp_path / "a.avsc").write_text(json.dumps(SCHEMA))
    (tmp_path / "shop.desc").write_bytes(descriptors().SerializeToString())
    found = values(shared_cluster, "filed", decode="avro", decodeSchema=str(tmp_path / "a.avsc"))
    assert found == [({"n": 5}, None), (None, b"\x08\x09")]
    read = values(shared_cluster, "filed", decode="protobuf", decodeSchema=f"{tmp_path}/shop.desc#shop.Item")
    assert read == [(None, avro(SCHEMA, {"n": 5})), ({"n": 9}, None)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"decode": "avro"}, "decodeSchema: missing for decode=avro"),
        ({"decode": "avro", "decodeSchema": "/none.avsc"}, "cannot read /none.avsc"),
        ({"decode": "csv"}, "set the fields as DDL"),
        ({"decode": "protobuf", "decodeSchema": "x"}, "use FILE#MESSAGE"),
        ({"decode": "confluent", "decodeSchema": "x"}, "schemaRegistry: missing"),
        ({"decode": "json", "schemaRegistry": "x"}, "used with decode=confluent only"),
        (
            {"decode": "confluent", "decodeSchema": "x", "schemaRegistry": "http://127.0.0.1:1"},
            "cannot reach http://127.0.0.1:1",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_read(options: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        load(SourceOptions, {"namesrv": "127.0.0.1:1", "topic": "a", **options})


@pytest.mark.nightly
def test_spark_reads_every_format(
    spark: SparkSession, shared_cluster: PipelineCluster, registry: str, tmp_path: Path
) -> None:
    register(spark)
    add_schema(registry, "formats-value", SCHEMA)
    shared_cluster.create_topic("formats", 1)
    number = add_schema(registry, "formats-value", SCHEMA)
    shared_cluster.send("formats", [WIRE.pack(0, number) + avro(SCHEMA, {"n": 7}), b"8"])

    def read(**options: str) -> list[Any]:
        frame = spark.read.format("rocketmq").options(**shared_cluster.options("formats", **options)).load()
        return [tuple(row) for row in frame.orderBy("queueOffset").select("value.n", "rejects").collect()]

    wired = WIRE.pack(0, number) + avro(SCHEMA, {"n": 7})
    found = read(decode="confluent", decodeSchema="formats-value", schemaRegistry=registry)
    assert found == [(7, None), (None, b"8")]
    assert read(decode="csv", decodeSchema="n bigint") == [(None, wired), (8, None)]
    assert read(decode="avro", decodeSchema=json.dumps(SCHEMA))[1] == (28, None)
