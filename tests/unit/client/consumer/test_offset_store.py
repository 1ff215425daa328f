"""Progress: the table in memory, the file of broadcasting, and where a new queue begins."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.atomic_file import write_file
from skylark.client.consumer.broker_requests import read_reset_body
from skylark.client.consumer.offset_store import (
    BrokerOffsetStore,
    LocalOffsetStore,
    OffsetCommits,
    OffsetTable,
    decode_offsets,
    encode_offsets,
    local_offsets_path,
    open_offset_store,
)
from skylark.client.consumer.process_queue import PulledQueue
from skylark.client.consumer.pull_policy import (
    SuggestedBrokers,
    pull_flags,
    pull_status,
)
from skylark.client.consumer.start_offsets import StartQuery, start_offset
from skylark.client.session.routes import FoundBroker
from skylark.client.session.session import Session
from skylark.errors import BadStoreFile, BrokerError, BrokerUnknown, RemoteProtocolError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.offset import QueryConsumerOffset, UpdateConsumerOffset
from skylark.settings.client import ConsumeFrom, MessageModel, PushConsumerSettings
from tests.unit.client import fake_session

ONE, TWO = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_sf_042_the_larger_value_counts_when_asked() -> None:
    table = OffsetTable()
    table.update(ONE, 100, increase_only=True)
    table.update(ONE, 90, increase_only=True)
    assert table.get(ONE) == 100
    table.update(ONE, 90, increase_only=False)
    assert table.get(ONE) == 90


def test_a_frozen_offset_stays_until_it_is_removed() -> None:
    table = OffsetTable()
    table.freeze(ONE, 5)
    table.update(ONE, 50, increase_only=False)
    assert table.get(ONE) == 5
    table.remove(ONE)
    assert table.get(ONE) is None
    table.update(ONE, 50, increase_only=True)
    assert table.get(ONE) == 50


def test_sf_044_other_queues_are_forgotten() -> None:
    table = OffsetTable()
    table.update(ONE, 1, increase_only=True)
    table.update(TWO, 2, increase_only=True)
    assert table.of_topic("T") == {ONE: 1, TWO: 2}
    assert table.keep([ONE]) == {ONE: 1}
    assert table.get(TWO) is None


# --- The file ---


def test_the_file_is_the_java_client_s() -> None:
    text = encode_offsets({TWO: 7, ONE: 11110})
    assert text == (
        b'{\n\t"offsetTable":{\n\t\t{"brokerName":"b","queueId":0,"topic":"T"}:11110,'
        b'\n\t\t{"brokerName":"b","queueId":1,"topic":"T"}:7\n\t}\n}'
    )
    assert decode_offsets(text) == {ONE: 11110, TWO: 7}
    with pytest.raises(ValueError, match="body is not"):
        decode_offsets(b"[]")


QUEUES = st.builds(MessageQueue, st.text(max_size=5), st.text(max_size=5), st.integers(0, 9))


@given(offsets=st.dictionaries(QUEUES, st.integers(0, 2**62)))
def test_any_table_comes_back(offsets: dict[MessageQueue, int]) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets


async def test_the_file_lasts_and_survives_damage(tmp_path: Path) -> None:
    path = local_offsets_path(tmp_path, "10.0.0.1@DEFAULT", "G")
    assert path == tmp_path / "10.0.0.1@DEFAULT" / "G" / "offsets.json"
    store = LocalOffsetStore(path)
    await store.load()
    assert await store.read(ONE) is None
    store.table.update(ONE, 5, increase_only=True)
    store.table.update(TWO, 6, increase_only=True)
    await store.persist(ONE)
    await store.persist_all([ONE, TWO])
    store.table.update(ONE, 9, increase_only=True)
    await store.persist_all([ONE])
    again = LocalOffsetStore(path)
    await again.load()
    assert (await again.read(ONE), await again.read(TWO)) == (9, 6)
    assert again.table.get(ONE) == 9
    path.write_bytes(b"{torn")
    await again.load()
    assert await again.read(ONE) == 5
    path.with_name("offsets.json.bak").write_bytes(b"torn, too")
    with pytest.raises(BadStoreFile):
        await again.load()


async def test_a_write_that_is_cancelled_is_not_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a consumer its regular write may be cancelled: the last one must still be the last."""
    running = most = 0

    def slow(path: Path, data: bytes) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        write_file(path, data)
        running -= 1

    monkeypatch.setattr("skylark.client.consumer.offset_store.write_file", slow)
    store = LocalOffsetStore(tmp_path / "offsets.json")
    store.table.update(ONE, 1, increase_only=True)
    first = asyncio.create_task(store.persist(ONE))
    await asyncio.sleep(0.01)
    first.cancel()
    store.table.update(ONE, 2, increase_only=True)
    await store.persist(ONE)
    assert first.cancelled()
    assert most == 1
    assert decode_offsets((tmp_path / "offsets.json").read_bytes()) == {ONE: 2}


async def test_a_disk_that_refuses_does_not_stop_the_consumer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    store = LocalOffsetStore(tmp_path / "file" / "offsets.json")
    store.table.update(ONE, 5, increase_only=True)
    await store.persist(ONE)
    assert "offsets not persisted" in caplog.text


# --- Where to begin ---


@pytest.mark.parametrize(
    ("consume_from", "normal", "retry"),
    [
        (ConsumeFrom.LAST_OFFSET, StartQuery.MAX_OFFSET, 0),
        (ConsumeFrom.FIRST_OFFSET, 0, 0),
        (ConsumeFrom.TIMESTAMP, StartQuery.BY_TIMESTAMP, StartQuery.MAX_OFFSET),
    ],
)
def test_where_a_new_queue_begins(
    consume_from: ConsumeFrom, normal: int | StartQuery, retry: int | StartQuery
) -> None:
    assert start_offset(None, consume_from, "T") == normal
    assert start_offset(None, consume_from, "%RETRY%G") == retry
    assert start_offset(0, consume_from, "T") == 0
    assert start_offset(17, consume_from, "%RETRY%G") == 17


def test_sf_114_115_flags_of_a_pull() -> None:
    assert pull_flags(commit=False) == 2
    assert pull_flags(commit=True) == 3
    assert pull_flags(commit=True, subscription=True) == 7
    assert pull_flags(commit=False, subscription=True, lite=True) == 22


def test_codes_that_are_no_answer_to_a_pull() -> None:
    with pytest.raises(RemoteProtocolError, match="code 5"):
        pull_status(5)


def test_suggestions() -> None:
    suggested = SuggestedBrokers()
    assert suggested.get(ONE, 0.0) == 0
    suggested.note(ONE, 1)
    assert (suggested.get(ONE, 0.0), suggested.get(TWO, 0.0)) == (1, 0)
    suggested.note(ONE, 0)
    assert suggested.get(ONE, 0.0) == 0


def test_sf_117_a_replica_that_failed_is_avoided_for_a_while() -> None:
    suggested = SuggestedBrokers()
    for queue in (ONE, TWO):
        suggested.note(queue, 1)
    suggested.avoid(ONE.broker_name, 1, 100.0)
    suggested.note(ONE, 1)  # the master does not know
    assert (suggested.get(ONE, 100.0), suggested.get(TWO, 129.9)) == (0, 0)
    assert suggested.get(ONE, 130.0) == 1
    suggested.avoid(ONE.broker_name, 2, 130.0)
    assert suggested.get(ONE, 130.0) == 1


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"offsetTable":5}', b'{"offsetTable":[5]}', b'{"offsetTable":{"x":1}}',
             b'{"offsetTable":[{"topic":"T"}]}', b"\xff"]
)  # fmt: skip
def test_a_reset_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="body of a reset"):
        read_reset_body(body)


class SlowBrokers:
    """A session whose calls end when they are let go, and which knows what was under way together."""

    def __init__(self) -> None:
        self.routes = SimpleNamespace(readable=lambda name: SimpleNamespace(address=f"{name}:1"))
        self.asked: list[UpdateConsumerOffset] = []
        self.under_way = 0
        self._gate = asyncio.Semaphore(0)

    async def call(self, _: str, request: UpdateConsumerOffset, *, timeout_ms: int) -> None:
        self.asked.append(request)
        self.under_way += 1
        await self._gate.acquire()
        self.under_way -= 1

    async def answer(self, count: int) -> None:
        for _ in range(count):
            self._gate.release()
        await settled()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def queues(topic: str, count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, queue_id) for queue_id in range(count)]


async def test_the_first_commit_of_a_topic_goes_alone_and_all_others_together() -> None:
    brokers = SlowBrokers()
    session = cast("Session", brokers)
    commits = OffsetCommits(session, "CG", BrokerOffsetStore(session, "CG", 1000), 1000)
    all_queues = [*queues("A", 8), *queues("B", 8), *queues("A", 8, "broker-b")]

    def commit(queue_offset: int) -> asyncio.Future[Any]:
        return asyncio.gather(*(commits.commit(queue, queue_offset, wait=True) for queue in all_queues))

    first = commit(5)
    await settled()
    places = sorted((request.broker_name, request.topic) for request in brokers.asked)
    assert places == [("broker-a", "A"), ("broker-a", "B"), ("broker-b", "A")], "one of each"
    await brokers.answer(3)
    assert brokers.under_way == len(all_queues) - 3
    await brokers.answer(brokers.under_way)
    await first
    again = commit(6)
    await settled()
    assert brokers.under_way == len(all_queues)
    await brokers.answer(brokers.under_way)
    await again
    assert [request.commit_offset for request in brokers.asked] == [5] * len(all_queues) + [6] * len(
        all_queues
    )


async def test_a_first_commit_that_fails_is_followed_by_another_first_one() -> None:
    brokers = SlowBrokers()
    session = cast("Session", brokers)
    commits = OffsetCommits(session, "CG", BrokerOffsetStore(session, "CG", 1000), 1000)
    tasks = [asyncio.create_task(commits.commit(queue, 5, wait=True)) for queue in queues("A", 4)]
    await settled()
    tasks[0].cancel()
    await settled()
    assert len(brokers.asked) == 2
    await brokers.answer(1)
    assert len(brokers.asked) == 4
    await brokers.answer(2)
    await asyncio.gather(*tasks[1:])


async def test_sf_085_the_offset_store_keeps_what_it_is_told() -> None:
    class Kept(fake_session.FakeSession):
        async def answer(self, request: QueryConsumerOffset) -> int:
            if request.queue_id == 3:
                raise BrokerError(ResponseCode.QUERY_NOT_FOUND, "never heard of")
            return 100 + request.queue_id

    session: Any = Kept()
    store = BrokerOffsetStore(session, "G", timeout_ms=60_000)
    assert await store.read(fake_session.QUEUES[1]) == store.table.get(fake_session.QUEUES[1]) == 101
    assert await store.read(fake_session.QUEUES[3]) is None
    store.table.update(fake_session.QUEUES[1], 105, increase_only=True)
    store.table.update(fake_session.QUEUES[2], 7, increase_only=True)
    await store.persist(fake_session.QUEUES[1])
    await store.persist_all(fake_session.QUEUES[2:])
    told = [(request.queue_id, request.commit_offset) for request in session.told]
    assert told == [(1, 105), (2, 7)]
    assert all(isinstance(request, UpdateConsumerOffset) for request in session.told)
    assert store.table.get(fake_session.QUEUES[1]) is None, "queues that are not owned are forgotten"


# --- Failures, and commits of pull consumers ---


class Broker(fake_session.FakeSession):
    """Offsets by queue; `fault` is raised instead of an answer, `away` of its brokers cannot be found."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = 100
        self.fault: Exception | None = None
        self.away = 0
        self.refreshed: list[str] = []

    def readable(self, broker_name: str, broker_id: int = 0) -> FoundBroker:
        if self.away:
            self.away -= 1
            raise BrokerUnknown(broker_name)
        return super().readable(broker_name, broker_id)

    async def refresh_route(self, topic: str) -> None:
        self.refreshed.append(topic)

    async def answer(self, request: Any) -> int:
        if self.fault is not None:
            raise self.fault
        return self.offset

    async def notify(self, address: str, request: Any) -> None:
        if self.fault is not None:
            raise self.fault
        await super().notify(address, request)


def broker_store() -> tuple[Any, BrokerOffsetStore]:
    session: Any = Broker()
    return session, BrokerOffsetStore(session, "G", timeout_ms=60_000)


async def test_what_the_broker_says_replaces_what_is_in_memory_also_a_smaller_offset() -> None:
    session, store = broker_store()
    store.table.update(ONE, 500, increase_only=True)
    assert await store.read(ONE) == 100
    assert store.table.get(ONE) == 100
    [asked] = session.asked
    assert (asked.consumer_group, asked.topic, asked.queue_id, asked.broker_name) == ("G", "T", 0, "b")


async def test_only_a_missing_offset_is_none() -> None:
    session, store = broker_store()
    session.fault = BrokerError(ResponseCode.SYSTEM_ERROR, "out of order")
    with pytest.raises(BrokerError, match="out of order"):
        await store.read(ONE)
    assert store.table.get(ONE) is None


async def test_an_unknown_broker_is_looked_up_once() -> None:
    session, store = broker_store()
    session.away = 1
    assert await store.read(ONE) == 100
    assert session.refreshed == ["T"]
    session.away = 2
    with pytest.raises(BrokerUnknown):
        await store.read(ONE)


async def test_offsets_that_are_not_persisted_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    session, store = broker_store()
    told = session.told

    class Second(Broker):
        async def notify(self, address: str, request: Any) -> None:
            if len(told) == 1:
                raise BrokerUnknown("b")
            told.append(request)

    session.__class__ = Second
    for queue in (ONE, TWO, MessageQueue("T", "b", 2)):
        store.table.update(queue, 5, increase_only=True)
    await store.persist_all([ONE, TWO, MessageQueue("T", "b", 2)])
    assert "group=G queues=2" in caplog.text
    await store.persist(MessageQueue("T", "b", 9))  # without an offset
    await store.persist_all([])
    assert len(told) == 1
    assert store.table.get(ONE) == 5, "without queues nothing is forgotten"


async def test_a_broker_that_takes_no_offsets_is_left_after_the_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Deaf(Broker):
        async def notify(self, address: str, request: Any) -> None:
            await asyncio.sleep(3600)

    session: Any = Deaf()
    store = BrokerOffsetStore(session, "G", timeout_ms=20)
    store.table.update(ONE, 5, increase_only=True)
    async with asyncio.timeout(10):
        await store.persist(ONE)
    assert "not within 20 ms" in caplog.text


async def test_a_file_is_written_only_when_something_changed(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = LocalOffsetStore(path)
    await store.persist(ONE)  # without an offset
    await store.persist_all([])
    assert not path.exists()
    store.table.update(ONE, 5, increase_only=True)
    store.table.update(TWO, 6, increase_only=True)
    await store.persist_all([ONE, TWO])
    path.unlink()
    await store.persist_all([ONE, TWO])
    assert not path.exists()
    store.table.update(TWO, 7, increase_only=True)
    await store.persist_all([ONE, TWO])
    assert decode_offsets(path.read_bytes()) == {ONE: 5, TWO: 7}
    store.table.update(ONE, 9, increase_only=False)
    assert await store.read(ONE) == 5
    assert store.table.get(ONE) == 5


def test_the_store_is_that_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    session: Any = Broker()
    broadcasting = PushConsumerSettings(model=MessageModel.BROADCASTING)
    store = open_offset_store(session, "G", PushConsumerSettings())
    assert isinstance(store, BrokerOffsetStore)
    store = open_offset_store(session, "G", broadcasting)
    assert isinstance(store, LocalOffsetStore)
    assert store._path == tmp_path / "home" / ".rocketmq_offsets" / "me" / "G" / "offsets.json"
    store = open_offset_store(session, "G", replace(broadcasting, offset_directory=tmp_path))
    assert isinstance(store, LocalOffsetStore)
    assert store._path == tmp_path / "me" / "G" / "offsets.json"


def pulled(queue: MessageQueue, done: int | None) -> PulledQueue:
    held = PulledQueue(queue)
    held.done = done
    return held


async def test_progress_is_committed_once_and_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    session, store = broker_store()
    commits = OffsetCommits(session, "G", store, 60_000)
    await commits.commit_done([pulled(ONE, 7), pulled(TWO, None)])
    assert [(request.queue_id, request.commit_offset) for request in session.asked] == [(0, 7)]
    await commits.commit_done([pulled(ONE, 7)])
    assert len(session.asked) == 1
    session.fault = BrokerError(ResponseCode.SYSTEM_ERROR, "full")
    await commits.commit_done([pulled(ONE, 8)])
    assert "offset not committed" in caplog.text
    session.fault = None
    await commits.commit_done([pulled(ONE, 8)])
    assert [request.commit_offset for request in session.asked] == [7, 8, 8]
    assert session.told == []
    await commits.commit(ONE, 9, wait=False)
    assert [request.commit_offset for request in session.told] == [9]


async def test_released_queues_are_committed_once_and_anew_when_they_come_back() -> None:
    session, store = broker_store()
    commits = OffsetCommits(session, "G", store, 60_000)
    commits.release([pulled(ONE, 7), pulled(TWO, 8)])
    await commits.commit_released()
    await commits.commit_released()
    assert sorted(request.commit_offset for request in session.asked) == [7, 8]
    await commits.commit_done([pulled(ONE, 7)])  # another member may have committed something else
    assert len(session.asked) == 3
    async with asyncio.timeout(10):
        await commits.settle()


async def test_commits_of_broadcasting_go_to_the_file(tmp_path: Path) -> None:
    session: Any = Broker()
    store = LocalOffsetStore(tmp_path / "offsets.json")
    commits = OffsetCommits(session, "G", store, 60_000)
    await commits.commit(ONE, 7, wait=True)
    await commits.commit(ONE, 3, wait=True)
    assert decode_offsets((tmp_path / "offsets.json").read_bytes()) == {ONE: 3}
    assert session.asked == []


async def test_settling_waits_for_commits_in_flight() -> None:
    brokers = SlowBrokers()
    session = cast("Session", brokers)
    commits = OffsetCommits(session, "CG", BrokerOffsetStore(session, "CG", 1000), 1000)
    committing = asyncio.create_task(commits.commit(ONE, 5, wait=True))
    await settled()
    settling = asyncio.create_task(commits.settle())
    await settled()
    assert not settling.done()
    await brokers.answer(1)
    await committing
    await settling
