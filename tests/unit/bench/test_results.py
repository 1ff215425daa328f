"""What a run found: rates, JSON there and back, a table without empty columns, a page that stands alone."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec
import pytest

from skylark.bench.latencies import LatencyHistogram
from skylark.bench.results import Document, decode, encode, make_cell, make_document, page, table

GOOD = make_cell(
    "64 in flight",
    1000,
    2.0,
    latencies=LatencyHistogram([(1_000_000, 990), (9_000_000, 10)]),
    operation_bytes=1 << 20,
    series=[(1.0, 400), (2.0, 1000)],
    figures={"ratio": 0.5},
)
VOID = make_cell("one-way <&>", 0, 1.0, wrong=["5 messages stored instead of 10"])


def document() -> Document:
    return make_document("producer", {"seconds": 2.0, "flush": "async"}, [GOOD, VOID], ["A note."])


def test_rates_are_computed() -> None:
    assert (GOOD.per_s, GOOD.mib_per_s, GOOD.is_void) == (500.0, 500.0, False)
    assert GOOD.latency_us is not None
    assert GOOD.latency_us.p50 == pytest.approx(1000, rel=0.002)
    assert GOOD.latency_us.p999 == pytest.approx(9000, rel=0.002)
    assert (VOID.per_s, VOID.latency_us, VOID.hdr, VOID.is_void) == (0.0, None, "", True)


def test_json_holds_everything() -> None:
    made = document()
    assert decode(encode(made)) == made
    plain = msgspec.json.decode(encode(made))
    assert plain["schema"] == 1
    assert plain["machine"]["cores"] >= 1
    assert len(LatencyHistogram.decode(plain["cells"][0]["hdr"])) == 1000


def test_a_table_has_only_columns_that_know_something() -> None:
    columns, rows = table([GOOD])
    assert columns == ["cell", "per s", "MiB/s", "p50 µs", "p99 µs", "p99.9 µs", "max µs"]
    columns, rows = table([GOOD, VOID])
    assert columns[-1] == "verdict"
    assert rows[1][-1] == "void: 5 messages stored instead of 10"
    assert rows[0][-1] is None


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sections: list[str] = []
        self.fetched: list[str] = []
        self.lines = self.bars = 0
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "section":
            self.sections.append(values["id"] or "")
        if tag in ("script", "link", "img", "iframe") or "src" in values:
            self.fetched.append(tag)
        self.lines += tag == "polyline"
        self.bars += tag == "rect" and values.get("class") != "key"

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_page_has_charts_and_fetches_nothing() -> None:
    found = Page()
    found.feed(page(document()))
    assert found.sections == ["rates", "latencies", "course", "figures", "conditions"]
    assert found.fetched == []
    # Every chart is drawn twice, for broad screens and for narrow ones.
    assert found.bars == 2 * 2
    assert found.lines == 2 * 2  # latencies and the course of time, of the one cell that has them
    assert "one-way <&>" in found.words
    assert "A note." in found.words
