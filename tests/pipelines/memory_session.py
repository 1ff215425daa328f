"""Run as a script, for its own JVM: reads and archives a topic from store files, and tells how large it grew.

Arguments: store directory, topic, driver memory, directory. Prints as JSON how many rows it saw, and the
greatest anonymous memory of the driver's JVM and of any Python worker, in MiB. Pages of mapped log files
belong to the kernel's cache and do not count.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from skylark.pipelines.jobs.archive import archive
from skylark.pipelines.jobs.endpoints import Input, parse_output
from skylark.pipelines.jobs.session import SessionSettings, session

LOOK_INTERVAL_S = 0.1


def anonymous_kib(status: str) -> int:
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")), 0)


def descendants() -> list[int]:
    """The processes below this one."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += parents.get(pid, [])
    return found[1:]


class Peaks:
    """The greatest sizes seen, by the name of the program."""

    def __init__(self) -> None:
        self.kib: dict[str, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_INTERVAL_S):
            for pid in descendants():
                try:
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    size = anonymous_kib(Path(f"/proc/{pid}/status").read_text())
                except OSError:
                    continue
                kind = "driver" if name == "java" else "worker"
                self.kib[kind] = max(self.kib.get(kind, 0), size)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


def main(path: str, topic: str, driver_memory: str, directory: str) -> None:
    peaks = Peaks()
    conf = {"spark.driver.memory": driver_memory}
    started = time.monotonic()
    with session(SessionSettings(master="local[2]", conf=conf)) as spark:
        frame = spark.read.format("rocketmq").options(path=path, topic=topic).load()
        rows, size = frame.selectExpr("count(*)", "sum(length(body))").first() or (0, 0)
        seconds = time.monotonic() - started
        archived = archive(
            spark,
            Input(store=Path(path), topic=topic),
            parse_output(f"delta:{directory}/table"),
            state=Path(directory) / "state",
            once=True,
        )
        peaks.close()
    found = {
        "rows": rows,
        "body_bytes": size,
        "seconds": round(seconds, 1),
        "archived": archived.counts.written,
        "archive_seconds": archived.seconds,
        "driver_mib": peaks.kib.get("driver", 0) >> 10,
        "worker_mib": peaks.kib.get("worker", 0) >> 10,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
