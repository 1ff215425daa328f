"""Formats of bodies beside JSON and text: Avro, Confluent's wire format, Protobuf, CSV.

A format has two parts: the Arrow type of its schema, which is found once, and a function that makes plain
values of a body, which runs for every message. `JsonBodies` makes columns of the values.
"""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from skylark.arrow.columns import MICROSECONDS
from skylark.errors import SettingsError

FORMATS = ("text", "json", "avro", "confluent", "protobuf", "csv")
WIRE = struct.Struct(">bi")
"""Confluent's wire format: a zero, and the number of the schema."""
DEPTH_MAX = 32

Read = Callable[[bytes], Any]


class BodyFormat(NamedTuple):
    """A schema: the type of its values, and how a body becomes one."""

    kind: pa.DataType
    read: Read


# --- Avro ---

_AVRO = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": MICROSECONDS,
    "timestamp-micros": MICROSECONDS,
    "uuid": pa.string(),
}


def avro_format(schema: str, writer: Callable[[int], str] | None = None) -> BodyFormat:
    """Bodies of this Avro schema. With `writer` they begin with the number of the schema that wrote them.

    `writer` returns a schema by its number, and raises ValueError for an unknown one.

    Raises SettingsError, also without the extra.
    """
    try:
        import fastavro  # noqa: PLC0415  an extra
    except ImportError:
        raise SettingsError(
            "decode", "fastavro is not installed; run: pip install 'skylarkmq[schemas]'"
        ) from None
    parsed = _parsed(fastavro, schema)
    kind = _avro_type(parsed, {}, 0)
    if not pa.types.is_struct(kind):
        raise SettingsError("decodeSchema", "the Avro schema is not a record")
    if writer is None:
        return BodyFormat(kind, _guarded(lambda body: _avro_value(fastavro, body, 0, parsed, None)))
    known: dict[int, Any] = {}

    def read(body: bytes) -> Any:
        zero, number = WIRE.unpack_from(body) if len(body) >= WIRE.size else (-1, 0)
        if zero != 0:
            raise ValueError("the body does not begin with a zero and the number of a schema")
        if number not in known:
            known[number] = _parsed(fastavro, writer(number))
        return _guarded(lambda rest: _avro_value(fastavro, rest, WIRE.size, known[number], parsed))(body)

    return BodyFormat(kind, read)


def _parsed(fastavro: Any, schema: str) -> Any:
    try:
        return fastavro.parse_schema(msgspec.json.decode(schema))
    except Exception as error:  # noqa: BLE001 - the library raises errors of many kinds
        raise SettingsError("decodeSchema", f"invalid Avro schema: {error}") from None


def _avro_value(fastavro: Any, body: bytes, start: int, writer: Any, reader: Any) -> Any:
    stream = io.BytesIO(body)
    stream.seek(start)
    value = fastavro.schemaless_reader(stream, writer, reader)
    if stream.read(1):
        raise ValueError("more bytes than the schema describes")
    return _without_uuids(value)


def _without_uuids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_uuids(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_uuids(item) for item in value]
    return str(value) if type(value).__name__ == "UUID" else value


def _avro_type(schema: Any, named: dict[str, pa.DataType], depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise SettingsError("decodeSchema", f"the schema is nested more than {DEPTH_MAX} times")
    if isinstance(schema, list):
        kinds = [_avro_type(each, named, depth + 1) for each in schema if each != "null"]
        if len(kinds) > 1:
            raise SettingsError("decodeSchema", "unions of several types are not supported, only with null")
        return kinds[0] if kinds else pa.null()
    if isinstance(schema, str):
        if (kind := _AVRO.get(schema) or named.get(schema)) is None:
            raise SettingsError("decodeSchema", f"unknown or recursive type {schema!r}")
        return kind
    return _avro_complex(schema, named, depth)


def _avro_complex(schema: Mapping[str, Any], named: dict[str, pa.DataType], depth: int) -> pa.DataType:
    name = schema["type"]
    kind: pa.DataType
    if (logical := schema.get("logicalType")) == "decimal":
        kind = pa.decimal128(schema["precision"], schema.get("scale", 0))
    elif logical in _LOGICAL:
        kind = _LOGICAL[logical]
    elif name == "record":
        fields = schema["fields"]
        kind = pa.struct([(each["name"], _avro_type(each["type"], named, depth + 1)) for each in fields])
    elif name == "array":
        kind = pa.list_(_avro_type(schema["items"], named, depth + 1))
    elif name == "map":
        kind = pa.map_(pa.string(), _avro_type(schema["values"], named, depth + 1))
    else:
        kind = _avro_type(name, named, depth + 1)
    if "name" in schema:
        named[schema["name"]] = kind
    return kind


# --- Protobuf ---


def protobuf_format(descriptors: bytes, message: str) -> BodyFormat:
    """Bodies of a message of a descriptor set, as `protoc --descriptor_set_out --include_imports` makes it.

    Raises SettingsError, also without the extra.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415
    except ImportError:
        raise SettingsError(
            "decode", "protobuf is not installed; run: pip install 'skylarkmq[schemas]'"
        ) from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        found = pool.FindMessageTypeByName(message)
    except KeyError:
        raise SettingsError("decodeSchema", f"the descriptor file has no message {message!r}") from None
    except Exception as error:  # noqa: BLE001 - the library raises errors of many kinds
        raise SettingsError("decodeSchema", f"invalid descriptor file: {error}") from None
    made = message_factory.GetMessageClass(found)
    return BodyFormat(_message_type(found, 0), _guarded(lambda body: _message_value(made.FromString(body))))


_PROTO = {
    "double": pa.float64(),
    "float": pa.float32(),
    "int64": pa.int64(),
    "int32": pa.int32(),
    "uint32": pa.int64(),
    "bool": pa.bool_(),
    "enum": pa.string(),
    "string": pa.string(),
}


def _message_type(descriptor: Any, depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise SettingsError("decodeSchema", f"{descriptor.full_name} is recursive, which a table cannot be")
    return pa.struct([(field.name, _field_type(field, depth)) for field in descriptor.fields])


def _field_type(field: Any, depth: int) -> pa.DataType:
    if _is_map(field):
        value = field.message_type.fields_by_name["value"]
        return pa.map_(pa.string(), _single_type(value, depth))
    single = _single_type(field, depth)
    return pa.list_(single) if field.is_repeated else single


def _single_type(field: Any, depth: int) -> pa.DataType:
    if field.message_type is not None:
        return _message_type(field.message_type, depth + 1)
    if field.type == field.TYPE_BYTES:
        return pa.binary()
    names = {value: name for name, value in vars(type(field)).items() if name.startswith("CPPTYPE_")}
    kind = names[field.cpp_type].removeprefix("CPPTYPE_").lower()
    return pa.int64() if kind == "uint64" else _PROTO[kind]


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _message_value(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            found[field.name] = {str(key): _single_value(inner, item) for key, item in value.items()}
        elif field.is_repeated:
            found[field.name] = [_single_value(field, item) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _single_value(field, value)
    return found


def _single_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _message_value(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


# --- CSV ---


def csv_format(kind: pa.DataType, delimiter: str = ",") -> BodyFormat:
    """Bodies that are one line of CSV, with the fields of this struct in their order; empty is null."""
    makers = [(field.name, _from_text(field.type)) for field in kind]

    def read(body: bytes) -> Any:
        rows = list(csv.reader(io.StringIO(body.decode(), newline=""), delimiter=delimiter, strict=True))
        if len(rows) != 1 or len(rows[0]) != len(makers):
            raise ValueError(f"expected one line of {len(makers)} fields")
        return {
            name: make(text) if text else None for (name, make), text in zip(makers, rows[0], strict=True)
        }

    return BodyFormat(kind, _guarded(read))


def _from_text(kind: pa.DataType) -> Callable[[str], Any]:
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_boolean(kind):
        return lambda text: msgspec.convert(text, bool, strict=False)
    if pa.types.is_binary(kind):
        return str.encode
    return str


def _guarded(read: Read) -> Read:
    """Errors of a library about one body as ValueError, which rejects that body."""

    def guarded(body: bytes) -> Any:
        try:
            return read(body)
        except Exception as error:  # noqa: BLE001 - libraries raise errors of many kinds for broken bytes
            raise ValueError(str(error)) from None

    return guarded
