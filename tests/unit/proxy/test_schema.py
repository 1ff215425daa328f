"""The table of messages is RocketMQ's: same names, numbers and types as in a client's descriptors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from skylark.proxy.schema import ENUMERATIONS, MESSAGES, v2


def described(message: Any) -> dict[str, list[Any]]:
    """Number, type, whether repeated, type name and oneof of each field."""
    return {
        field.name: [
            field.number,
            field.type,
            field.is_repeated,
            "" if field.message_type is None else field.message_type.full_name,
            "" if field.enum_type is None else field.enum_type.full_name,
            "" if field.containing_oneof is None else field.containing_oneof.name,
        ]
        for field in message.DESCRIPTOR.fields
    }


def test_messages_are_those_of_the_official_python_client(golden: Path) -> None:
    known = json.loads(gzip.decompress((golden / "grpc" / "descriptors.json.gz").read_bytes()))
    for name, message in MESSAGES.items():
        fields = known["messages"][name]
        assert described(message) == {key: fields[key] for key in described(message)}, name
        missing = fields.keys() - described(message).keys()
        assert missing <= {"client_properties"}, (name, missing)
    for name, values in ENUMERATIONS.items():
        if "." in name:  # inside a message: the descriptors have only its name
            continue
        theirs = known["enumerations"][name]
        ours = {value.name: value.value for value in values}
        assert theirs.items() <= ours.items(), name


def test_unknown_fields_are_kept() -> None:
    given = v2.Settings(client_type=1).SerializeToString() + b"\x7a\x03abc"
    echoed = v2.Settings()
    echoed.CopyFrom(v2.Settings.FromString(given))
    assert echoed.SerializeToString().endswith(b"\x7a\x03abc")
