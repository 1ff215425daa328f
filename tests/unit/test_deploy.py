"""What is deployed beside a broker: the dashboard and the alert rules ask for metrics that it exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from skylark.metrics import COMMON_LABELS, METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
NAME = re.compile(r"\b(?:rocketmq|skylark)_\w+")
SELECTOR = re.compile(r"\b((?:rocketmq|skylark)_\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"]]


def questions() -> list[str]:
    """All that is asked of Prometheus."""
    asked = [rule["expr"] for rule in rules()]
    return asked + [target["expr"] for panel in panels() for target in panel["targets"]]


def labels_of(name: str) -> set[str]:
    common = COMMON_LABELS if name.startswith("rocketmq_") else ()
    return {*common, *METRICS[name].labels, "instance", "job"}


@pytest.mark.parametrize("question", questions())
def test_every_metric_asked_for_is_exported_with_the_labels_asked_for(question: str) -> None:
    asked = NAME.findall(question)
    assert set(asked) <= set(METRICS)
    for name, selector in SELECTOR.findall(question):
        assert {part.split("=")[0].strip() for part in selector.split(",")} <= labels_of(name)
    for labels in GROUPING.findall(question):
        assert {label.strip() for label in labels.split(",")} <= set.union(*map(labels_of, asked))


def test_rates_are_taken_of_counters_alone() -> None:
    for question in questions():
        for name in re.findall(r"(?:rate|increase)\((\w+)", question):
            assert METRICS[name].kind == "counter"


def test_alerts_say_how_bad_it_is_and_what() -> None:
    assert rules()
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]


def test_panels_lie_side_by_side() -> None:
    places = [tuple(panel["gridPos"].values()) for panel in panels()]
    assert len(set(places)) == len(places) > 0
    assert len({panel["id"] for panel in panels()}) == len(places)
