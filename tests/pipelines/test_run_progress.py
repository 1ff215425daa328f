"""What jobs share, without Spark: progress, plain errors, places, the checks before a session starts."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import NoRoute, SettingsError
from skylark.html_report import Chart, HtmlReport, Section, render
from skylark.pipelines.jobs.counts import READ, WRITTEN
from skylark.pipelines.jobs.endpoints import parse_output, state_directory
from skylark.pipelines.jobs.queries import HELD, ProgressTally, distance, is_late_worker, plain_error
from skylark.pipelines.jobs.replay import ReplayRange
from skylark.pipelines.jobs.session import check_java
from skylark.pipelines.lake.progress import last_offsets
from skylark.pipelines.message_source import DataLost

QUEUES = st.dictionaries(st.sampled_from("0123"), st.integers(0, 1000), min_size=1)


@given(QUEUES, QUEUES)
def test_the_distance_of_offsets_counts_messages_of_queues_that_both_know(
    before: dict[str, int], added: dict[str, int]
) -> None:
    after = {name: before.get(name, 0) + count for name, count in added.items()}
    start, end = ({"t": {"b": queues}} for queues in (before, after))
    expected = sum(count for name, count in added.items() if name in before)
    assert distance(json.dumps(start), end) == expected
    assert distance(None, end) is None


def batch(number: int, rows: int, start: int | None, end: int) -> dict[str, Any]:
    offsets = [None if at is None else {"t": {"b": {"0": at}}} for at in (start, end, end + 5)]
    names = ("startOffset", "endOffset", "latestOffset")
    return {
        "batchId": number,
        "numInputRows": rows,
        "batchDuration": 500,
        "sources": [dict(zip(names, offsets, strict=True))],
        "observedMetrics": {"quality": {"rule0": 2}},
    }


def test_batches_are_counted_once() -> None:
    tally = ProgressTally()
    first = tally.take("q", batch(0, 3, None, 30))
    assert first is not None
    assert (first.messages, first.behind) == (3, 5)
    second = tally.take("q", batch(1, 1, 30, 70))  # a range is one row, and forty messages
    assert second is not None
    assert (second.messages, second.messages_per_second) == (40, 80.0)
    assert tally.take("q", batch(1, 1, 30, 70)) is None
    assert tally.take("q", batch(2, 0, 70, 70)) is None
    assert (tally.batches, tally.observed) == (2, {"q": {"rule0": 4}})


def test_a_batch_without_messages_counts_if_it_ran() -> None:
    tally = ProgressTally()
    told = batch(2, 0, 70, 70) | {"durationMs": {"addBatch": 3}}
    assert tally.take("q", told) is None
    assert tally.take("q", told) is None
    assert (tally.batches, tally.observed) == (0, {"q": {"rule0": 2}})


def test_a_batch_that_the_table_holds_is_not_written() -> None:
    tally = ProgressTally({"q": 1}, {"times": lambda number, value: number * len(value)})
    for number in range(3):
        told = batch(number, 10, None, 10)
        told["observedMetrics"] = {
            "any": {READ: 10, WRITTEN: 8, "times": ["x", "y"], "at": f"t/b/0/{number}"}
        }
        told["stateOperators"] = [
            {"operatorName": "dedupeWithinWatermark", "numRowsDroppedByWatermark": 2},
            {"operatorName": "stateStoreSave", "numRowsDroppedByWatermark": 100},
        ]
        tally.take("q", told)
    assert tally.observed == {"q": {READ: 30, WRITTEN: 16, HELD: 8, "times": 6, "late": 6}}
    assert tally.examples == {"q": {"at": "t/b/0/0"}}


def test_the_first_batch_of_ranges_counts_messages_though_it_has_no_start() -> None:
    told = batch(0, 4, None, 30)
    told["observedMetrics"][READ] = {READ: 30}
    tally = ProgressTally()
    seen = tally.take("q", told)
    assert seen is not None
    assert (seen.messages, seen.messages_per_second) == (30, 60.0)
    assert tally.observed == {"q": {READ: 30, "rule0": 2}}


def test_what_a_connect_server_tells_is_understood() -> None:
    told = batch(0, 0, 10, 30)
    del told["numInputRows"]
    told["sources"] = [
        {name: json.dumps(value) for name, value in source.items()} | {"numInputRows": 1}
        for source in told["sources"]
    ]
    seen = ProgressTally().take("q", told)
    assert seen is not None
    assert (seen.messages, seen.behind) == (20, 5)


def test_what_a_connect_server_observes_is_understood() -> None:
    bins = [{"values": [7, 2.0], "schema": {"fields": [{"name": "x"}, {"name": "y"}]}}]
    names = [{"name": name} for name in (READ, "at", "ends", "nothing")]
    told = batch(0, 1, 10, 30)
    told["observedMetrics"] = {"any": {"values": [18, "t/b/0/1", bins, None], "schema": {"fields": names}}}
    tally = ProgressTally(measures={"ends": lambda _, found: round(found[0]["x"] * found[0]["y"])})
    seen = tally.take("q", told)
    assert seen is not None
    assert seen.messages == 18
    assert (tally.observed, tally.examples) == (
        {"q": {READ: 18, "ends": 14, "nothing": 0}},
        {"q": {"at": "t/b/0/1"}},
    )


WRAPPED = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] boom
Traceback (most recent call last):
  File "x.py", line 3, in write
    raise SettingsError(...)
skylark.errors.SettingsError: setting body: row 3: it is empty
 SQLSTATE: XXKST"""


GONE = DataLost("orders/broker-a/0", 3, 9, "they were deleted before they were read")


def str_of(error: Exception) -> str:
    """As the last line of a trace has it."""
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def test_of_sparks_traces_the_sentence_is_left() -> None:
    assert str(plain_error(RuntimeError(WRAPPED))) == "setting body: row 3: it is empty"
    lost = WRAPPED.replace("SettingsError: setting body: row 3: it is empty", "NoRoute: no route for topic x")
    assert "no route for topic x" in str(plain_error(RuntimeError(lost)))
    aged = WRAPPED.replace("skylark.errors.SettingsError: setting body: row 3: it is empty", str_of(GONE))
    assert str(plain_error(RuntimeError(aged))) == f"setting DataLost: {GONE}"
    ours = NoRoute("t")
    assert plain_error(ours) is ours
    read = (
        "org.apache.spark.SparkException: Job aborted\n"
        "  skylark.errors.ConnectionLost: connection to 10.0.0.5:10911 was lost: reset\n"
        "  while reading topic orders, broker broker-a, queue 3, from offset 4711\n"
        "\tat org.apache.spark.Task"
    )
    assert str(plain_error(RuntimeError(read))).endswith(
        "reset (while reading topic orders, broker broker-a, queue 3, from offset 4711)"
    )
    other = "Traceback\n  File\nZeroDivisionError: division by zero\n\tat org.apache.spark"
    assert "ZeroDivisionError: division by zero" in str(plain_error(RuntimeError(other)))


def test_only_a_worker_that_started_late_is_started_again() -> None:
    assert is_late_worker(RuntimeError("[STREAM_FAILED] ... Python worker failed to connect back."))
    assert not is_late_worker(RuntimeError(WRAPPED))
    assert not is_late_worker(None)


@pytest.mark.parametrize(
    ("text", "kind", "where"),
    [
        ("delta:/lake/x", "delta", "/lake/x"),
        ("table:/lake/x", "delta", "/lake/x"),
        ("/lake/x", "delta", "/lake/x"),
        ("parquet:/lake/x", "parquet", "/lake/x"),
        ("topic:orders", "topic", "orders"),
        ("parquet:s3://bucket/raw/", "parquet", "s3://bucket/raw"),
        ("s3://bucket/raw", "delta", "s3://bucket/raw"),
        ("console", "console", ""),
    ],
)
def test_places_are_read(text: str, kind: str, where: str) -> None:
    output = parse_output(text)
    assert (output.kind, output.where) == (kind, where)
    assert parse_output("delta:relative").where == str(Path.cwd() / "relative")


@pytest.mark.parametrize(
    "text", ["", "kafka:x", "delta:", "topic:no spaces", "delta:ftp://bucket/x", "delta:s3://b"]
)
def test_places_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_output(text)


def test_a_pipeline_finds_its_state_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one = state_directory(None, "archive", "orders,pay_.*", "127.0.0.1:9876", "delta:/lake")
    assert one == state_directory(None, "archive", "orders,pay_.*", "127.0.0.1:9876", "delta:/lake")
    assert one != state_directory(None, "archive", "orders,pay_.*", "127.0.0.1:9876", "delta:/other")
    assert one.parent == tmp_path / "skylark" / "spark"
    assert state_directory(tmp_path / "own", "archive", "x") == tmp_path / "own"


def test_a_plan_starts_where_the_last_batch_ended(tmp_path: Path) -> None:
    assert last_offsets(tmp_path) is None
    for folder in ("commits", "offsets"):
        (tmp_path / folder).mkdir()
    (tmp_path / "commits" / "9").touch()
    (tmp_path / "commits" / ".9.crc").touch()
    for number in (9, 10):  # the last was planned and not committed
        (tmp_path / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"t":{{"b":{{"0":{number}}}}}}}')
    assert last_offsets(tmp_path) == '{"t":{"b":{"0":9}}}'


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match=r"Java 17 or newer; .* is version 11\.0\.2"):
        check_java()


def test_a_page_escapes_what_it_shows_and_draws_what_is_there() -> None:
    rows: list[list[Any]] = [["<b>", 3], ['"quoted" & more', 1], [None, None]]
    section = Section("s", "A <title>", ["name", "n"], rows, Chart(label="name", value="n", unit="x"))
    page = render(HtmlReport("R & D", "now", [section, Section("e", "Empty", ["a"], [])]))
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert page.count("<rect") == 2 * 3  # for broad screens and for narrow ones
    assert "Nothing to show" in page


LOCAL_MS = round(datetime(1970, 1, 2, 8).timestamp() * 1000)
"""Without a zone, `spark replay --from` means local time, as all commands do."""


@pytest.mark.parametrize(
    ("since", "until", "bounds"),
    [
        (None, None, (None, None)),
        ("earliest", "latest", (None, None)),
        ("-10m", "1970-01-01T01:00Z", (3_000_000, 3_600_000)),
        ("1970-01-02 08:00", None, (LOCAL_MS, None)),
    ],
)
def test_a_stretch_of_time(
    since: str | None, until: str | None, bounds: tuple[int | None, int | None]
) -> None:
    stretch = ReplayRange.parse(since, until, None, 3_600_000)
    assert (stretch.since_ms, stretch.until_ms) == bounds
