"""What is deployed: dashboard and alerts ask for metrics, service and image run commands, that there are."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from skylark.broker.monitoring.metric_specs import COMMON_LABELS, METRICS, MetricSpec
from skylark.controller.controller import METRICS as CONTROLLER_METRICS
from skylark.namesrv.server import METRICS as NAME_SERVER_METRICS
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.remoting.latency import ONEWAY, SUCCESS, WRITE_FAILED
from skylark.remoting.server_metrics import HANDSHAKE_RESULTS, SECURITY
from skylark.settings import BrokerSettings, NameServerSettings
from skylark.settings.fields import FAST_PORT_DISTANCE
from skylark.settings.loader import load_settings
from tests.unit.cli.test_reference import check_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
NAME = re.compile(r"\b(?:rocketmq|skylark)_\w+")
SELECTOR = re.compile(r"\b((?:rocketmq|skylark)_\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"]]


def charts() -> list[dict[str, Any]]:
    return [panel for panel in panels() if panel["type"] != "row"]


def questions() -> list[str]:
    """All that is asked of Prometheus."""
    asked = [rule["expr"] for rule in rules()]
    return asked + [target["expr"] for panel in charts() for target in panel["targets"]]


def exported() -> dict[str, tuple[str, MetricSpec]]:
    """By the name of a series: its kind, and what it belongs to."""
    found: dict[str, tuple[str, MetricSpec]] = {}
    for name, spec in METRICS.items():
        if spec.kind == "histogram":
            found |= {
                f"{name}{suffix}": (f"histogram{suffix}", spec) for suffix in ("_bucket", "_sum", "_count")
            }
        else:
            found[name] = (spec.kind, spec)
    for name, metric in {**CONTROLLER_METRICS, **NAME_SERVER_METRICS}.items():
        spec = MetricSpec("counter" if name.endswith("_total") else "gauge", metric.text, metric.labels)
        found[name] = (spec.kind, spec)
    return found


SERIES = exported()


def labels_of(name: str) -> set[str]:
    kind, spec = SERIES[name]
    common = COMMON_LABELS if name.startswith("rocketmq_") and name not in CONTROLLER_METRICS else ()
    bound = ("le",) if kind == "histogram_bucket" else ()
    return {*common, *spec.labels, *bound, "instance", "job"}


@pytest.mark.parametrize("question", questions())
def test_every_metric_asked_for_is_exported_with_the_labels_asked_for(question: str) -> None:
    asked = NAME.findall(question)
    assert set(asked) <= set(SERIES)
    for name, selector in SELECTOR.findall(question):
        assert {re.split("[=!]", part)[0].strip() for part in selector.split(",")} <= labels_of(name)
    for labels in GROUPING.findall(question):
        assert {label.strip() for label in labels.split(",")} <= set.union(*map(labels_of, asked))


def test_the_page_on_clusters_tells_every_metric_of_controllers() -> None:
    page = (ROOT / "docs" / "howto" / "run-a-cluster.md").read_text()
    own = CONTROLLER_METRICS.keys() - SECURITY.keys()
    assert set(re.findall(r"^\| `(\w+_controller_\w+)` \|", page, re.MULTILINE)) == own


def test_the_page_on_name_servers_tells_every_metric_of_them() -> None:
    page = (ROOT / "docs" / "howto" / "run-a-nameserver.md").read_text()
    assert set(re.findall(r"^\| `(skylark_\w+)` \|", page, re.MULTILINE)) == NAME_SERVER_METRICS.keys()


def test_rates_are_taken_of_counters_alone() -> None:
    for question in questions():
        for name in re.findall(r"(?:rate|increase)\((\w+)", question):
            assert SERIES[name][0] != "gauge"


def test_quantiles_are_taken_of_the_rates_of_ranges() -> None:
    for question in questions():
        for rest in question.split("histogram_quantile(")[1:]:
            assert re.match(r"0\.\d+, sum by \([\w, ]*\ble\) \(\s*rate\(\w+_bucket\b", rest), question


@pytest.mark.parametrize("question", questions())
def test_what_a_question_selects_can_be_there(question: str) -> None:
    """Values of labels that are known beforehand are spelled as they are exported."""
    known = {
        "request_code": {code.name.lower() for code in RequestCode} | {"unknown"},
        "response_code": {code.name.lower() for code in ResponseCode} | {"unknown"},
        "result": {SUCCESS, ONEWAY, WRITE_FAILED, *HANDSHAKE_RESULTS},
        "is_system": {"true", "false"},
        "is_long_polling": {"true", "false"},
    }
    for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', question):
        for wanted in value.split("|") if label in known else ():
            pattern = wanted if "~" in operator else re.escape(wanted)
            assert any(re.fullmatch(pattern, each) for each in known[label]), wanted


def test_alerts_say_how_bad_it_is_and_what() -> None:
    assert rules()
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]


def test_every_chart_belongs_to_a_row() -> None:
    [first, *_], rows = panels(), [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert first["type"] == "row"
    assert len(rows) == len(set(rows)) > 4


def test_panels_lie_side_by_side() -> None:
    places = [tuple(panel["gridPos"].values()) for panel in panels()]
    assert len(set(places)) == len(places) > 0
    assert len({panel["id"] for panel in panels()}) == len(places)


# --- The image ---


def instructions() -> list[tuple[str, str]]:
    """The lines of the Dockerfile, continued ones joined, as word and rest."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


def last(wanted: str) -> str:
    return [rest for word, rest in instructions() if word == wanted][-1]


def test_the_image_is_made_of_what_there_is() -> None:
    known = "FROM WORKDIR COPY RUN USER VOLUME EXPOSE HEALTHCHECK STOPSIGNAL ENTRYPOINT CMD".split()
    assert {word for word, _ in instructions()} <= set(known)
    for image in (rest.split()[0] for word, rest in instructions() if word == "FROM"):
        assert re.fullmatch(r"[\w/.-]+:[\d.]+[\w.-]*", image), f"{image} has no version"
    copied = [rest.split() for word, rest in instructions() if word == "COPY"]
    files = {source for words in copied if not words[0].startswith("--from") for source in words[:-1]}
    assert [name for name in files if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert files == {"pyproject.toml", *needed}, "the package is built of these"
    for extra in re.findall(r"\[(\w+)\]", " ".join(rest for word, rest in instructions() if word == "RUN")):
        assert extra in project["project"]["optional-dependencies"]


def test_the_image_runs_a_command_that_there_is_and_not_as_root() -> None:
    words = [word for word, _ in instructions()]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert last("USER") not in ("root", "0")
    assert json.loads(last("ENTRYPOINT")) == ["skylark"], "any command can be run"
    command = ["skylark", *json.loads(last("CMD"))]
    check_command(command)
    assert command[command.index("--data") + 1] == last("VOLUME"), "messages outlive the container"
    broker, name_server = BrokerSettings(), NameServerSettings()
    ports = {name_server.port, broker.port, broker.port - FAST_PORT_DISTANCE, broker.port + 1}
    assert set(map(int, last("EXPOSE").split())) == {*ports, broker.metrics_port}
    [program] = re.findall(r'"(import [^"]+)"', last("HEALTHCHECK"))
    compile(program, "HEALTHCHECK", "exec")
    assert f"127.0.0.1:{broker.metrics_port}/health" in program


# --- The service ---


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "skylark.service").read_text())
    return parser


def test_the_service_runs_a_command_that_there_is_and_not_as_root() -> None:
    service = unit()["Service"]
    assert unit().sections() == ["Unit", "Service", "Install"]
    program, *words = service["ExecStart"].split()
    check_command([Path(program).name, *words])
    assert words[words.index("--data") + 1] == f"/var/lib/{service['StateDirectory']}"
    assert service["User"] not in ("root", "")
    assert service["Restart"] == "on-failure"
    assert int(service["TimeoutStopSec"]) * 1000 > BrokerSettings().shutdown_timeout_ms


def test_the_settings_that_the_service_names_are_taken() -> None:
    text = (DEPLOY / "skylark.service").read_text()
    named = dict(re.findall(r"(SKYLARK_BROKER_\w+)=(\w+)", text))
    loaded = load_settings(BrokerSettings, environment=named, prefix="SKYLARK_BROKER_")
    assert len(named) == 1
    assert loaded.settings != BrokerSettings()
    assert loaded.warnings == ()
