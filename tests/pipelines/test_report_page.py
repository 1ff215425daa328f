"""The report's page in a real browser: it is drawn, complains about nothing, and asks nobody for anything."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from skylark.html_report import HtmlReport, Section, render
from skylark.pipelines.jobs.report import KINDS

BROWSER = "chromium"
BROWSER_TIMEOUT_S = 120
OPTIONS = [
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-sandbox", "--disable-dev-shm-usage"),  # the page is ours, and containers have neither
    *("--enable-logging=stderr", "--log-level=0", "--window-size=1000,2400"),
]
NO_NETWORK = ["--proxy-server=http://127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND"]
# Whatever the page wanted to fetch is refused, and the console says so.
POLICY = (
    "<meta http-equiv=Content-Security-Policy "
    "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
)
PNG_HEAD = b"\x89PNG\r\n\x1a\n"


def page() -> str:
    """A report with every kind of section that has a chart, and characters that must be escaped."""
    rows: dict[str, list[list[object]]] = {
        "sizes": [
            ["<orders>", "b", 0, 30, 300, 10, 10, "x", "y"],
            ["<orders>", "b", 1, 10, 300, 30, 30, "x", "y"],
        ],
        "traffic": [["<orders>", f"2026-11-15 10:{minute:02}", minute * 7, 100] for minute in range(40)],
        "keys": [["<orders>", '<hot> & "cold"', 30], ["<orders>", "k1", 1]],
        "duplicates": [["<orders>", 40, 30, 10, "u1", 2]],
        "latency": [["<orders>", 40, -1, 2, 3, 9, 12]],
    }
    columns = {
        "sizes": "topic brokerName queueId messages bodyBytes meanBytes maxBytes oldest newest",
        "traffic": "topic from messages bodyBytes",
        "keys": "topic key messages",
        "duplicates": "topic messages distinct duplicates mostRepeated times",
        "latency": "topic messages min p50 p90 p99 max",
    }
    sections = [
        Section(name, title, columns[name].split(), rows[name], chart, note)
        for name, (title, _, chart, note) in KINDS.items()
    ]
    return render(HtmlReport("Topics <orders>", "2026-11-15 10:40:00+00:00", sections))


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


@pytest.mark.skipif(shutil.which(BROWSER) is None, reason="needs chromium: run `make setup`")
@pytest.mark.timeout(2 * BROWSER_TIMEOUT_S + 30)
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    path, picture = tmp_path / "report.html", tmp_path / "report.png"
    # The browser runs this script after it has laid the page out, and the answers stand in what it dumps.
    answers = f"<pre id=seen></pre><script>{SCRIPT}</script></body>"
    path.write_text(page().replace("<head>", f"<head>{POLICY}").replace("</body>", answers))
    seen = browse(path, tmp_path / "profile", "--dump-dom")
    assert seen.returncode == 0, seen.stderr[-2000:]
    assert "CONSOLE" not in seen.stderr, seen.stderr[-2000:]
    facts = dict(re.findall(r"(\w+)=([\d.]+);", re.search(r"<pre id=\"seen\">(.*?)</pre>", seen.stdout)[1]))  # type: ignore[index]
    assert int(facts["charts"]) == len(KINDS)
    assert int(facts["bars"]) >= 40 + len(KINDS)
    assert (facts["outside"], facts["overlaps"]) == ("0", "0")
    path.write_text(page())
    drawn = browse(path, tmp_path / "profile", f"--screenshot={picture}")
    assert drawn.returncode == 0, drawn.stderr[-2000:]
    assert picture.read_bytes().startswith(PNG_HEAD)


SCRIPT = """
const charts = [...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().height > 100);
const bars = [...document.querySelectorAll('svg rect:not(.key)')]
  .filter(e => e.getBoundingClientRect().width > 0);
const outside = bars.filter(e => {
  const bar = e.getBoundingClientRect(), chart = e.closest('svg').getBoundingClientRect();
  return bar.top < chart.top - 1 || bar.bottom > chart.bottom + 1 || bar.right > chart.right + 1;
});
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const overlaps = charts.flatMap(chart => {
  const texts = [...chart.querySelectorAll('text')].map(e => e.getBoundingClientRect());
  return texts.flatMap((text, at) => texts.slice(at + 1).filter(other => meet(text, other)));
});
document.getElementById('seen').textContent = 'charts=' + charts.length + ';bars=' + bars.length +
  ';outside=' + outside.length + ';overlaps=' + overlaps.length + ';';
"""
