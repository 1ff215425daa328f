"""A message is the same JSON, whether a broker delivered it or a store directory holds it."""

from __future__ import annotations

import pytest

from skylark.admin.message_json import document
from skylark.client.received_message import decode_pull
from skylark.model.body import compress
from skylark.model.message import StoredMessage
from skylark.model.record import decode
from tests.unit.client.messages import QUEUE, record

PROPERTIES = {"TAGS": "created", "KEYS": "a b", "UNIQ_KEY": "7F000001000A2B5C8D1E0001", "own": "x"}


def both(data: bytes) -> tuple[dict[str, object], dict[str, object]]:
    """The JSON of `skylark tail` and that of `skylark store dump`."""
    [received] = decode_pull(data, QUEUE)
    stored = decode(data)
    assert isinstance(stored, StoredMessage)
    return document(received), document(stored)


@pytest.mark.parametrize("body", [b"text", "文".encode(), b"\xff\x00", b""])
@pytest.mark.parametrize("properties", [PROPERTIES, {}])
def test_one_shape_for_all_commands(body: bytes, properties: dict[str, str]) -> None:
    tailed, dumped = both(record(3, body, properties))
    assert tailed == {**dumped, "broker": QUEUE.broker_name}
    assert dumped["broker"] is None
    assert list(tailed) == list(dumped)


def test_the_ids_are_those_of_the_sender_and_of_the_place() -> None:
    _, dumped = both(record(3, b"text", PROPERTIES))
    assert dumped["message_id"] == PROPERTIES["UNIQ_KEY"]
    assert dumped["offset_message_id"] == "7F00000100002A9F0000000000000BB8"
    assert (dumped["tags"], dumped["keys"]) == ("created", ["a", "b"])


def test_compressed_bodies_are_decompressed() -> None:
    body, flag = compress(b"text" * 100, "ZLIB", 5)
    tailed, dumped = both(record(3, body, PROPERTIES, sys_flag=flag))
    assert tailed["body"] == dumped["body"] == "text" * 100
    assert dumped["compression"] == "zlib"


def test_a_body_that_cannot_be_read_is_given_as_stored_with_the_reason() -> None:
    _, flag = compress(b"", "ZLIB", 5)
    for members in both(record(3, b"not zlib", sys_flag=flag)):
        assert members["body"] == "not zlib"
        assert "zlib" in str(members["body_error"])
