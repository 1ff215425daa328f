"""Options are read from text, refused with a sentence, and the documentation lists them as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.errors import SettingsError
from skylark.pipelines.options import (
    SourceOptions,
    load,
    option_table,
)
from skylark.pipelines.source import RocketMQSource

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
        ({**GOOD, "decode": "xml"}, "choose text or json"),
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
    ("option", "complaint"),
    [("secretKey", "use credentialsFile or the environment"), ("decodeSchema", "use a temporary view")],
)
def test_options_that_a_table_of_a_catalog_cannot_keep_are_refused(option: str, complaint: str) -> None:
    given = {**GOOD, "decode": "json", option: "id INT"}
    properties = {"provider": "rocketmq", **{f"option.{name}": value for name, value in given.items()}}
    with pytest.raises(SettingsError, match=complaint):
        RocketMQSource(properties).schema()


def test_the_documentation_lists_every_option() -> None:
    assert option_table(SourceOptions) in DOCUMENT.read_text(), "renew the table with option_table"
