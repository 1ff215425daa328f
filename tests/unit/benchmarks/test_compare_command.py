"""`python -m benchmarks compare`: cells, usage errors, output and files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks import __main__ as commands
from benchmarks.__main__ import app
from benchmarks.compare.figures import Comparison, NotRun, Row, Spread, SystemFacts
from benchmarks.compare.measures import Effort
from benchmarks.compare.run import Keep
from skylark.bench.machine import describe

FOUND = Comparison(
    made_at="2030-01-01 00:00:00+00:00",
    skylark="1",
    machine=describe(),
    conditions={"rounds": 1},
    systems=[SystemFacts("ours", "Skylark 1", "async", "thin"), SystemFacts("nats", "nats 2", "Go", "jnats")],
    rows=[
        Row(
            cell="start", metric="start to first acknowledged send", unit="s", peer="nats",
            ours=Spread(0.5, 0.5, 0.5, 1), theirs=Spread(0.25, 0.25, 0.25, 1), ratio=Spread(0.5, 0.5, 0.5, 1),
        )
    ],
    not_run=[NotRun("recover", "nats", "a cell about log files")],
    outcomes=[],
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[str], Effort, bool]]:
    """What the command asked for."""
    calls: list[tuple[list[str], list[str], Effort, bool]] = []

    def compare(
        peers: list[str], patterns: list[str], effort: Effort, *, quick: bool, say: object, keep: Keep
    ) -> Comparison:
        calls.append((peers, patterns, effort, quick))
        if "start" not in patterns:
            keep(FOUND)
        if patterns == ["spark"]:
            raise KeyboardInterrupt
        return FOUND

    monkeypatch.setattr(commands, "run_comparison", compare)
    return calls


def test_cells_are_listed() -> None:
    done = CliRunner().invoke(app, ["compare", "--list"])
    assert done.exit_code == 0
    assert "recover\tapache, ours\tkill -9" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--peer", "rabbit"], "unknown peer 'rabbit'; choose apache, kafka, nats"),
        (["--cell", "sned"], "unknown cell 'sned'"),
        (["--out", "nowhere/at/all.json"], "no directory"),
    ],
)
def test_mistakes_are_sentences(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["compare", *words])
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_options_change_what_quick_says(asked: list[tuple[list[str], list[str], Effort, bool]]) -> None:
    words = ["--quick", "--peer", "nats,apache", "--cell", "start", "--rounds", "2", "--recover-gib", "0.5"]
    done = CliRunner().invoke(app, ["compare", *words])
    assert done.exit_code == 0, done.stderr
    (peers, patterns, effort, quick) = asked[0]
    assert (peers, patterns, quick) == (["nats", "apache"], ["start"], True)
    assert (effort.rounds, effort.recover_bytes) == (2, 1 << 29)
    assert effort.seconds == Effort.quick().seconds


def test_losses_and_what_is_missing_are_printed_and_files_written(
    asked: list[tuple[list[str], list[str], Effort, bool]], tmp_path: Path
) -> None:
    json, html = tmp_path / "found.json", tmp_path / "found.html"
    done = CliRunner().invoke(app, ["compare", "--out", str(json), "--report", str(html)])
    assert done.exit_code == 0, done.stderr
    assert "Behind, or below the bar" in done.stdout
    assert "start to first acknowledged send, s: 0.5 against 0.25 of nats, 0.50" in done.stdout
    assert "recover, nats: a cell about log files" in done.stdout
    assert msgspec.json.decode(json.read_bytes(), type=Comparison) == FOUND
    page = html.read_text()
    assert "Where ours is worse" in page
    assert "Rates of ours" not in page, "no cell has a rate"


def test_json_is_the_whole_result(asked: list[tuple[list[str], list[str], Effort, bool]]) -> None:
    done = CliRunner().invoke(app, ["compare", "--json"])
    assert msgspec.json.decode(done.stdout, type=Comparison) == FOUND


def test_what_was_found_before_an_interruption_is_in_the_file(
    asked: list[tuple[list[str], list[str], Effort, bool]], tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    done = CliRunner().invoke(app, ["compare", "--cell", "spark", "--out", str(out)])
    assert done.exit_code == 130
    assert msgspec.json.decode(out.read_bytes(), type=Comparison) == FOUND
    assert list(tmp_path.iterdir()) == [out]


def test_files_of_several_runs_become_one_page(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.json", "two.json")]
    for file in files:
        file.write_bytes(msgspec.json.encode(FOUND))
    page, out = tmp_path / "all.html", tmp_path / "all.json"
    words = ["merge", *map(str, files), "--report", str(page), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    assert "start to first acknowledged send, s: 0.5 against 0.25 of nats, 0.50" in done.stdout
    assert msgspec.json.decode(out.read_bytes(), type=Comparison).rows == FOUND.rows
    assert "Where ours is worse" in page.read_text()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "No such file or directory"),
        (b"{}", "is not a result of `compare`"),
        (b"x", "is not a result"),
    ],
)
def test_what_is_no_comparison_cannot_be_merged(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    file = tmp_path / "wrong.json"
    if content is not None:
        file.write_bytes(content)
    done = CliRunner().invoke(app, ["merge", str(file)])
    assert done.exit_code == 2
    assert sentence in done.stderr
