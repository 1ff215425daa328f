"""Messages of mixed topics through `skylark lake` into an S3 server, while everything is killed at random.

Broker, S3 server, the processes of the lake and the whole lake are killed with SIGKILL and started again.
Meanwhile new topics appear, which patterns of the rules choose, and the broker deletes its log as soon as it
is archived. In the end every acknowledged message is in the table under its offset, once, with the CRC of its
body, no offset is missing, and what the log still holds is equal.

    python -m tests.pipelines.lake_proof --messages 20000000

With `--home` several runs add to the same log and tables, and each checks the whole. With `--spark` the files
are written by a Spark cluster of two workers, whose executors are killed, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from skylark import Producer
from skylark.client.producer.sent_rows import SentRows
from skylark.errors import RocketMQError, RowsFailed
from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable, load_rules
from skylark.pipelines.lake_service.table_archiver import committed_offsets, open_table
from skylark.pipelines.lake_service.verification import compare, table_sums
from skylark.pipelines.offsets import Offsets
from skylark.pipelines.options import SourceOptions, load
from skylark.processes import PortReservation, ProcessFailed, Server
from skylark.protocol.bodies import MessageQueue
from tests.interop.servers import Servers
from tests.support.pipeline_cluster import PipelineCluster
from tests.support.s3_server import BUCKET, S3Server, variables
from tests.support.spark_cluster import SparkCluster

GROUP = "lake"
PREFIX = "proof_"
SENDERS = 2
ROWS_MAX = 10_000
BODY_BYTES_MAX = 600
FILLER = bytes(range(256)) * 4
BACKLOG_MAX = 2_000_000
RULES = f"""
namesrv: {{namesrv}}
group: {GROUP}
tables:
  - topics: {PREFIX}0
    to: delta:s3://{BUCKET}/large
    delay: 500ms
    batch: 32MB
    maintain: 10s
  - topics: {PREFIX}.*
    to: delta:s3://{BUCKET}/small
    delay: 500ms
    batch: 32MB
    partition: dt
"""
"""Small batches: one that takes longer than the pause between two kills is never done."""
CATCH_UP_S = 900.0
SETTINGS: dict[str, str | int] = {
    "archiveGroup": GROUP,
    "fileReservedTime": 0,
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "cleanResourceFirstDelay": 1000,
    "cleanResourceInterval": 1000,
}


class LakeProcess(Server):
    """`skylark lake run` with its rule file."""

    title = "lake"

    def __init__(self, home: Path, rules: Path, environment: dict[str, str], master: str | None) -> None:
        super().__init__(home, PortReservation(0))
        self._rules = rules
        self._variables = environment
        self._words = ["--workers", "2"] if master is None else ["--master", master]

    def command(self, start: int) -> list[str]:
        port = self.address.rpartition(":")[2]
        words = ["lake", "run", str(self._rules), "--metrics-port", port, *self._words]
        return [sys.executable, "-m", "skylark", *words]

    def environment(self) -> dict[str, str]:
        return self._variables

    def wait_until_serving(self) -> None:
        """Not needed: it works when it works."""

    @property
    def pid(self) -> int:
        return self._running().pid


def descendants(*processes: int) -> list[int]:
    """What processes have started, and what that has started."""
    found: list[int] = []
    waiting = list(processes)
    while waiting:
        path = Path(f"/proc/{waiting.pop()}")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in path.glob("task/*/children"):
                waiting += map(int, task.read_text().split())
                found += map(int, task.read_text().split())
    return found


class Ledger:
    """What was acknowledged: the CRC of the body at each offset of each queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[MessageQueue, list[tuple[int, npt.NDArray[np.uint32]]]] = {}
        self.acknowledged = 0
        self.failed = 0
        self.archived = 0

    def note(self, sent: SentRows, crcs: npt.NDArray[np.uint32]) -> None:
        with self._lock:
            for part in sent.ranges:
                rows = crcs[part.rows[0] : part.rows[-1] + 1]
                if part.queue is None:
                    self.failed += len(rows)  # they may be stored all the same
                else:
                    self._parts.setdefault(part.queue, []).append((part.queue_offset, rows))
                    self.acknowledged += len(rows)

    def save(self, path: Path) -> None:
        """Write what is known, for a further run."""
        parts = [
            (queue, first, crcs.tobytes()) for queue, ranges in self._parts.items() for first, crcs in ranges
        ]
        path.write_bytes(msgspec.msgpack.encode(parts))

    def load(self, path: Path) -> None:
        parts = msgspec.msgpack.decode(path.read_bytes(), type=list[tuple[MessageQueue, int, bytes]])
        for queue, first, data in parts:
            crcs = np.frombuffer(data, np.uint32)
            self._parts.setdefault(queue, []).append((first, crcs))
            self.acknowledged += len(crcs)

    def lose(self, count: int) -> None:
        """Rows of which nothing is known."""
        with self._lock:
            self.failed += count

    def sums(self) -> dict[MessageQueue, tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]]:
        return {
            queue: (
                np.concatenate([np.arange(first, first + len(crcs)) for first, crcs in parts]),
                np.concatenate([crcs for _, crcs in parts]),
            )
            for queue, parts in self._parts.items()
        }


def send_all(
    namesrv: str, topics: Sequence[str], count: int, ledger: Ledger, seed: int, deadline: float
) -> None:
    """Send tables of random sizes to random topics, from two threads, until the deadline at most."""
    with Producer(namesrv=namesrv, group="proof") as producer, ThreadPoolExecutor(SENDERS) as pool:
        shares = [count // SENDERS + (number < count % SENDERS) for number in range(SENDERS)]
        for each in [
            pool.submit(send_share, producer, topics, share, ledger, seed + number, deadline)
            for number, share in enumerate(shares)
        ]:
            each.result()


def send_share(
    producer: Producer, topics: Sequence[str], count: int, ledger: Ledger, seed: int, deadline: float
) -> None:
    """Messages that fail are counted and left out of the ledger. The lake is never far behind.

    The topics are made by their first messages, the last ones when half of the messages are sent.
    """
    chance, left = random.Random(seed), count
    while left and time.monotonic() < deadline:
        if ledger.acknowledged - ledger.archived > BACKLOG_MAX:
            time.sleep(0.1)
            continue
        rows = min(left, chance.randint(1, ROWS_MAX))
        bodies = [
            b"%d " % number + FILLER[: chance.randrange(BODY_BYTES_MAX)]
            for number in range(left, left - rows, -1)
        ]
        made = min(1 + 2 * len(topics) * (count - left) // count, len(topics))
        crcs = np.fromiter(map(zlib.crc32, bodies), np.uint32, rows)
        left -= rows
        try:
            sent = producer.send_arrow({"body": bodies}, chance.choice(topics[:made]), timeout_ms=30_000)
            ledger.note(sent, crcs)
        except RowsFailed as error:
            ledger.note(error.result, crcs)
        except RocketMQError:
            ledger.lose(rows)
            time.sleep(0.2)  # the broker is away


def watch(stop: threading.Event, rules: LakeRules, ledger: Ledger) -> None:
    """Keep up with what the tables hold, as well as they can be read meanwhile."""
    while not stop.wait(1.0):
        with contextlib.suppress(Exception):  # the store is away, and its library has errors of its own
            ledger.archived = sum(sum(held_offsets(table, rules).values()) for table in rules.tables)


def held_offsets(table: LakeTable, rules: LakeRules) -> Offsets:
    return committed_offsets(open_table(table), rules.group)[0]


def torment(
    stop: threading.Event,
    chance: random.Random,
    victims: Sequence[Callable[[], None]],
    pause_s: float,
    counts: list[int],
) -> None:
    """Kill one of the victims, again and again."""
    while not stop.wait(chance.uniform(0.3, 1.7) * pause_s):
        number = chance.randrange(len(victims))
        victims[number]()
        counts[number] += 1


def faults_of(rules: LakeRules, ledger: Ledger, wire: ClusterClient) -> tuple[list[str], int, int]:
    """What is wrong with the tables, how many rows they have, and how many of them the log still holds."""
    faults: list[str] = []
    rows = in_log = 0
    known = ledger.sums()
    for table in rules.tables:
        log = open_table(table)
        ends, _ = committed_offsets(log, rules.group)
        found = table_sums(log)
        rows += sum(len(offsets) for offsets, _ in found.values())
        for queue, end in ends.items():
            offsets = found[queue][0] if queue in found else np.zeros(0, np.int64)
            if not np.array_equal(offsets, np.arange(end)):
                faults.append(f"{queue}: {len(offsets)} rows, not one for each offset below {end}")
        for queue, (offsets, sums) in known.items():
            if rules.table_of(queue.topic) is not table:
                continue
            kept = found[queue][1] if queue in found else np.zeros(0, np.uint32)
            if len(offsets) and (offsets.max() >= len(kept) or (kept[offsets] != sums).any()):
                faults.append(f"{queue}: an acknowledged message is missing or has another body")
        source = {"namesrv": rules.namesrv, "topic": table.source_topics, "failOnDataLoss": "false"}
        options = load(SourceOptions, source)
        kept_in_log = compare(log, options, wire.min_offsets(list(ends)), ends)
        faults += kept_in_log.faults
        in_log += kept_in_log.compared
    return faults, rows, in_log


def restart(server: Server | Servers, chance: random.Random) -> None:
    server.kill()
    time.sleep(chance.uniform(0, 1))
    while True:
        try:
            server.start()
        except ProcessFailed:
            server.kill()  # a busy machine: it was not ready in time
        else:
            return


def prove(
    home: Path,
    *,
    messages: int,
    topics: int,
    pause_s: float,
    seed: int,
    minutes: float = 60,
    with_spark: bool = False,
) -> dict[str, object]:
    """Run the whole; returns what happened. `faults` is empty if everything was as promised."""
    names = [f"{PREFIX}{number}" for number in range(topics)]
    chance, ledger, stop = random.Random(seed), Ledger(), threading.Event()
    counts = [0, 0, 0, 0]
    with (
        S3Server(home / "s3") as store,
        PipelineCluster(home / "cluster", SETTINGS) as cluster,
        contextlib.ExitStack() as stack,
    ):
        os.environ.update(variables(store.endpoint))
        spark = stack.enter_context(SparkCluster(home / "spark")) if with_spark else None
        known = home / "ledger"
        if known.exists():
            ledger.load(known)
        rules_file = home / "lake.yml"
        rules_file.write_text(RULES.format(namesrv=cluster.namesrv))
        lake = LakeProcess(home / "lake", rules_file, dict(os.environ), spark.master if spark else None)
        rules = load_rules(rules_file)

        def kill_worker() -> None:
            if found := descendants(lake.pid, *(spark.workers if spark else ())):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(found), signal.SIGKILL)

        started = time.monotonic()
        with lake:
            servers = (cluster.servers, store, lake)
            victims = [*(partial(restart, server, chance) for server in servers), kill_worker]
            killer = threading.Thread(target=torment, args=(stop, chance, victims, pause_s, counts))
            watcher = threading.Thread(target=watch, args=(stop, rules, ledger))
            killer.start()
            watcher.start()
            try:
                send_all(cluster.namesrv, names, messages, ledger, seed, started + minutes * 60)
            finally:
                stop.set()
                killer.join()
                watcher.join()
            sent_s = time.monotonic() - started
            ledger.save(known)
            wait_until_complete(cluster, rules)
            archived_s = time.monotonic() - started
        faults, rows, in_log = faults_of(rules, ledger, cluster.wire)
        deleted = sum(cluster.wire.min_offsets(queues_of(cluster)).values())
    return {
        "acknowledged": ledger.acknowledged,
        "unacknowledged": ledger.failed,
        "rows": rows,
        "compared_with_log": in_log,
        "deleted_from_log": deleted,
        "kills": dict(zip(("broker", "s3", "lake", "worker"), counts, strict=True)),
        "sent_s": round(sent_s, 1),
        "archived_s": round(archived_s, 1),
        "faults": faults,
    }


def queues_of(cluster: PipelineCluster) -> list[MessageQueue]:
    """The queues of all topics that were made."""
    topics = [topic for topic in cluster.wire.topics() if topic.startswith(PREFIX)]
    return [queue for topic in topics for queue in cluster.wire.queues(topic)]


def wait_until_complete(cluster: PipelineCluster, rules: LakeRules) -> None:
    """Raises AssertionError if the lake does not catch up."""
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        ends = cluster.wire.max_offsets(queues_of(cluster))
        held = {queue: at for table in rules.tables for queue, at in held_offsets(table, rules).items()}
        if all(held.get(queue, 0) == end for queue, end in ends.items()):
            return
        assert time.monotonic() < deadline, "the lake does not catch up"
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--topics", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=60, help="End sending then, at the latest.")
    parser.add_argument("--pause", type=float, default=5.0, help="Mean seconds between two kills.")
    parser.add_argument("--spark", action="store_true", help="Write with the tasks of a Spark cluster.")
    parser.add_argument("--home", type=Path, help="Keep log and tables here, and add to them.")
    parser.add_argument("--seed", type=int, default=round(time.time()))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lake-proof-") as temporary:
        report = prove(
            given.home or Path(temporary),
            messages=given.messages,
            topics=given.topics,
            pause_s=given.pause,
            seed=given.seed,
            minutes=given.minutes,
            with_spark=given.spark,
        )
    sys.stdout.write(json.dumps({"seed": given.seed, **report}, indent=2) + "\n")
    sys.exit(1 if report["faults"] else 0)


if __name__ == "__main__":
    main()
