"""The registry: its numbers depend on the topic only, and its answers are those of Confluent's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skylark.pipelines.schema_registry import SchemaRegistry, answer

ONE = '{"type": "record", "name": "A", "fields": [{"name": "n", "type": "int"}]}'
TWO = '{"type": "record", "name": "A", "fields": [{"name": "n", "type": "long"}]}'


class MemoryLog:
    """A topic whose beginning may expire."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.expired = 0

    def append(self, record: bytes) -> int:
        self.records.append(record)
        return len(self.records) - 1

    def first(self) -> int:
        return self.expired

    def read(self, from_offset: int) -> list[bytes]:
        return self.records[max(from_offset, self.expired) :]


def ask(registry: SchemaRegistry, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    return tuple(answer(registry, method, path, data))


def test_schemas_are_registered_found_and_deleted() -> None:
    registry = SchemaRegistry(MemoryLog())
    assert ask(registry, "GET", "/subjects") == (200, [])
    post = "/subjects/orders-value/versions"
    assert ask(registry, "POST", post, {"schema": ONE}) == (200, {"id": 1})
    assert ask(registry, "POST", post, {"schema": ONE.replace(" ", "")}) == (200, {"id": 1})
    assert ask(registry, "POST", post, {"schema": TWO, "schemaType": "AVRO"}) == (200, {"id": 2})
    assert ask(registry, "POST", "/subjects/pay%2Fvalue/versions", {"schema": ONE})[0] == 422
    assert ask(registry, "POST", "/subjects/pay-value/versions", {"schema": ONE}) == (200, {"id": 1})
    assert ask(registry, "GET", "/subjects") == (200, ["orders-value", "pay-value"])
    assert ask(registry, "GET", post) == (200, [1, 2])
    status, latest = ask(registry, "GET", f"{post}/latest")
    assert (status, latest["subject"], latest["version"], latest["id"]) == (200, "orders-value", 2, 2)
    assert json.loads(latest["schema"]) == json.loads(TWO)
    assert ask(registry, "GET", f"{post}/1")[1]["id"] == 1
    assert json.loads(ask(registry, "GET", "/schemas/ids/1")[1]["schema"]) == json.loads(ONE)
    found = ask(registry, "POST", "/subjects/orders-value", {"schema": TWO})
    assert (found[0], found[1]["version"]) == (200, 2)
    assert ask(registry, "DELETE", "/subjects/orders-value") == (200, [1, 2])
    assert ask(registry, "GET", "/schemas/ids/2")[0] == 200  # messages of it may exist
    assert ask(registry, "POST", post, {"schema": TWO}) == (200, {"id": 2})
    assert ask(registry, "GET", post) == (200, [3])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/subjects/none/versions", None, 404, 40401),
        ("GET", "/subjects/a/versions/9", None, 404, 40402),
        ("GET", "/subjects/a/versions/x", None, 422, 42202),
        ("GET", "/schemas/ids/99", None, 404, 40403),
        ("POST", "/subjects/a", {"schema": TWO}, 404, 40403),
        ("POST", "/subjects/a/versions", {"schema": "{"}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": ONE, "schemaType": "XML"}, 422, 42201),
        ("POST", "/subjects/a/versions", {}, 422, 42201),
        ("DELETE", "/subjects/none", None, 404, 40401),
        ("PUT", "/subjects", None, 405, 405),
        ("GET", "/other", None, 404, 404),
    ],
)
def test_mistakes_are_answered_as_by_confluent(
    method: str, path: str, body: Any, status: int, code: int
) -> None:
    registry = SchemaRegistry(MemoryLog())
    registry.register("a", "AVRO", ONE)
    found, value = ask(registry, method, path, body)
    assert (found, value["error_code"]) == (status, code)


def test_registries_agree_and_survive_the_expiry_of_their_messages() -> None:
    now = [0.0]
    log = MemoryLog()
    log.append(b"not ours")
    one, other = SchemaRegistry(log, monotonic=lambda: now[0]), SchemaRegistry(log)
    assert (one.register("a", "AVRO", ONE).number, other.register("a", "AVRO", TWO).number) == (1, 2)
    assert one.table().image() == other.table().image()
    now[0] += 7 * 3600
    one.delete("a")
    one.register("a", "AVRO", TWO)
    assert one.table().image() == other.table().image()
    log.expired = 3  # all before the record that holds everything
    late = SchemaRegistry(log)
    assert late.table().image() == one.table().image()
    assert late.table().versions("a")[0].version == 3
