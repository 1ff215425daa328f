"""Which topics go to which table, and what is wrong with a rule file, by its line."""

from pathlib import Path

import pytest

from skylark.errors import BadSettingsFile
from skylark.pipelines.jobs.endpoints import parse_output
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable, load_rules

GOOD = """\
namesrv: 127.0.0.1:9876
group: archive
skip: [audit_.*]
tables:
  - topics: orders, pay_.*
    to: delta:s3://lake/raw
    delay: 10s
    batch: 64MB
    partition: dt
  - topics: [".*", "%DLQ%.*"]
    to: parquet:{directory}/rest
"""


def rules(tmp_path: Path, text: str) -> LakeRules:
    path = tmp_path / "lake.yml"
    path.write_text(text)
    return load_rules(path)


def test_the_first_table_that_chooses_a_topic_has_it(tmp_path: Path) -> None:
    made = rules(tmp_path, GOOD.format(directory=tmp_path))
    first, second = made.tables
    assert (made.namesrv, made.group, first.delay_s, first.batch_bytes) == (
        "127.0.0.1:9876",
        "archive",
        10.0,
        64 << 20,
    )
    assert first.output.options["partitionBy"] == "dt"
    known = ["orders", "pay_cards", "users", "audit_1", "%RETRY%a", "%DLQ%a", "SCHEDULE_TOPIC_XXXX"]
    known.append("skylark_pipelines")  # reports of jobs, also of the lake
    assert made.topics_of(first, known) == ["orders", "pay_cards"]
    assert made.topics_of(second, known) == ["%DLQ%a", "users"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "needs at least tables"),
        ("tables:\n  - topics: a\n    to: delta:x\n", "missing namesrv"),
        ("namesrv: a:1\ntables: []\n", ":2: tables must be a list"),
        ("namesrv: a:1\ntables:\n  - topics: x\n", ":3: a table needs to"),
        ("namesrv: a:1\ntables:\n  - to: delta:x\n    name: none\n", ":3: name: 'none' means no table"),
        ("namesrv: a:1\ntables:\n  - topics: a\n    to: topic:x\n", ":3: to: invalid table topic:x"),
        ("namesrv: a:1\ntables:\n  - topics: 'a('\n    to: delta:x\n", ":3: topic: invalid regular"),
        ("namesrv: a:1\ntables:\n  - topics: '(a+)+'\n    to: delta:x\n", ":2: lake.rules: the patterns can"),
        ("namesrv: a:1\ntables:\n  - topics: a\n    to: delta:x\n    delay: soon\n", "invalid duration"),
        ("namesrv: a:1\ntables:\n  - topics: a\n    to: delta:x\n    dalay: 1s\n", "did you mean delay"),
        (
            "namesrv: a:1\ntables:\n  - topics: a\n    to: delta:x\n  - topics: b\n    to: delta:x\n",
            "is named twice",
        ),
    ],
)
def test_mistakes_are_named_by_their_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(BadSettingsFile, match=reason):
        rules(tmp_path, text)


def test_the_attribute_of_a_topic_is_stronger_than_the_patterns(tmp_path: Path) -> None:
    tables = "  - {name: audit, to: 'delta:s3://lake/checks'}\n  - {topics: .*, to: 'delta:s3://lake/raw'}\n"
    made = rules(tmp_path, f"namesrv: a:1\nskip: [secret]\ntables:\n{tables}")
    audit, raw = made.tables
    attributes = {
        "pay": "audit",
        "users": "raw",
        "noise": "none",
        "far": "of-another-lake",
        "secret": "audit",
    }
    known = ["orders", *attributes]
    assert made.topics_of(audit, known, attributes) == ["pay"]
    assert made.topics_of(raw, known, attributes) == ["orders", "users"]


@pytest.mark.parametrize(
    ("to", "name"),
    [("delta:lake/raw/", "raw"), ("delta:s3://b/orders", "orders"), ("iceberg:p/raw.pay", "pay")],
)
def test_a_table_is_named_by_the_end_of_its_address(to: str, name: str) -> None:
    assert LakeTable(output=parse_output(to)).name == name
