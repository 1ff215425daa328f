"""Many pulls on their way to a broker that keeps no order and answers as it likes: all rows, each once."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from skylark.arrow.decoder import Decoder
from skylark.pipelines.broker_source import BrokerSource
from skylark.pipelines.message_source import LossPolicy, OffsetRange
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.schema import arrow_schema, columns_schema
from skylark.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData, encode_body
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import Buffer, TypedCommand, encode
from skylark.protocol.connection import Command, Connection
from skylark.protocol.frame_templates import pull_reply_head
from skylark.protocol.requests.pull import PullMessage
from tests.support.store import message, opened, put_all, small_settings

COUNT = 3000
BROKER = "b"
DECODER = Decoder(arrow_schema(columns_schema(["topic", "queueOffset", "body"])))


def records_of(body_bytes: int, count: int) -> list[bytes]:
    wide: dict[str, Any] = {"commit_log_file_bytes": 64 << 20, "consume_queue_file_bytes": 20 * 4000}
    with opened(small_settings(message_bytes_max=1 << 20, **wide)) as store:
        put_all(store, [message(body=b"x" * body_bytes) for _ in range(count)])
        records: list[bytes] = []
        while len(records) < count:
            found = store.get("T", 0, len(records), 32).records
            records += [bytes(record) for record in found]
        return records


class MoodyBroker:
    """Name server and broker of one topic, on threads. `moods` say when it does what nobody expects."""

    def __init__(self, records: list[bytes], moods: random.Random, answer_bytes_max: int = 1 << 30) -> None:
        self._records = records
        self._moods = moods
        self._answer_bytes_max = answer_bytes_max
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.pulls_at_once: list[int] = []
        self.is_stopped = threading.Event()
        self._whims_left = {"lose": 2, "busy": 2, "short": 4}

    def serve(self) -> None:
        """Until it is told to stop, each connection on a thread of its own."""
        self._listener.settimeout(0.05)
        with self._listener:
            while not self.is_stopped.is_set():
                with suppress(TimeoutError):
                    connected, _ = self._listener.accept()
                    connected.settimeout(None)
                    threading.Thread(target=self._serve_one, args=(connected,), daemon=True).start()

    def _has_whim(self, whim: str, chance: float) -> bool:
        has_it = self._whims_left[whim] > 0 and self._moods.random() < chance
        self._whims_left[whim] -= has_it
        return has_it

    def _serve_one(self, connected: socket.socket) -> None:
        codec: Connection[None] = Connection(typed=True)
        with connected:
            while data := connected.recv(1 << 16):
                commands = codec.receive(data)
                pulls = [command for command in commands if isinstance(command, TypedCommand)]
                if pulls:
                    self.pulls_at_once.append(len(pulls))
                answers = [self._answer(command) for command in commands]
                if pulls and self._has_whim("lose", 0.2):
                    return  # and what was asked is lost
                self._moods.shuffle(answers)
                connected.sendall(b"".join(part for answer in answers for part in answer))

    def _answer(self, command: Command) -> list[Buffer]:
        if not isinstance(command, TypedCommand):
            route = TopicRouteData(
                broker_datas=[BrokerData(BROKER, "c", {0: self.address})],
                queue_datas=[QueueData(BROKER, 1, 1, 6)],
            )
            return encode(command.reply(body=encode_body(route)))
        if self._has_whim("busy", 0.02):
            return encode(command.reply(ResponseCode.SYSTEM_BUSY, "not now"))
        pull: PullMessage = command.request
        count = pull.max_msg_nums
        if self._has_whim("short", 0.02):
            count = self._moods.randint(1, count)
        found = self._records[pull.queue_offset : pull.queue_offset + count]
        while sum(map(len, found)) > self._answer_bytes_max:
            found.pop()
        head = pull_reply_head(
            command.opaque, code=0, remark="FOUND", next_begin_offset=pull.queue_offset + len(found),
            min_offset=0, max_offset=len(self._records), body_bytes=sum(map(len, found)),
        )  # fmt: skip
        return [head, *found]


@contextmanager
def moody_broker(
    records: list[bytes], moods: random.Random, answer_bytes_max: int = 1 << 30
) -> Iterator[MoodyBroker]:
    broker = MoodyBroker(records, moods, answer_bytes_max)
    thread = threading.Thread(target=broker.serve, daemon=True)
    thread.start()
    yield broker
    broker.is_stopped.set()
    thread.join()


class Steady(random.Random):
    """In no mood at all."""

    def random(self) -> float:
        return 0.5  # above the chance of every whim


def read(broker: MoodyBroker, count: int, *, bulk: bool = False) -> list[int]:
    options = load(SourceOptions, {"namesrv": broker.address, "topic": "T", "bulkPulls": str(bulk).lower()})
    origin = BrokerSource(options)
    try:
        wanted = OffsetRange(MessageQueue("T", BROKER, 0), 0, count)
        return [
            queue_offset
            for records in origin.read(wanted, LossPolicy(options))
            for queue_offset in DECODER.batch(records, BROKER)["queueOffset"].to_pylist()
        ]
    finally:
        origin._cluster.close()


@pytest.mark.parametrize("seed", range(4))
def test_every_message_comes_once_and_in_order(seed: int) -> None:
    with moody_broker(records_of(20, COUNT), random.Random(seed)) as broker:
        assert read(broker, COUNT) == list(range(COUNT))


@pytest.mark.parametrize(("body_bytes", "count", "at_once_max"), [(20, COUNT, 64), (6000, 1200, 16)])
def test_of_large_answers_fewer_are_on_their_way(body_bytes: int, count: int, at_once_max: int) -> None:
    with moody_broker(records_of(body_bytes, count), Steady()) as broker:
        assert read(broker, count) == list(range(count))
    assert max(broker.pulls_at_once) <= at_once_max


@pytest.mark.parametrize("sizes", [[1000], [1000, 20], [20, 5000, 20]])
def test_hardly_anything_is_asked_for_in_vain(sizes: list[int]) -> None:
    """An answer that is shorter than was asked for makes those behind it useless."""
    records = [record for size in sizes for record in records_of(size, COUNT // len(sizes))]
    records = [_placed_at(record, queue_offset) for queue_offset, record in enumerate(records)]
    answer_bytes_max = 64 << 10
    with moody_broker(records, Steady(), answer_bytes_max) as broker:
        assert read(broker, len(records), bulk=True) == list(range(len(records)))
    needed = sum(map(len, records)) / answer_bytes_max
    assert sum(broker.pulls_at_once) <= 1.2 * needed + 8 * len(sizes)


def _placed_at(record: bytes, queue_offset: int) -> bytes:
    return record[:20] + queue_offset.to_bytes(8, "big") + record[28:]
