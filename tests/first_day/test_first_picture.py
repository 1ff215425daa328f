"""The report that a data engineer sees first; what it says of every case is in tests/pipelines."""

from pathlib import Path

import pytest

from skylark import Message, Producer
from tests.support.first_day import Servers
from tests.support.spark_shell import SparkShell


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_the_report_begins_with_a_verdict(servers: Servers, spark: SparkShell, tmp_path: Path) -> None:
    servers.run("topic", "create", "pictured", "-q", 2)
    with Producer("shop", namesrv=servers.namesrv) as producer:
        for number in range(50):
            producer.send(Message("pictured", b"order %d" % number, keys=[f"order-{number % 49}"]))
    page = tmp_path / "report.html"
    spark.run("report", "-n", servers.namesrv, "-t", "pictured", "--html", page)
    text = page.read_text()
    assert "50 messages, none sent twice" in text
    order = [text.index(part) for part in ("<h1>Topic pictured", "verdict good", "of bodies", 'id="traffic"')]
    assert order == sorted(order)
    assert '<td class="">order-0</td>' in text
    assert '<td class="">order-1</td>' not in text, "a key that occurs once"
