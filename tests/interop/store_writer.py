"""Writes stores of ours: one with messages of every kind, and one until the process is killed.

    python -m tests.interop.store_writer STORE_DIR STORE_HOST_HEX RECEIPTS FLUSH_INTERVAL_MS

puts messages and appends a line to RECEIPTS for each that is acknowledged, until somebody kills it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from skylark.model.message import PutMessage, SystemFlag, pack_host
from skylark.model.message_id import offset_message_id
from skylark.model.record import BatchColumns, decode, encode
from skylark.store.append_result import AppendedRecord, PutResult
from skylark.store.message_store import MessageStore
from tests.interop import every_kind
from tests.interop.every_kind import BORN_V4, BORN_V6, KINDS_TOPIC, Maker
from tests.interop.store_driver import Json
from tests.interop.store_view import describe, settings

PLAIN_COUNT = 900
TAIL_COUNT = 100
GROUP_COUNT = 7
KILLED_SEED = 12
STORE_HOST = pack_host("127.0.0.1", 10911)
STORE_HOST_V6 = pack_host("2001:db8::20", 10911)


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """Where the store says that a message lies."""

    queue_offset: int
    physical_offset: int
    store_timestamp: int


@dataclass(frozen=True)
class Written:
    """A message that we put, and its place."""

    put: PutMessage
    receipt: Receipt
    store_host: bytes
    with_crc_property: bool = False

    @property
    def queueless(self) -> bool:
        """Prepared and rolled-back records are in no queue."""
        return bool(self.put.sys_flag & SystemFlag.TRANSACTION_PREPARED)

    @property
    def message_id(self) -> str:
        return offset_message_id(self.store_host, self.receipt.physical_offset)

    def expected(self) -> Json:
        """What a reader must get: told from what was put, not read from the store."""
        record = encode(
            self.put,
            queue_offset=self.receipt.queue_offset,
            physical_offset=self.receipt.physical_offset,
            store_timestamp=self.receipt.store_timestamp,
            store_host=self.store_host,
            with_crc_property=self.with_crc_property,
        )
        return describe(decode(record))


class Writer:
    """A store of ours, open for writing."""

    def __init__(self, store: MessageStore, store_host: bytes) -> None:
        self.store = store
        self._store_host = store_host

    def put(self, messages: Sequence[PutMessage]) -> list[Written]:
        """Append messages together; all must be taken."""
        return self._written(messages, self.store.append(messages))

    def put_batch(self, maker: Maker, size: int) -> list[Written]:
        """Append a client's batch of that size."""
        message, elements = every_kind.batch(maker, size)
        # The batch's properties come behind the member's own and win.
        members = [
            msgspec.structs.replace(
                message,
                body=element.body,
                flag=element.flag,
                properties=element.properties + message.properties,
            )
            for element in elements
        ]
        return self._written(members, self.store.append_batches([(message, BatchColumns.of(elements))])[0])

    def _written(self, messages: Sequence[PutMessage], results: Sequence[PutResult]) -> list[Written]:
        with_crc = self.store.settings.append_crc_property
        return [
            Written(message, _receipt(result), self._store_host, with_crc)
            for message, result in zip(messages, results, strict=True)
        ]


def _receipt(result: PutResult) -> Receipt:
    assert isinstance(result, AppendedRecord), result
    return Receipt(result.queue_offset, result.physical_offset, result.store_timestamp)


@contextmanager
def writing(store_dir: Path, store_host: bytes = STORE_HOST, **changes: Any) -> Iterator[Writer]:
    """A started store in which opening found nothing wrong, closed in order."""
    store = MessageStore(settings(store_dir, **changes), store_host=store_host)
    report = store.open()
    try:
        assert not report.problems, report.problems
        assert not report.damages, report.damages
        store.start()
        yield Writer(store, store_host)
    finally:
        store.close()


def write_every_kind(store_dir: Path, store_host: bytes) -> list[Written]:
    """A closed store with all kinds of records, written in three lives of it."""
    maker = Maker(11)
    messages = [maker.plain(number) for number in range(PLAIN_COUNT)]
    messages += every_kind.packed(maker)
    messages += every_kind.odd_ones(maker)
    messages += every_kind.queueless(maker)
    messages += every_kind.transactional(maker)
    messages += [every_kind.delayed(maker, level) for level in every_kind.DELAY_LEVELS]
    messages += [maker.plain(number) for number in range(PLAIN_COUNT, PLAIN_COUNT + TAIL_COUNT)]
    written: list[Written] = []
    with writing(store_dir, store_host) as writer:
        for start in range(0, len(messages), GROUP_COUNT):
            written += writer.put(messages[start : start + GROUP_COUNT])
        for size in (1, 5):
            written += writer.put_batch(maker, size)
    with writing(store_dir, STORE_HOST_V6) as writer:
        for born_host in (BORN_V4, BORN_V6):
            written += writer.put([maker.message(KINDS_TOPIC, 0, b"v6", keys="v6", born_host=born_host)])
    with writing(store_dir, store_host, append_crc_property=True) as writer:
        for number in range(3):
            written += writer.put([maker.message(KINDS_TOPIC, 3, b"with CRC", keys=f"crc-{number}")])
    return written


def write_until_killed(store_dir: Path, store_host: bytes, receipts: Path, flush_interval_ms: int) -> None:
    """Put everyday messages and record what was acknowledged, for ever."""
    maker = Maker(KILLED_SEED)
    encoder = msgspec.json.Encoder()
    number = 0
    intervals = {"flush_interval_ms": flush_interval_ms, "queue_flush_interval_ms": flush_interval_ms}
    with writing(store_dir, store_host, **intervals) as writer, receipts.open("ab", buffering=0) as file:
        while True:
            few = [maker.plain(number + more) for more in range(GROUP_COUNT)]
            number += GROUP_COUNT
            file.write(encoder.encode_lines([one.receipt for one in writer.put(few)]))
            # Room for the flushing threads, and no more messages than the reader has patience for.
            time.sleep(0.001)


def read_receipts(receipts: Path, store_host: bytes) -> list[Written]:
    """What the killed process put and saw acknowledged. Its last line may be torn."""
    whole = receipts.read_bytes().rpartition(b"\n")[0]
    maker = Maker(KILLED_SEED)
    return [
        Written(maker.plain(number), receipt, store_host)
        for number, receipt in enumerate(msgspec.json.Decoder(Receipt).decode_lines(whole))
    ]


if __name__ == "__main__":
    write_until_killed(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
