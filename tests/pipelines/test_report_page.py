"""The report's page in a real browser: it is drawn, complains about nothing, and asks nobody for anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import msgspec
import pytest

from skylark.html_report import Chart, HtmlReport, Section, render
from skylark.pipelines.jobs.consumer_groups import GROUP_COLUMNS, GroupStanding
from skylark.pipelines.jobs.journey import JOURNEY_COLUMNS
from skylark.pipelines.jobs.report_overview import Figures, overview

BROWSER = "chromium"
BROWSER_TIMEOUT_S = 120
OPTIONS = [
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-sandbox", "--disable-dev-shm-usage"),  # the page is ours, and containers have neither
    *("--enable-logging=stderr", "--log-level=0", "--window-size=1500,2400"),
]
NO_NETWORK = ["--proxy-server=http://127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND"]
SCHEMES = {"light": [], "dark": ["--blink-settings=preferredColorScheme=0"]}
WIDTHS = {"desk": 1050, "phone": 390}
# Whatever the page wanted to fetch is refused, and the console says so.
POLICY = (
    "<meta http-equiv=Content-Security-Policy "
    "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
)
BRIGHT = 500
"""Sum of red, green and blue: above it a colour is bright."""


def page() -> str:
    """A report with every kind of section that has a chart, and characters that must be escaped."""
    times = [f"2026-11-15 10:{minute:02}:00" for minute in range(40)]
    places = [(f"broker-{name}", queue) for name in "ab" for queue in range(4)]
    queues = [["<orders>", *place, 1234, 300, 10, 10, times[0], times[9]] for place in places]
    by_time: list[list[object]] = []
    by_stage: list[list[object]] = []
    for number, time in enumerate(times):
        by_time += [[time, topic, number * 700, 100] for topic in ("<orders>", "pay")]
        by_stage += [[time, stage, 5, number * 30] for stage in ("stored", "consumed")]
    sizes = "topic brokerName queueId messages bodyBytes meanBytes maxBytes oldest newest".split()
    steps = [["2026-11-15 10:00:00.123", "+0 ms", "stored", "<orders>, broker-a, queue 3, offset 124"]] * 8
    standing = GroupStanding(
        group="billing", lag=12, retries_waiting=0, dead_letters=20, dead_letters_waiting=3
    )
    sections = [
        Section(
            "traffic",
            "Traffic",
            ["from", "topic", "messages", "bodyBytes"],
            by_time,
            Chart("from", "messages", "topic", "messages"),
            is_folded=True,
        ),
        Section(
            "delay",
            "End-to-end delay",
            ["from", "delay", "p50", "p99"],
            by_stage,
            Chart("from", "p99", "delay", "p99, ms", "lines"),
            is_folded=True,
        ),
        Section("groups", "Consumer groups", GROUP_COLUMNS, [standing.row()]),
        Section("journey", "Journey of a message", JOURNEY_COLUMNS, steps),
        Section(
            "sizes",
            "Queues",
            sizes,
            queues,
            Chart(("brokerName", "queueId"), "messages", "topic", "messages"),
            total=["Total", "2 brokers", None, 9872, 2400, 10, 10, times[0], times[9]],
        ),
        Section(
            "keys",
            "Most frequent keys",
            ["topic", "key", "messages"],
            [["<orders>", '<hot> & "cold"', 30], ["<orders>", "k1", 1]],
            Chart("key", "messages", unit="messages"),
        ),
    ]
    figures = Figures(
        topics=["<orders>"],
        messages=9872,
        body_bytes=923_580,
        span_ms=2_400_000,
        peak_per_s=45.5,
        delay_stage="until consumed",
        delay_p99_ms=1240,
        standings=[standing],
        queue_rows=queues,
    )
    top = overview(figures)
    made_at = "Made 2026-11-15 10:40:00"
    return render(HtmlReport("Topic <orders>", made_at, sections, top.verdict, top.totals))


def browse(page: Path, profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which(BROWSER)
    assert program is not None
    return subprocess.run(
        [program, *OPTIONS, *NO_NETWORK, f"--user-data-dir={profile}", *arguments, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=BROWSER_TIMEOUT_S,
        check=False,
    )


@pytest.mark.skipif(
    shutil.which(BROWSER) is None and not os.environ.get("CI"), reason="needs chromium: run `make setup`"
)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.timeout(BROWSER_TIMEOUT_S + 30)
def test_the_page_in_a_browser(tmp_path: Path, scheme: str) -> None:
    inner = escape(page().replace("<head>", f"<head>{POLICY}"))
    # A frame has the width of a screen; the script looks at each after it is laid out.
    frames = "".join(
        f'<iframe id={name} width={width} height=2000 srcdoc="{inner}"></iframe>'
        for name, width in WIDTHS.items()
    )
    path = tmp_path / "frames.html"
    answers = f"<pre id=seen></pre><script>{SCRIPT}</script>"
    path.write_text(f"<!doctype html><head>{POLICY}</head><body>{frames}{answers}</body>")
    seen = browse(path, tmp_path / "profile", "--dump-dom", *SCHEMES[scheme])
    assert seen.returncode == 0, seen.stderr[-2000:]
    assert "CONSOLE" not in seen.stderr, seen.stderr[-2000:]
    told = re.search(r"<pre id=\"seen\">(.*?)</pre>", seen.stdout, re.DOTALL)
    assert told is not None
    facts = msgspec.json.decode(told[1], type=dict[str, dict[str, int]])
    for name in WIDTHS:
        found = facts[name]
        assert (found["charts"], found["verdicts"]) == (4, 1)
        assert found["bars"] >= 80 + 8 + 2
        assert found["lines"] == 2
        assert (found["outside"], found["overlaps"], found["overflow"]) == (0, 0, 0)
        assert (found["background"] > BRIGHT) == (scheme == "light")
        assert (found["text"] > BRIGHT) == (scheme == "dark")
    assert facts["phone"]["chartWidth"] < WIDTHS["phone"] < facts["desk"]["chartWidth"]


SCRIPT = """
const sum = colour => colour.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);
const box = e => e.getBoundingClientRect();
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const look = frame => {
  const page = frame.contentDocument, style = e => frame.contentWindow.getComputedStyle(e);
  const charts = [...page.querySelectorAll('svg')].filter(e => box(e).height > 100);
  const bars = charts.flatMap(chart => [...chart.querySelectorAll('rect')]);
  const outside = bars.filter(e => {
    const bar = box(e), chart = box(e.closest('svg'));
    return bar.top < chart.top - 1 || bar.bottom > chart.bottom + 1 || bar.right > chart.right + 1;
  });
  const overlaps = charts.flatMap(chart => {
    const texts = [...chart.querySelectorAll('text')].map(box).filter(each => each.width > 0);
    const cut = texts.filter(text => text.left < box(chart).left - 1 || text.right > box(chart).right + 1);
    return cut.concat(texts.flatMap((text, at) => texts.slice(at + 1).filter(other => meet(text, other))));
  });
  return {
    charts: charts.length, bars: bars.length, outside: outside.length, overlaps: overlaps.length,
    lines: charts.flatMap(chart => [...chart.querySelectorAll('polyline')]).length,
    overflow: Math.max(0, page.documentElement.scrollWidth - frame.clientWidth),
    verdicts: page.querySelectorAll('.verdict.look').length, chartWidth: Math.round(box(charts[0]).width),
    background: sum(style(page.body).backgroundColor), text: sum(style(page.body).color),
  };
};
window.onload = () => {
  const seen = [...document.querySelectorAll('iframe')].map(frame => [frame.id, look(frame)]);
  document.getElementById('seen').textContent = JSON.stringify(Object.fromEntries(seen));
};
"""
