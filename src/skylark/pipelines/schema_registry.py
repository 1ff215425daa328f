"""Schemas of topics, kept in a topic, with Confluent's registry API.

The topic has one queue, and its order decides: a schema's number is its place among the different schemas of
the topic, so any number of registries that read the topic agree. Messages expire, so a running registry now
and then writes all schemas as one message. `SchemaTable` is pure; `SchemaRegistry` reads and writes the
topic; `answer` is the API for any HTTP server.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec

from skylark.arrow.body_formats import avro_format
from skylark.errors import SettingsError

TOPIC = "SKYLARK_SCHEMAS"
SCHEMA_CHARS_MAX = 1 << 20
IMAGE_EVERY_S = 6 * 3600.0
"""How often a running registry writes all schemas; far less than brokers keep messages."""
SUBJECT = re.compile(r"[\w.\-%|]{1,255}")
TYPES = ("AVRO", "JSON", "PROTOBUF")
OK, NOT_FOUND, CONFLICT, UNPROCESSABLE, NOT_ALLOWED = 200, 404, 409, 422, 405
NO_SUBJECT, NO_VERSION, NO_SCHEMA = 40401, 40402, 40403
INVALID_SCHEMA, INVALID_VERSION = 42201, 42202


class SchemaRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of the topic: a schema of a subject, or its end."""

    subject: str
    schema: str = ""
    kind: str = "AVRO"
    is_deleted: bool = False
    all: SchemaImage | None = None
    """If set, the record holds all schemas as of its place, and nothing else."""


class SchemaImage(msgspec.Struct, frozen=True):
    """All schemas."""

    schemas: list[tuple[str, str]]
    """Kind and text; the place is the number."""
    subjects: dict[str, list[tuple[int, int]]]
    """Versions and numbers."""
    versions: dict[str, int]


class SchemaVersion(NamedTuple):
    """A schema of a subject."""

    version: int
    number: int
    kind: str
    schema: str


class SchemaTable:
    """What the records of the topic say, in their order. Pure."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._schemas: list[tuple[str, str]] = []
        self._subjects: dict[str, list[SchemaVersion]] = {}
        self._versions: dict[str, int] = {}

    def image(self) -> SchemaImage:
        subjects = {
            name: [(each.version, each.number) for each in versions]
            for name, versions in self._subjects.items()
        }
        return SchemaImage(list(self._schemas), subjects, dict(self._versions))

    def restore(self, image: SchemaImage) -> None:
        self._schemas = list(image.schemas)
        self._numbers = {key: number for number, key in enumerate(self._schemas, 1)}
        self._versions = dict(image.versions)
        self._subjects = {
            name: [SchemaVersion(version, number, *self._schemas[number - 1]) for version, number in versions]
            for name, versions in image.subjects.items()
        }

    def apply(self, record: SchemaRecord) -> None:
        if record.all is not None:
            self.restore(record.all)
            return
        if record.is_deleted:
            self._subjects.pop(record.subject, None)
            return
        key = (record.kind, record.schema)
        if key not in self._numbers:
            self._schemas.append(key)
            self._numbers[key] = len(self._schemas)
        versions = self._subjects.setdefault(record.subject, [])
        if all(each.number != self._numbers[key] for each in versions):
            # Versions of a deleted subject are not given again.
            version = self._versions[record.subject] = self._versions.get(record.subject, 0) + 1
            versions.append(SchemaVersion(version, self._numbers[key], *key))

    def subjects(self) -> list[str]:
        return sorted(self._subjects)

    def versions(self, subject: str) -> Sequence[SchemaVersion]:
        return self._subjects.get(subject, ())

    def find(self, subject: str, kind: str, schema: str) -> SchemaVersion | None:
        return next(
            (each for each in self.versions(subject) if (each.kind, each.schema) == (kind, schema)), None
        )

    def schema(self, number: int) -> tuple[str, str] | None:
        """Kind and text of a schema."""
        return self._schemas[number - 1] if 1 <= number <= len(self._schemas) else None


class RecordLog(Protocol):
    """The topic: one queue."""

    def append(self, record: bytes) -> int:
        """Return the offset. Raises RocketMQError."""

    def first(self) -> int:
        """The first offset that has not expired. Raises RocketMQError."""

    def read(self, from_offset: int) -> list[bytes]:
        """All records from an offset on. Raises RocketMQError."""


class SchemaRegistry:
    """A table that follows its topic. Any thread."""

    def __init__(self, log: RecordLog, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._monotonic = monotonic
        self._table = SchemaTable()
        self._next: int | None = None
        self._is_whole = False
        self._image_due: float | None = None
        self._lock = threading.Lock()

    def table(self) -> SchemaTable:
        """As of now. Raises RocketMQError."""
        with self._lock:
            self._follow()
            now = self._monotonic()
            if self._image_due is None:
                self._image_due = now + IMAGE_EVERY_S
            elif now >= self._image_due and self._table.subjects():
                self._image_due = now + IMAGE_EVERY_S
                self._log.append(msgspec.json.encode(SchemaRecord("", all=self._table.image())))
                self._follow()
            return self._table

    def _follow(self) -> None:
        if self._next is None:
            self._next = self._log.first()
            self._is_whole = self._next == 0
        for data in self._log.read(self._next):
            self._next += 1
            try:
                record = msgspec.json.decode(data, type=SchemaRecord)
            except msgspec.DecodeError:
                continue  # not a schema: another program's message
            # What is retained before the first image is in the image, too.
            self._is_whole = self._is_whole or record.all is not None
            if self._is_whole:
                self._table.apply(record)

    def register(self, subject: str, kind: str, schema: str) -> SchemaVersion:
        """Add a schema to a subject, unless it has it. Raises RocketMQError, SettingsError."""
        text = normal_schema(kind, schema)
        found = self.table().find(subject, kind, text)
        if found is None:
            self._log.append(msgspec.json.encode(SchemaRecord(subject, text, kind)))
            found = self.table().find(subject, kind, text)
            assert found is not None
        return found

    def delete(self, subject: str) -> list[int]:
        """End a subject; return its versions. Raises RocketMQError."""
        versions = [each.version for each in self.table().versions(subject)]
        if versions:
            self._log.append(msgspec.json.encode(SchemaRecord(subject, is_deleted=True)))
        return versions


def normal_schema(kind: str, schema: str) -> str:
    """A schema without needless blanks, checked. Raises SettingsError."""
    if kind not in TYPES:
        raise SettingsError("schemaType", f"unknown type {kind!r}; use {', '.join(TYPES)}")
    if len(schema) > SCHEMA_CHARS_MAX:
        raise SettingsError("schema", f"longer than {SCHEMA_CHARS_MAX} characters")
    if kind == "PROTOBUF":
        return schema.strip()
    try:
        text = msgspec.json.encode(msgspec.json.decode(schema)).decode()
    except msgspec.DecodeError as error:
        raise SettingsError("schema", f"invalid JSON: {error}") from None
    if kind == "AVRO":
        avro_format(text)
    return text


# --- API ---


class Answer(NamedTuple):
    """Status and JSON value."""

    status: int
    value: Any


class _Refusal(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = Answer(code // 100 if code > 999 else code, {"error_code": code, "message": message})


Handler = Callable[..., Any]


def answer(registry: SchemaRegistry, method: str, path: str, body: bytes = b"") -> Answer:
    """Answer a request as Confluent's Schema Registry does. Raises RocketMQError if the topic is away."""
    path = path.partition("?")[0].rstrip("/") or "/"
    known = False
    for pattern, methods in _ROUTES:
        if (match := re.fullmatch(pattern, path)) is None:
            continue
        known = True
        if (handler := methods.get(method)) is not None:
            try:
                return Answer(OK, handler(registry, body, *(unquote(part) for part in match.groups())))
            except _Refusal as refusal:
                return refusal.answer
    code = NOT_ALLOWED if known else NOT_FOUND
    return Answer(code, {"error_code": code, "message": f"HTTP {code}: {method} {path}"})


class _SchemaRequest(msgspec.Struct):
    schema: str
    schema_type: str = msgspec.field(default="AVRO", name="schemaType")


def _request(body: bytes) -> _SchemaRequest:
    try:
        return msgspec.json.decode(body, type=_SchemaRequest)
    except msgspec.DecodeError as error:
        raise _Refusal(INVALID_SCHEMA, f"invalid request: {error}") from None


def _register(registry: SchemaRegistry, body: bytes, subject: str) -> Any:
    given = _request(body)
    if not SUBJECT.fullmatch(subject):
        raise _Refusal(INVALID_SCHEMA, f"invalid subject {subject!r}")
    try:
        return {"id": registry.register(subject, given.schema_type, given.schema).number}
    except SettingsError as error:
        raise _Refusal(INVALID_SCHEMA, f"invalid schema: {error.reason}") from None


def _look_up(registry: SchemaRegistry, body: bytes, subject: str) -> Any:
    given = _request(body)
    if not registry.table().versions(subject):
        raise _Refusal(NO_SUBJECT, f"Subject '{subject}' not found.")
    try:
        text = normal_schema(given.schema_type, given.schema)
    except SettingsError as error:
        raise _Refusal(INVALID_SCHEMA, f"invalid schema: {error.reason}") from None
    if (found := registry.table().find(subject, given.schema_type, text)) is None:
        raise _Refusal(NO_SCHEMA, "Schema not found")
    return _shown(subject, found)


def _shown(subject: str, found: SchemaVersion) -> dict[str, Any]:
    kind = {} if found.kind == "AVRO" else {"schemaType": found.kind}
    return {"subject": subject, "version": found.version, "id": found.number, **kind, "schema": found.schema}


def _versions(registry: SchemaRegistry, body: bytes, subject: str) -> Any:
    if not (versions := registry.table().versions(subject)):
        raise _Refusal(NO_SUBJECT, f"Subject '{subject}' not found.")
    return [each.version for each in versions]


def _version(registry: SchemaRegistry, body: bytes, subject: str, version: str) -> Any:
    if not (versions := registry.table().versions(subject)):
        raise _Refusal(NO_SUBJECT, f"Subject '{subject}' not found.")
    if version == "latest":
        return _shown(subject, versions[-1])
    if not version.isdecimal() or int(version) == 0:
        raise _Refusal(INVALID_VERSION, f"The specified version '{version}' is not a valid version id.")
    found = next((each for each in versions if each.version == int(version)), None)
    if found is None:
        raise _Refusal(NO_VERSION, f"Version {version} not found.")
    return _shown(subject, found)


def _by_number(registry: SchemaRegistry, body: bytes, number: str) -> Any:
    found = registry.table().schema(int(number))
    if found is None:
        raise _Refusal(NO_SCHEMA, f"Schema {number} not found")
    return {"schema": found[1], **({} if found[0] == "AVRO" else {"schemaType": found[0]})}


def _delete(registry: SchemaRegistry, body: bytes, subject: str) -> Any:
    if not (versions := registry.delete(subject)):
        raise _Refusal(NO_SUBJECT, f"Subject '{subject}' not found.")
    return versions


_ROUTES: list[tuple[str, dict[str, Handler]]] = [
    (r"/", {"GET": lambda registry, body: {}}),
    (r"/subjects", {"GET": lambda registry, body: registry.table().subjects()}),
    (r"/subjects/([^/]+)", {"POST": _look_up, "DELETE": _delete}),
    (r"/subjects/([^/]+)/versions", {"GET": _versions, "POST": _register}),
    (r"/subjects/([^/]+)/versions/([^/]+)", {"GET": _version}),
    (r"/schemas/ids/(\d+)", {"GET": _by_number}),
    (r"/schemas/types", {"GET": lambda registry, body: list(TYPES)}),
    # No schema is refused because of those before it.
    (r"/config", {"GET": lambda registry, body: {"compatibilityLevel": "NONE"}}),
]
