"""An operator watches the system with `top`: scrolls, sorts and quits by keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skylark import Admin, Message, Producer
from skylark.testing import EmbeddedServers
from tests.support.terminal import Terminal

UP, DOWN, RIGHT, END = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[F"
LINES = 24


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with EmbeddedServers() as servers:
        with Admin(namesrv=servers.namesrv) as admin, Producer("shop", namesrv=servers.namesrv) as producer:
            for number in range(20):
                admin.topics.create(f"topic-{number:02}", queues=1)
            producer.send_batch([Message("topic-07", b"x")] * 5)
        yield servers.namesrv


@pytest.mark.parametrize("columns", [80, 120])
def test_top_is_scrolled_sorted_and_left_with_keys(namesrv: str, columns: int) -> None:
    words = ["top", "--every", "0.2"]
    with Terminal(words, {"NAMESRV_ADDR": namesrv}, columns=columns, lines=LINES) as terminal:
        screen = terminal.until_screen(
            lambda lines: any("Topics 1-" in line for line in lines) and lines[-1].startswith("q quit")
        )
        assert "topic-19" not in "\n".join(screen)
        terminal.write(END)
        terminal.until_screen(lambda lines: any(line.startswith("topic-19") for line in lines))
        terminal.write(RIGHT + RIGHT)  # by topic, by messages
        terminal.until_screen(lambda lines: any(line.endswith("by messages ▼") for line in lines))
        screen = terminal.screen
        title = next(number for number, line in enumerate(screen) if "by messages" in line)
        assert screen[title + 2].split()[:2] == ["topic-07", "5"]
        terminal.write("q")
        assert terminal.end() == 0
    assert "Traceback" not in terminal.text


def test_a_watched_table_ends_with_q_too(namesrv: str) -> None:
    words = ["topic", "status", "topic-07", "--watch", "--every", "0.2"]
    with Terminal(words, {"NAMESRV_ADDR": namesrv}, columns=80) as terminal:
        terminal.until("messages")
        terminal.write("q")
        assert terminal.end() == 0
