"""RocketMQ's metrics: each is exported as RocketMQ does, or the reference says why it is not."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from skylark.broker.monitoring.metric_specs import (
    COMMON_LABELS,
    METRICS,
    NOT_APPLICABLE,
    UNITS_AT_APACHE,
    markdown,
)
from tests.unit.broker.handlers.rig import Rig, rigged

GOLDEN = Path(__file__).parents[3] / "golden" / "metrics"
ROCKETMQ: dict[str, dict[str, Any]] = {
    each["name"]: each for each in json.loads((GOLDEN / "rocketmq-5.3.3.json").read_text())
}
SAMPLE = re.compile(r"^(\w+)\{(.*)\} ", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
OF_OPEN_TELEMETRY = {"otel_scope_name"}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with rigged() as made:
        yield made


def is_not_applicable(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in NOT_APPLICABLE)


@pytest.mark.parametrize("name", ROCKETMQ)
def test_every_metric_of_rocketmq_is_as_there_or_has_a_reason_not_to_be(name: str) -> None:
    if name not in METRICS:
        assert is_not_applicable(name), f"{name} is neither exported nor said not to be"
        return
    ours, theirs = METRICS[name], ROCKETMQ[name]
    assert not is_not_applicable(name)
    assert ours.kind == theirs["kind"]
    assert set(ours.labels) == set(theirs["labels"])
    assert list(ours.bounds) == theirs.get("bounds", [])


def apaches_page() -> dict[str, tuple[str, set[str], set[str]]]:
    """Of each metric that Apache's broker showed: the kind, the labels, and the names of its series."""
    text = gzip.decompress((GOLDEN / "broker-5.3.3.prom.gz").read_bytes()).decode()
    kinds = dict(re.findall(r"^# TYPE (rocketmq_\w+) (\w+)$", text, re.MULTILINE))
    found = {name: (kind, set[str](), set[str]()) for name, kind in kinds.items()}
    for series, labels in SAMPLE.findall(text):
        name = max((name for name in kinds if series.startswith(name)), key=len, default="")
        if name:
            found[name][1].update(label for label, _ in LABEL.findall(labels))
            found[name][2].add(series)
    return found


def test_the_list_is_what_apaches_broker_shows() -> None:
    page = apaches_page()
    assert len(page) > 35
    for name, (kind, labels, _) in page.items():
        ours = set(ROCKETMQ[name]["labels"])
        assert ROCKETMQ[name]["kind"] == kind
        assert labels - ours <= {*COMMON_LABELS, *OF_OPEN_TELEMETRY, "le"}
        # What it does not say always: the group's kind, and whether it is a group's retries.
        assert ours - labels <= {"is_system", "is_retry"}, name


def test_bounds_are_those_of_apaches_broker() -> None:
    text = gzip.decompress((GOLDEN / "broker-5.3.3.prom.gz").read_bytes()).decode()
    bounds: dict[str, set[float]] = {}
    for series, labels in SAMPLE.findall(text):
        if series.endswith("_bucket"):
            bounds.setdefault(series, set()).add(float(dict(LABEL.findall(labels))["le"]))
    assert len(bounds) >= 6
    for series, found in bounds.items():
        name = max((name for name in ROCKETMQ if series.startswith(name)), key=len)
        assert sorted(found) == [*ROCKETMQ[name]["bounds"], float("inf")]


def test_the_reference_says_where_apache_writes_units_behind_names() -> None:
    suffixes = {
        name: {re.sub(r"(_bucket|_sum|_count)$", "", each).removeprefix(name) for each in series}
        for name, (_, _, series) in apaches_page().items()
    }
    found = {name: next(iter(each)) for name, each in suffixes.items() if each != {""} and name in METRICS}
    assert all(len(each) == 1 for each in suffixes.values())
    assert found == UNITS_AT_APACHE
    assert all(f"`{name}{unit}`" in markdown() for name, unit in found.items())


def test_no_name_of_rocketmqs_is_ours() -> None:
    assert {name for name in METRICS if not name.startswith("skylark_")} <= set(ROCKETMQ)


def test_what_is_not_exported_is_in_the_reference_with_its_reason() -> None:
    page = markdown()
    for name, reason in NOT_APPLICABLE.items():
        assert f"| `{name}` | {reason} |" in page


async def test_the_page_of_a_scrape_has_these_metrics_and_their_kinds(rig: Rig) -> None:
    registry = CollectorRegistry()
    registry.register(rig.broker.make_pages().collector)
    families = {
        family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())
    }
    exported = {
        f"{name}_total" if family.type == "counter" else name: family for name, family in families.items()
    }
    for name, theirs in ROCKETMQ.items():
        if not is_not_applicable(name):
            assert exported[name].type == theirs["kind"]
            assert exported[name].documentation == METRICS[name].text
