"""A data engineer archives a topic, and sees why it takes a while and what became of the messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark import Admin, Message, Producer
from skylark.testing import EmbeddedServers
from tests.support.terminal import Terminal

SPARK_S = 280.0


@pytest.mark.nightly
def test_an_archive_says_what_it_waits_for_and_ends_with_a_table(tmp_path: Path) -> None:
    with EmbeddedServers() as servers:
        with Admin(namesrv=servers.namesrv) as admin, Producer("shop", namesrv=servers.namesrv) as producer:
            admin.topics.create("orders", queues=1)
            producer.send_batch([Message("orders", b'{"id": 1}')] * 20)
        words = ["spark", "archive", "-t", "orders", "--to", f"parquet:{tmp_path / 'lake'}", "--once"]
        environment = {"NAMESRV_ADDR": servers.namesrv}
        with Terminal(words, environment, columns=80, lines=30, timeout_s=SPARK_S) as terminal:
            terminal.until_screen(lambda lines: "starting Spark, about 10 s (" in lines[0])
            terminal.until("archive: batch 0 ━━━━━━━━")
            assert terminal.end() == 0, terminal.text
    lines = terminal.screen
    assert lines[0].startswith("archive: end of data after "), "nothing else stays on the screen"
    assert "Spark" not in "\n".join(lines)
    [heading] = [number for number, line in enumerate(lines) if line.endswith("duplicates")]
    found = dict(zip(lines[heading].split()[1:], lines[heading + 2].split()[1:], strict=True))
    assert found == {"read": "20", "written": "20", "filtered": "0", "rejected": "0", "duplicates": "0"}
