"""Options of source and sinks: parsed from Spark's text, checked in the driver, listed in the documentation.

Spark passes options as text with lower-cased names. An option class is a frozen dataclass whose fields are
made by `option`; `load` parses it, `option_table` prints it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from skylark.arrow.body_formats import FORMATS
from skylark.errors import SettingsError
from skylark.quantities import parse_bytes, parse_duration_ms, parse_rate
from skylark.settings.credentials import Credentials, client_credentials
from skylark.settings.fields import check_address
from skylark.settings.object_store import check_uri, is_uri
from skylark.settings.tls import ClientTlsSettings, client_tls_settings

if TYPE_CHECKING:
    from skylark.pipelines.body_schema import BodySchema

T = TypeVar("T")

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class OptionKind:
    """How an option's text is parsed; `name` is for the documentation."""

    name: str
    parse: Callable[[str], Any]


def _parse_flag(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(f"invalid boolean {text!r}; use true or false")
    return text.lower() in _TRUE


def _parse_count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"invalid count {text!r}; use a whole number above 0")
    return int(text)


def _parse_addresses(text: str) -> str:
    """Check `host:port`, several separated by `;` or `,`; returns the text unchanged."""
    addresses = [item.strip() for item in text.replace(",", ";").split(";") if item.strip()]
    if not addresses:
        raise ValueError("no name server given; use host:port")
    for address in addresses:
        check_address(address, "namesrv")
    return text


def absolute_path(where: str | Path) -> Path:
    """A directory as messages and commits name it: absolute, without `..`; links are kept if possible."""
    path = Path(where).expanduser().absolute()
    return path.resolve() if ".." in path.parts else path


def _parse_table(text: str) -> str:
    """Check `delta:DIR` or `parquet:DIR`; returns the text, a relative directory made absolute."""
    kind, _, where = text.partition(":")
    if kind not in ("delta", "parquet", "iceberg") or not where:
        raise ValueError(f"invalid table {text!r}; use delta:DIR or parquet:DIR, DIR may be s3://BUCKET/PATH")
    if kind == "iceberg":
        return text
    if not is_uri(where):
        return f"{kind}:{absolute_path(where)}"
    try:
        return f"{kind}:{check_uri('table', where)}"
    except SettingsError as error:
        raise ValueError(error.reason) from None


TEXT = OptionKind("text", str)
TABLE = OptionKind("table", _parse_table)
ADDRESSES = OptionKind("text", _parse_addresses)
FLAG = OptionKind("boolean", _parse_flag)
COUNT = OptionKind("count", _parse_count)
BYTES = OptionKind("size", parse_bytes)
DURATION = OptionKind("duration", parse_duration_ms)
RATE = OptionKind("rate", parse_rate)


def choice(*words: str) -> OptionKind:

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"invalid value {text!r}; choose {' or '.join(words)}")
        return text.lower()

    return OptionKind(" or ".join(f"`{word}`" for word in words), parse)


def option(kind: OptionKind, default: str | None, scope: str, meaning: str, *, secret: bool = False) -> Any:
    """A field of an option class. `default` is the text a user would write, or None."""
    metadata = {"kind": kind, "default": default, "scope": scope, "meaning": meaning}
    value = None if default is None else kind.parse(default)
    return dataclasses.field(default=value, repr=not secret, metadata=metadata)


def access_key() -> Any:
    return option(TEXT, None, "both", "User that signs the requests. Default: the environment of the driver.")


def secret_key() -> Any:
    meaning = "Secret of `accessKey`, or `@FILE`. Better use `credentialsFile` or the environment."
    return option(TEXT, None, "both", meaning, secret=True)


def credentials_file() -> Any:
    meaning = "File of the driver with `accessKey` and `secretKey`, mode 0600, instead of the two options."
    return option(TEXT, None, "both", meaning)


def tls() -> Any:
    meaning = "Use TLS. Default: `SKYLARK_TLS_ENABLED` and the other variables of the driver."
    return option(FLAG, None, "both", meaning)


def tls_trusted() -> Any:
    return option(TEXT, None, "both", "CAs that are trusted, a PEM file on the driver and every worker.")


def tls_server_name() -> Any:
    return option(TEXT, None, "both", "Name that certificates must have instead of the address.")


def tls_certificate() -> Any:
    return option(TEXT, None, "both", "Own certificate, a PEM file on the driver and every worker.")


def tls_key() -> Any:
    meaning = "Its key, a PEM file likewise; a password is `SKYLARK_TLS_KEY_PASSWORD` of the driver."
    return option(TEXT, None, "both", meaning)


def _options_of(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    return [item for item in dataclasses.fields(cls) if item.init]


def spelled(name: str) -> str:
    """The option's name as users write it: `maxRowsPerTrigger` for `max_rows_per_trigger`."""
    words = name.removesuffix("_ms").split("_")
    return words[0] + "".join(word.capitalize() for word in words[1:])


def load(cls: type[T], given: Mapping[str, str]) -> T:
    """Parse an option class. Raises SettingsError for unknown names and invalid values."""
    fields = {spelled(item.name).lower(): item for item in _options_of(cls)}
    values: dict[str, Any] = {}
    for name, text in given.items():
        item = fields.get(name.lower())
        if item is None:
            raise SettingsError(name, _unknown(name, [spelled(known.name) for known in fields.values()]))
        try:
            values[item.name] = item.metadata["kind"].parse(text)
        except ValueError as error:
            raise SettingsError(spelled(item.name), str(error)) from None
    return cls(**values)


def _unknown(name: str, known: list[str]) -> str:
    lowered = {item.lower(): item for item in known}
    close = difflib.get_close_matches(name.lower(), lowered, 1)
    return f"unknown option{f'; did you mean {lowered[close[0]]}?' if close else ''}"


def option_table(cls: type[Any]) -> str:
    """The options as a Markdown table: name, type, default, scope, meaning."""
    lines = ["| Option | Type | Default | For | Meaning |", "|---|---|---|---|---|"]
    for item in _options_of(cls):
        facts = item.metadata
        default = "" if facts["default"] is None else f"`{facts['default']}`"
        meaning = facts["meaning"].replace("|", "\\|")  # a bar ends a cell, also in code
        lines.append(
            f"| `{spelled(item.name)}` | {facts['kind'].name} | {default} | {facts['scope']} | {meaning} |"
        )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of the source."""

    namesrv: str | None = option(
        ADDRESSES, None, "both", "Name servers, `host:port`, several separated by `;`. This or `path`."
    )
    path: str | None = option(
        TEXT, None, "both", "Store directory to read without a broker, mounted on every worker."
    )
    broker_name: str = option(TEXT, "store", "both", "With `path`: the value of the column `brokerName`.")
    topic: str | None = option(
        TEXT, None, "both", "Topics, separated by commas; each a name or a regular expression. Required."
    )
    history: str | None = option(
        TABLE,
        None,
        "both",
        "Table of `skylark spark archive`, such as `delta:s3://lake/raw`: what it holds is read from it, "
        "what is newer from the log.",
    )
    assign: str | None = option(
        TEXT,
        None,
        "both",
        'Only these queues: `{"orders": {"broker-a": [0, 1]}}`; `[]` means all of a broker.',
    )
    group_id: str | None = option(
        TEXT, None, "both", "Consumer group to start from and to commit progress to."
    )
    commit_offsets: bool = option(
        FLAG,
        "true",
        "stream",
        "With `groupId`: commit each batch's end offsets to the group, so that lag is visible.",
    )
    starting_offsets: str | None = option(
        TEXT,
        None,
        "both",
        "`earliest` (a batch's default), `latest` (a stream's), `group`, `group:earliest`, `group:latest`, "
        "a time (`2026-11-01T08:00`, local unless a zone is given; `-10m`; milliseconds), `-1000 rows`, or "
        "JSON topic → broker → queue → "
        "offset (-2 earliest, -1 latest).",
    )
    ending_offsets: str | None = option(
        TEXT,
        "latest",
        "batch",
        "Exclusive end, in the same forms except `earliest` and groups. Queues missing from JSON are read "
        "completely.",
    )
    fail_on_data_loss: bool = option(
        FLAG,
        "true",
        "both",
        "Fail if offsets have expired or a record is corrupt; if false, skip them and log the count.",
    )
    max_rows_per_trigger: int | None = option(COUNT, None, "stream", "Maximum rows per batch.")
    max_bytes_per_trigger: int = option(
        BYTES,
        "256MB",
        "stream",
        "Maximum record bytes per batch: exact for store files, estimated from samples for brokers.",
    )
    min_rows_per_trigger: int | None = option(
        COUNT, None, "stream", "Wait for this many rows, at most `maxTriggerDelay`."
    )
    max_trigger_delay_ms: int = option(DURATION, "15m", "stream", "See `minRowsPerTrigger`.")
    min_partitions: int | None = option(
        COUNT, None, "both", "Split large queues into at least this many tasks."
    )
    max_records_per_partition: int | None = option(COUNT, None, "both", "Maximum records per task.")
    max_tasks: int = option(
        COUNT,
        "16",
        "both",
        "Pack small queues into at most this many tasks, unless the two options above require more.",
    )
    tasks_at_once: int | None = option(
        COUNT,
        None,
        "both",
        "How many tasks Spark runs in parallel; larger batches use a multiple of it.",
    )
    tags: str | None = option(TEXT, None, "both", "Only messages with these tags: `Create || Pay`.")
    sql92: str | None = option(
        TEXT,
        None,
        "both",
        "Only messages whose properties match; must be enabled on the broker. Not with `path`.",
    )
    pushdown: bool = option(
        FLAG,
        "false",
        "batch",
        "Push the query's filters down; needs `spark.sql.python.filterPushdown.enabled=true`.",
    )
    body_text: bool = option(FLAG, "false", "both", "Add the column `bodyText`: the body as UTF-8 text.")
    decode: str | None = option(
        choice(*FORMATS),
        None,
        "both",
        "Decode bodies to the column `value`; invalid bodies go to the column `rejects`.",
    )
    decode_schema: str | None = option(
        TEXT,
        "auto",
        "both",
        "DDL of the body's fields for `json` and `csv`, `auto` infers those of `json` from a sample; for "
        "`avro` a file `….avsc` or the schema, for `confluent` the subject, for `protobuf` `FILE#MESSAGE`.",
    )
    schema_registry: str | None = option(
        TEXT, None, "both", "With `decode=confluent`: address of a registry with Confluent's API."
    )
    sample_rows: int = option(COUNT, "1000", "both", "Number of bodies that `auto` samples.")
    mode: str = option(
        choice("rows", "ranges"),
        "rows",
        "both",
        "`ranges`: one row per planned range of a queue, no messages.",
    )
    check_crc: bool = option(FLAG, "false", "both", "Check each body's CRC.")
    batch_bytes: int = option(BYTES, "6MB", "both", "Record bytes per Arrow batch.")
    bulk_pulls: bool = option(
        FLAG,
        "true",
        "both",
        "Pull up to 1 MiB or 2,048 messages per request from a Skylark broker; others ignore it.",
    )
    poll_interval_ms: int = option(DURATION, "200ms", "stream", "Poll interval of an idle query.")
    route_refresh_ms: int = option(
        DURATION, "5s", "stream", "How often topics, brokers and queues are looked up."
    )
    request_timeout_ms: int = option(DURATION, "10s", "both", "Timeout of one request.")
    retry_timeout_ms: int = option(
        DURATION, "2m", "both", "How long to retry if a broker or name server does not answer."
    )

    access_key: str | None = access_key()
    secret_key: str | None = secret_key()
    credentials_file: str | None = credentials_file()
    security_token: ClassVar[str | None] = None
    tls: bool | None = tls()
    tls_trusted: str | None = tls_trusted()
    tls_server_name: str | None = tls_server_name()
    tls_certificate: str | None = tls_certificate()
    tls_key: str | None = tls_key()
    # Not options: what the driver finds, for the tasks.
    body_schema: BodySchema | None = dataclasses.field(default=None, init=False, repr=False)
    credentials: Credentials | None = dataclasses.field(default=None, init=False, repr=False)
    tls_settings: ClientTlsSettings | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "credentials", client_credentials(self))
        object.__setattr__(self, "tls_settings", client_tls_settings(self))
        if self.decode is not None:
            from skylark.pipelines.body_schema import find_schema  # noqa: PLC0415  slow to import

            found = find_schema(self.decode, self.decode_schema, self.schema_registry)
            object.__setattr__(self, "body_schema", found)
        if (self.namesrv is None) == (self.path is None):
            raise SettingsError("namesrv", "set either namesrv (host:port) or path (a store directory)")
        if not self.topic:
            raise SettingsError(
                "topic", "no topic given; use a name, several separated by commas, or a pattern"
            )
        if self.history is not None and (self.sql92 is not None or self.mode != "rows"):
            raise SettingsError("history", "not supported with sql92 and mode=ranges; filter the DataFrame")
        if self.path is not None and self.sql92 is not None:
            raise SettingsError("sql92", "not supported with path; use tags, or filter the DataFrame")
        if self.tags is not None and self.sql92 is not None:
            raise SettingsError("sql92", "set either tags or sql92, not both")
        if self.starting_offsets is not None and self.starting_offsets.startswith("group"):
            if not self.group_id:
                raise SettingsError(
                    "startingOffsets",
                    "starting at a group's offsets needs groupId (in a pipeline file: group)",
                )
            if self.path is not None:
                raise SettingsError("startingOffsets", "store files hold no group offsets; use namesrv")
