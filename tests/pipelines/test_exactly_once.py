"""`delivery=exactly-once`: whatever is killed and whenever, consumers see every row of a batch once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import ConnectionLost, NoRoute, SettingsError
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.row_transactions import (
    BatchRecord,
    BatchTransaction,
    CommitTopic,
    Staged,
    valid_records,
)
from skylark.pipelines.sink import Identity, SinkOptions, check_columns, read_options, stage_rows
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.remoting.blocking_connection import BlockingConnection, FramedRequest, PendingReply
from tests.pipelines.test_sink_rows import schema
from tests.pipelines.test_sink_sending import running
from tests.support.broker import BrokerClient

COMMITS = "skylark-spark-commits"
PARTITIONS = 2
QUEUES = 4


class Killed(BaseException):
    """The process of a task or driver is gone; nothing of it runs any more."""


class Fuse:
    """Burns down by one with every request; then what is left to do never happens."""

    def __init__(self, requests: int, error: Callable[[], BaseException], *, is_heard: bool) -> None:
        self.left = requests
        self.error = error
        self.is_heard = is_heard
        """Whether the broker still gets the last request."""


T = TypeVar("T")


class MortalConnection(BlockingConnection):
    def __init__(self, address: str, fuse: Fuse) -> None:
        super().__init__(address)
        self._fuse = fuse

    def ask_many(
        self, requests: Sequence[FramedRequest[T]], *, timeout_s: float = 30
    ) -> list[PendingReply[T]]:
        self._fuse.left -= len(requests)
        if self._fuse.left < 0:
            if self._fuse.is_heard and self._fuse.left == -1:
                super().ask_many(requests, timeout_s=timeout_s)
            self.close()
            raise self._fuse.error()
        return super().ask_many(requests, timeout_s=timeout_s)


class MortalClient(ClusterClient):
    """A client that dies after some requests."""

    def __init__(self, name_servers: str, fuse: Fuse) -> None:
        super().__init__(name_servers, retry_timeout_s=0)
        self._fuse = fuse

    def connection(self, address: str) -> BlockingConnection:
        if address not in self._connections:
            self._connections[address] = MortalConnection(address, self._fuse)
        return self._connections[address]


class Query:
    """What Spark does with the sink for one batch of two partitions, one of which is run twice."""

    def __init__(self, brokers: ClusterClient, scope: str, topic: str = "T") -> None:
        self.brokers = brokers
        self.scope = scope
        self.options: SinkOptions = read_options(
            {"namesrv": "h:1", "topic": topic, "delivery": "exactly-once", "attemptsMax": "1"}
        )
        self.staged: list[Staged] = []

    def transaction(self) -> BatchTransaction:
        group = self.options.producer_group
        return BatchTransaction(self.brokers, CommitTopic(self.brokers, COMMITS, group), group)

    def stage(self, batch: int, partition: int) -> Staged:
        bodies = [f"{self.scope} {batch} {partition} {row}".encode() for row in range(2)]
        rows = iter([pa.RecordBatch.from_arrays([pa.array(bodies)], names=["body"])])
        return stage_rows(rows, self.options, Identity(self.scope, str(batch), partition), self.brokers)

    def run(self, batch: int) -> None:
        self.stage(batch, 0)  # a speculative copy: Spark hears of the other
        self.staged = []
        for partition in range(PARTITIONS):
            self.staged.append(self.stage(batch, partition))
        self.transaction().commit(self.staged, is_stream=True)

    def bodies(self, batch: int) -> list[bytes]:
        return [
            f"{self.scope} {batch} {part} {row}".encode() for part in range(PARTITIONS) for row in range(2)
        ]


def run_killed(name_server: str, scope: str, fuse: Fuse) -> bool:
    """Run a batch that is killed, then run it again and go on; return whether it was killed."""
    first = Query(MortalClient(name_server, fuse), scope)
    is_cut = False
    try:
        first.run(0)
    except Killed:
        is_cut = True
    except ConnectionLost:
        is_cut = True
        alive = Query(ClusterClient(name_server), scope)
        alive.transaction().abort(first.staged)  # as Spark does when a batch fails but the driver lives
        alive.brokers.close()
    finally:
        first.brokers.close()
    again = Query(ClusterClient(name_server), scope)
    again.run(0)
    again.run(1)
    again.brokers.close()
    return is_cut


@pytest.mark.parametrize(
    ("is_driver_alive", "is_heard"),
    [
        pytest.param(False, True, id="killed, last request heard"),
        pytest.param(False, False, id="killed", marks=pytest.mark.nightly),
        pytest.param(True, True, id="failed, last request heard", marks=pytest.mark.nightly),
        pytest.param(True, False, id="failed", marks=pytest.mark.nightly),
    ],
)
async def test_every_row_is_seen_once_wherever_a_batch_is_cut(
    tmp_path: Path, is_driver_alive: bool, is_heard: bool
) -> None:
    def error() -> BaseException:
        return ConnectionLost("the broker") if is_driver_alive else Killed()

    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        await asyncio.to_thread(create_topics, names.address, broker.address)
        scopes: list[str] = []
        is_cut = True
        while is_cut:
            scopes.append(f"after {len(scopes)}")
            fuse = Fuse(len(scopes) - 1, error, is_heard=is_heard)
            is_cut = await asyncio.to_thread(run_killed, names.address, scopes[-1], fuse)
        seen = Counter([each.body for queue in range(QUEUES) for each in await client.pull_all("T", queue)])
    assert len(scopes) > 20, "a batch makes more requests than that"
    query = Query(ClusterClient("h:1"), "")
    for scope in scopes:
        query.scope = scope
        for batch in (0, 1):
            assert {body: seen.pop(body) for body in query.bodies(batch)} == dict.fromkeys(
                query.bodies(batch), 1
            )
    assert not seen


def create_topics(name_server: str, broker: str) -> None:
    """Returns when the name server knows them."""
    cluster = ClusterClient(name_server)
    for topic, queues in ((COMMITS, 1), ("T", QUEUES)):
        request = UpdateAndCreateTopic(
            topic, AUTO_CREATE_TOPIC, queues, queues, perm=6, topic_filter_type="SINGLE_TAG", order=False
        )
        cluster.connection(broker).call(request)
    deadline = time.monotonic() + 60
    while not has_topics(cluster):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    cluster.close()


def has_topics(cluster: ClusterClient) -> bool:
    try:
        return all(cluster.queues(topic, refresh=True) for topic in (COMMITS, "T"))
    except NoRoute:
        return False


async def test_of_two_drivers_one_commits_and_a_late_one_is_told(tmp_path: Path) -> None:
    def run(name_server: str) -> None:
        old, new = (Query(ClusterClient(name_server), "query") for _ in range(2))
        stale = [old.stage(0, partition) for partition in range(PARTITIONS)]
        new.run(0)
        old.transaction().commit(stale, is_stream=True)
        new.run(1)
        with pytest.raises(SettingsError, match="batch 0 of query comes after batch 1 was committed"):
            old.transaction().commit(stale, is_stream=True)
        old.transaction().abort(stale)
        for query in (old, new):
            query.brokers.close()

    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        await asyncio.to_thread(create_topics, names.address, broker.address)
        await asyncio.to_thread(run, names.address)
        seen = Counter([each.body for queue in range(QUEUES) for each in await client.pull_all("T", queue)])
    query = Query(ClusterClient("h:1"), "query")
    assert seen == Counter([*query.bodies(0), *query.bodies(1)])


async def test_the_commit_topic_has_one_queue(tmp_path: Path) -> None:
    def run(name_server: str) -> None:
        brokers = ClusterClient(name_server)
        with pytest.raises(SettingsError, match="skylark topic create missing --queues 1"):
            CommitTopic(brokers, "missing", "g")
        with pytest.raises(SettingsError, match="topic T has 4 queues"):
            CommitTopic(brokers, "T", "g")
        brokers.close()

    async with running(tmp_path) as (names, broker):
        await asyncio.to_thread(create_topics, names.address, broker.address)
        await asyncio.to_thread(run, names.address)


def test_order_and_keys_are_refused_with_exactly_once() -> None:
    options = {"namesrv": "h:1", "topic": "T", "delivery": "exactly-once"}
    with pytest.raises(SettingsError, match="does not keep order"):
        check_columns(schema("body binary, shardingKey string"), read_options(options))
    with pytest.raises(SettingsError, match="is not needed with delivery=exactly-once"):
        read_options({**options, "exactlyOnce": "keys"})


RECORDS = st.lists(
    st.builds(BatchRecord, st.just("q"), st.integers(0, 1), st.lists(st.integers(0, 3)), st.booleans())
)


@given(RECORDS)
def test_the_first_record_decides_unless_its_rows_were_given_up_before(records: list[BatchRecord]) -> None:
    found = valid_records(enumerate(records))
    for batch, (offset, record) in found.items():
        assert records[offset] is record
        before = records[:offset]
        assert not any(each.is_void and set(each.manifests) & set(record.manifests) for each in before)
        assert batch not in valid_records(enumerate(before))
    # More records change nothing about what is decided.
    assert valid_records(enumerate([*records, *records])) | found == valid_records(
        enumerate([*records, *records])
    )
