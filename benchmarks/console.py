"""What ten watchers of the console cost a broker with 1,000 topics and 2,300 groups that takes messages.

`python -m benchmarks.console` prints JSON: sends per second and the broker's processor time per message, in
turn without and with watchers who look at the pages that refresh most often. Each turn has a console of its
own: one that was watched goes on asking for a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from benchmarks._common import report
from skylark import Message
from skylark.aio import Producer
from tests.support.console_large import large_cluster

WATCHED = {
    "": 2, "groups": 3, "groups?page=2": 3, "groups/group-0001": 2, "topics": 5, "topics?page=2": 5,
    "topics/topic-0001": 2, "brokers": 2, "dead-letters": 5, "map": 5,
}  # fmt: skip
"""Ten pages, and how often each refreshes itself in a browser, in seconds."""
IN_FLIGHT = 64
WARM_S = 3.0
BODY = b"x" * 128


async def watch(address: str, path: str, every_s: float) -> None:
    def look() -> None:
        with urllib.request.urlopen(f"{address}/local/{path}", timeout=30) as page:  # noqa: S310
            page.read()

    while True:
        await asyncio.to_thread(look)
        await asyncio.sleep(every_s)


async def send(producer: Producer, until_s: float) -> int:
    sent = 0
    while time.monotonic() < until_s:
        await producer.send(Message("topic-0001", BODY))
        sent += 1
    return sent


@contextlib.contextmanager
def console_process(namesrv: str) -> Iterator[str]:
    """The console in a process of its own; yields its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark", "console", "--namesrv", namesrv, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        found = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stdout)
        yield next(match[0] for match in found if match)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def processor_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@contextlib.asynccontextmanager
async def watched(namesrv: str) -> AsyncIterator[None]:
    """Ten watchers of a console of their own, which has been looked at."""
    with console_process(namesrv) as address:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(watch(address, path, every_s)) for path, every_s in WATCHED.items()]
            await asyncio.sleep(WARM_S)
            yield
            for task in tasks:
                task.cancel()


async def sends(producer: Producer, process: int, seconds: float) -> dict[str, float]:
    """One turn."""
    before, until_s = processor_s(process), time.monotonic() + seconds
    sent = sum(await asyncio.gather(*(send(producer, until_s) for _ in range(IN_FLIGHT))))
    return {
        "sends_per_s": sent / seconds,
        "broker_us_per_message": (processor_s(process) - before) / sent * 1e6,
    }


async def compared(namesrv: str, process: int, rounds: int, seconds: float) -> dict[str, Any]:
    turns: dict[str, list[dict[str, float]]] = {"alone": [], "watched": []}
    async with Producer("bench", namesrv=namesrv) as producer:
        await sends(producer, process, 2)
        for _ in range(rounds):
            turns["alone"].append(await sends(producer, process, seconds))
            async with watched(namesrv):
                turns["watched"].append(await sends(producer, process, seconds))
    result: dict[str, Any] = {
        name: {key: round(statistics.median(turn[key] for turn in part), 2) for key in part[0]}
        for name, part in turns.items()
    }
    for key in ("sends_per_s", "broker_us_per_message"):
        result[f"ratio_{key}"] = round(result["watched"][key] / result["alone"][key], 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=2300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        large_cluster(
            Path(directory) / "data", topics=options.topics, groups=options.groups, letters=300
        ) as it,
    ):
        found = asyncio.run(compared(it.namesrv, it.process, options.rounds, options.seconds))
    report("console", {"topics": options.topics, "groups": options.groups, **found})


if __name__ == "__main__":
    main()
