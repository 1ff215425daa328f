"""Steps of `python -m benchmarks survey` in small: every cell is measured on real brokers, none is void."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.survey.cold import measure_cold
from benchmarks.survey.features import measure_features, measure_filters
from benchmarks.survey.replication import measure_replication
from benchmarks.survey.run import Survey
from benchmarks.survey.topics import ROUNDS, measure_topics
from skylark.bench.consumer import measure_delay
from skylark.bench.load import BadLoad, Load
from skylark.bench.results import Document
from skylark.bench.servers import ServerChoice
from skylark.testing import EmbeddedServers
from tests.support.names import fresh_name

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers(store={"commit_log_file_bytes": 64 << 20}) as running:
        yield running


def ignore(name: str, word: str) -> None:
    pass


def load(**members: object) -> Load:
    # Long enough for a machine that stalls for a second.
    return Load(**{"address": "", "seconds": 2.0, "warm_up_s": 0.2, **members})  # type: ignore[arg-type]


def sound(document: Document) -> Document:
    assert [cell.wrong for cell in document.cells] == [[] for _ in document.cells]
    return document


def test_steps_are_one_result_file(tmp_path: Path) -> None:
    out = tmp_path / "survey.json"
    arguments = ["survey", "--step", "routes", "--step", "store", "--seconds", "0.3", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert {line.split("\t")[0] for line in result.stdout.splitlines() if "\t" in line} == {
        "step", "routes", "store",
    }  # fmt: skip
    found = msgspec.json.decode(out.read_bytes(), type=Survey)
    assert list(found.documents) == ["routes", "store"]
    assert found.missing == {}


def test_an_unknown_step_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ["survey", "--step", "nonsense"])
    assert result.exit_code == 2
    assert result.stderr.startswith("benchmarks: invalid --step 'nonsense'; choose sends, sync, features")


def test_features_cost_what_they_store(servers: EmbeddedServers) -> None:
    topic = fresh_name("featured")
    choice = ServerChoice(namesrv=servers.namesrv)
    plain, *others = sound(measure_features(choice, load(topic=topic, rate=200.0), ignore)).cells
    assert {cell.name for cell in others} == {"tag", "key", "ten properties", "delay level", "timer"}
    assert all(cell.figures["rate_of_first"] for cell in (plain, *others))
    in_log = {cell.name: int(cell.figures["log_bytes"] or 0) for cell in (plain, *others)}
    assert in_log["delay level"] > 1.5 * in_log["plain"] > 1.5 * 128, "what is delayed is stored twice"


def test_filters_and_delays(servers: EmbeddedServers) -> None:
    choice = ServerChoice(namesrv=servers.namesrv)
    pulls = load(topic=fresh_name("filtered"), body_bytes=64, batch=32)
    everything, *others = sound(measure_filters(choice, pulls, 2000, ignore)).cells
    assert [cell.name for cell in others] == ["by tag", "by SQL92"]
    assert all(cell.operations >= 32 for cell in (everything, *others))
    delayed = load(topic=fresh_name("delayed"), rate=50.0, properties={"DELAY": "1"})
    (cell,) = sound(measure_delay(choice, delayed, 1000, ignore)).cells
    assert cell.operations >= 95


def test_topics_take_turns(servers: EmbeddedServers) -> None:
    topic = fresh_name("many")
    many = load(topic=topic, queues=1)
    document = sound(measure_topics(ServerChoice(namesrv=servers.namesrv), many, (1, 20), ignore))
    assert [cell.name for cell in document.cells] == ["1 topics", "20 new topics", "20 topics"]
    counts = [servers.message_count(f"{topic}-20-{number}") for number in range(20)]
    assert max(counts) - min(counts) <= 1 + ROUNDS
    one, new, later = document.cells
    assert sum(counts) >= new.operations + later.operations > 0
    assert one.figures["rate_of_first"] == 1
    shares = [float(later.figures[f"{which}rate_of_first"] or 0) for which in ("lowest_", "", "highest_")]
    assert 0 < shares[0] <= shares[1] <= shares[2]


def test_a_slave_is_measured_behind_its_master() -> None:
    cells = sound(measure_replication(ServerChoice(), load(in_flight=8), ignore)).cells
    assert [cell.name for cell in cells] == ["alone", "async slave", "sync slave"]
    assert all(cell.operations > 0 for cell in cells)
    assert "slave_behind_p99_ms" not in cells[0].figures
    for cell in cells[1:]:
        behind = [float(cell.figures[f"slave_behind_{share}_ms"] or 0) for share in ("p50", "p99")]
        assert 0 <= behind[0] <= behind[1]


def test_cold_pulls_read_the_disk() -> None:
    cold = load(topic="cold", body_bytes=1024, batch=32, rate=200.0)
    for _ in range(3):
        try:
            document = measure_cold(ServerChoice(), cold, 20 << 20, ignore)
        except BadLoad as error:
            pytest.skip(str(error))
        if not any("still in memory" in words for cell in document.cells for words in cell.wrong):
            break
    else:
        pytest.skip("this busy system does not drop the log from memory")
    cells = {cell.name: cell for cell in sound(document).cells}
    assert list(cells) == [
        "sends alone", "cold pulls alone", "cold pulls beside sends", "sends beside cold pulls",
    ]  # fmt: skip
    for name in ("cold pulls alone", "cold pulls beside sends"):
        assert cells[name].operations > 300
        assert float(cells[name].figures["in_memory_share"] or 0) <= 0.1
