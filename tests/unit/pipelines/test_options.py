"""Options are read from text, refused with a sentence, and the documentation lists them as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.errors import SettingsError
from skylark.pipelines.options import (
    SourceOptions,
    load,
    option_table,
    parse_bytes,
    parse_duration_ms,
    parse_time_ms,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "spark" / "source-options.md"
GOOD = {"namesrv": "127.0.0.1:9876", "topic": "orders"}


def test_names_are_read_as_spark_spells_them() -> None:
    options = load(
        SourceOptions, {**GOOD, "maxrowspertrigger": "10", "POLLINTERVAL": "2s", "pushdown": "True"}
    )
    assert (options.max_rows_per_trigger, options.poll_interval_ms, options.pushdown) == (10, 2000, True)
    assert options.max_bytes_per_trigger == 256 << 20


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"topic": "t"}, "set either namesrv"),
        ({**GOOD, "path": "/data"}, "set either namesrv"),
        ({**GOOD, "namesrv": "localhost"}, "invalid address 'localhost'; use host:port"),
        ({**GOOD, "namesrv": "a:1;b"}, "invalid address 'b'; use host:port"),
        ({**GOOD, "namesrv": ";"}, "no name server given; use host:port"),
        ({"namesrv": "a:1"}, "no topic given"),
        ({**GOOD, "maxRowPerTrigger": "1"}, "did you mean maxRowsPerTrigger?"),
        ({**GOOD, "maxRowsPerTrigger": "0"}, "invalid count '0'; use a whole number above 0"),
        ({**GOOD, "pollInterval": "5"}, "invalid duration '5'"),
        ({**GOOD, "maxBytesPerTrigger": "many"}, "invalid size 'many'"),
        ({**GOOD, "failOnDataLoss": "perhaps"}, "use true or false"),
        ({**GOOD, "decode": "avro"}, "choose text or json"),
        ({**GOOD, "startingOffsets": "group"}, "needs groupId"),
        ({**GOOD, "tags": "a", "sql92": "b = 1"}, "either tags or sql92"),
        ({"path": "/data", "topic": "t", "sql92": "b = 1"}, "not supported with path"),
        ({"path": "/d", "topic": "t", "groupId": "g", "startingOffsets": "group"}, "hold no group offsets"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(SettingsError) as failure:
        load(SourceOptions, given)
    assert complaint in str(failure.value)


@pytest.mark.parametrize(
    ("text", "size"), [("64MB", 64 << 20), ("1g", 1 << 30), ("10 KiB", 10_240), ("7", 7), ("1.5k", 1536)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "duration_ms"), [("200ms", 200), ("10s", 10_000), ("5 minutes", 300_000), ("7d", 604_800_000)]
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1234567890123", 1234567890123),
        ("-10m", 10_000_000 - 600_000),
    ],
)
def test_times(text: str, moment_ms: int) -> None:
    assert parse_time_ms(text, now_ms=10_000_000) == moment_ms


def test_the_documentation_lists_every_option() -> None:
    assert option_table(SourceOptions) in DOCUMENT.read_text(), "renew the table with option_table"
