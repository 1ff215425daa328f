"""The schema of Avro and Protobuf bodies: found by the driver, used by tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import msgspec

from skylark.arrow.body_formats import BodyFormat, avro_format, protobuf_format
from skylark.errors import SettingsError

TIMEOUT_S = 10.0
NOT_FOUND = 404


@dataclass(frozen=True)
class BodySchema:
    """All that a task needs to decode bodies."""

    kind: str
    text: str = ""
    descriptors: bytes = b""
    message: str = ""
    registry: str = ""

    def format(self) -> BodyFormat:
        """Raises SettingsError."""
        if self.kind == "protobuf":
            return protobuf_format(self.descriptors, self.message)
        if self.kind == "avro":
            return avro_format(self.text)
        return avro_format(self.text, lambda number: _schema_by_number(self.registry, number))


def find_schema(kind: str, given: str | None, registry: str | None) -> BodySchema | None:
    """Read the file or ask the registry; None for formats without such a schema. Raises SettingsError."""
    if registry is not None and kind != "confluent":
        raise SettingsError("schemaRegistry", "used with decode=confluent only")
    if kind in ("text", "json"):
        return None
    if given in (None, "", "auto"):
        needed = {
            "csv": "the fields as DDL",
            "avro": "a file ….avsc or the schema itself",
            "protobuf": "FILE#MESSAGE, a descriptor file and the full name of a message",
            "confluent": "the subject, such as orders-value",
        }
        raise SettingsError("decodeSchema", f"missing for decode={kind}; set {needed[kind]}")
    assert given is not None
    if kind == "csv":
        return None
    if kind == "avro":
        return BodySchema(kind, text=given if given.lstrip().startswith("{") else _file(given).decode())
    if kind == "protobuf":
        path, separator, message = given.rpartition("#")
        if not separator or not message:
            raise SettingsError("decodeSchema", f"invalid value {given!r}; use FILE#MESSAGE")
        return BodySchema(kind, descriptors=_file(path), message=message)
    if not registry:
        raise SettingsError("schemaRegistry", "missing for decode=confluent; set the address of the registry")
    return BodySchema(kind, text=_latest(registry, given), registry=registry)


def _file(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError("decodeSchema", f"cannot read {path}: {error.strerror}") from None


def _latest(registry: str, subject: str) -> str:
    found = _ask(registry, f"/subjects/{quote(subject, safe='')}/versions/latest")
    if found is None:
        raise SettingsError("decodeSchema", f"the registry {registry} has no subject {subject!r}")
    return found


@cache
def _schema_by_number(registry: str, number: int) -> str:
    """Raises ValueError for an unknown number, SettingsError if the registry does not answer."""
    found = _ask(registry, f"/schemas/ids/{number}")
    if found is None:
        raise ValueError(f"unknown schema {number}")
    return found


def _ask(registry: str, path: str) -> str | None:
    """The member `schema` of an answer; None if there is no such thing."""
    address = registry.rstrip("/") + path
    if not address.startswith(("http://", "https://")):
        raise SettingsError("schemaRegistry", f"invalid address {registry!r}; use http://HOST:PORT")
    request = Request(address, headers={"Accept": "application/vnd.schemaregistry.v1+json"})  # noqa: S310
    try:
        with urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
            return str(msgspec.json.decode(reply.read())["schema"])
    except HTTPError as error:
        with error:
            if error.code == NOT_FOUND:
                return None
            raise SettingsError("schemaRegistry", f"{registry} answers {error.code} {error.reason}") from None
    except (URLError, OSError) as error:
        raise SettingsError("schemaRegistry", f"cannot reach {registry}: {error}") from None
