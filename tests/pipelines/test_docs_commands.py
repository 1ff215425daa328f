"""The `skylark spark` commands and the pipeline files of README and docs are run in one session."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from skylark.cli.main import app
from skylark.pipelines.jobs import run, session
from skylark.pipelines.jobs.pipeline_file import load_pipeline
from tests.pipelines.messages import dead_letters, stored
from tests.support.pages import PAGES, ROOT, Block, blocks
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESRV = "127.0.0.1:9876"
TIMEOUT_S = 600
STREAMS = ("archive", "etl", "cdc", "agg", "run")
"""They run until Ctrl-C unless they are told `--once`."""
ELSEWHERE = re.compile(r"spark (list|submit)$|--master spark:|--remote |…$")
"""Run by `test_job_reporter.py` and, on a cluster, `test_clusters.py`."""
IN_TEXT = re.compile(r"`(skylark spark \w+ [^`]*[^`…])`")
"""With arguments: a name alone is only mentioned."""
TYPED = re.compile(r"skylark (spark |lake run .*--once$)")
"""Commands of Spark, and those that make tables for them."""
BLOCKS = [block for page in PAGES for block in blocks(page)]
PIPELINES = [block for block in BLOCKS if block.language == "yaml" and "sinks:" in block.code]
BESIDE = {
    "orders.ddl": "orderId string, amount double",
    "enrich.py": "def enrich(df): return df\n",
}
"""What the pipelines of the pages expect beside them."""


def commands_of(page: Path) -> list[str]:
    """What a page tells its reader to type, first in blocks, then in sentences."""
    name = page.relative_to(ROOT).as_posix()
    run = [block for block in BLOCKS if block.page == name and block.is_shell and block.not_run is None]
    lines = [line for block in run for line in block.commands()]
    lines += IN_TEXT.findall(page.read_text())
    return [line for line in lines if TYPED.match(line) and not ELSEWHERE.search(line)]


COMMANDS = {
    page.relative_to(ROOT).as_posix(): commands_of(page)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs" / "spark").glob("*.md"))]
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineCluster]:
    """A broker with what the pages speak of."""
    with PipelineCluster(tmp_path_factory.mktemp("shop")) as cluster:
        for topic in ("orders", "pay_cards", "db_users", "orders_clean", "orders_rejects", "calls"):
            cluster.create_topic(topic, 2)
        orders = [b'{"orderId": "o%d", "amount": %d}' % (number, 10 * number) for number in range(1, 9)]
        cluster.send("orders", [*orders, b"no JSON"], properties={"TAGS": "paid", "KEYS": "order-{n}"})
        cluster.send("pay_cards", [b"{}"])
        cluster.send("db_users", [b'{"op": "c", "before": null, "after": {"id": 7, "name": "Ada"}}'])
        dead_letters(cluster, "calls", "billing", [b"timeout", b"refused", b"timeout"])
        yield cluster


@pytest.fixture
def place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shop: PipelineCluster
) -> Path:
    """A directory to stand in, with the pages' files; commands get the tests' session and leave it be."""

    @contextmanager
    def shared(settings: Any) -> Iterator[SparkSession]:
        session.register(spark)
        yield spark

    monkeypatch.setattr(session, "session", shared)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name, text in BESIDE.items():
        (tmp_path / name).write_text(text)
    for block in PIPELINES:
        (tmp_path / "pipeline.yml").write_text(block.code.replace(NAMESRV, shop.namesrv))
    return tmp_path


def told(line: str, shop: PipelineCluster) -> str:
    """Run a command; return what it printed."""
    words = shlex.split(line.replace(NAMESRV, shop.namesrv))[1:]
    if words[1] in STREAMS and "--once" not in words:
        words.append("--once")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
    return done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("page", [page for page, lines in COMMANDS.items() if lines])
def test_commands_of_a_page(page: str, place: Path, shop: PipelineCluster) -> None:
    for line in COMMANDS[page]:
        output = told(line, shop)
        if line.split()[1] == "spark" and line.split()[2] in (*STREAMS, "replay"):
            summary = json.loads(output.splitlines()[-1])
            assert summary["pipeline"] in line or summary["pipeline"] == "orders"
            assert summary["status"] == "end of data"


def test_the_pages_run_every_pipeline() -> None:
    jobs = {line.split()[2] for lines in COMMANDS.values() for line in lines if "spark" in line}
    assert jobs == {*STREAMS, "dlq", "forget", "replay", "report", "sql"}


@pytest.mark.nightly
@pytest.mark.timeout(TIMEOUT_S)
def test_dead_letters_of_the_page_are_sent_again(place: Path, shop: PipelineCluster) -> None:
    before = len(stored(shop, "calls"))
    [line] = [line for line in COMMANDS["docs/spark/dlq.md"] if "resend" in line]
    told(line, shop)
    told(line, shop)
    assert [message.body for message in stored(shop, "calls")[before:]] == [b"timeout", b"timeout"]


@pytest.mark.parametrize("block", PIPELINES, ids=str)
def test_a_pipeline_file_of_a_page_is_understood(block: Block, tmp_path: Path) -> None:
    """By the command's own reader, and without Spark: a mistake in a page is named by its line."""
    path = tmp_path / "pipeline.yml"
    path.write_text(block.code)
    for name, text in BESIDE.items():
        (tmp_path / name).write_text(text)
    pipeline = load_pipeline(path)
    assert run.source_of(pipeline, None).namesrv in (NAMESRV, "10.0.0.5:9876")
    assert len(run.outputs_of(pipeline)) == len(pipeline.sinks)
    if decoding := run.decoding(pipeline):
        assert decoding["decodeSchema"] in (BESIDE["orders.ddl"], "id bigint, amount double")
    for step in pipeline.steps:
        if step.kind == "python":
            run.load_function(pipeline, str(step.value), step.line)
