"""Messages of every kind that a store can hold, for Apache's broker and client to read back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import lz4.frame
import zstandard
from zlib_ng import zlib_ng

from skylark.model.message import PutMessage, SystemFlag, encode_properties, pack_host
from skylark.model.record import BatchElement

QUEUES = 4
PLAIN_TOPIC = "FillPlain"
"""Also a topic of the Java driver: what it sends must continue our queues."""
KINDS_TOPIC = "Kinds"
DELAYED_TOPIC = "Delayed"
BATCH_TOPIC = "OurBatch"
LONG_TOPIC = "%RETRY%" + "g" * 130
"""More than 127 characters, which only retry topics may have, make a record of version 2."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TOPICS = {
    PLAIN_TOPIC: QUEUES,
    KINDS_TOPIC: QUEUES,
    DELAYED_TOPIC: QUEUES,
    BATCH_TOPIC: QUEUES,
    LONG_TOPIC: 1,
}
"""Those that a broker does not have by itself, with their queues."""

DELAY_LEVELS = (1, 18)
"""One second: due when a broker opens the store. Two hours: not due in a test."""
TAGS = ("", "TagA", "TagB", "order-created", "订单", "😀", "polygenelubricants")
BORN_V4 = pack_host("192.0.2.7", 40_000)
BORN_V6 = pack_host("2001:db8::7", 40_000)
BORN_TIMESTAMP = 1_700_000_000_000


class Maker:
    """Makes messages with distinct unique keys; the same seed makes the same messages."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self._made = 0

    def message(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        *,
        tags: str = "",
        keys: str = "",
        sys_flag: int = 0,
        born_host: bytes = BORN_V4,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        properties: Mapping[str, str] | None = None,
    ) -> PutMessage:
        self._made += 1
        text = {"UNIQ_KEY": f"{self.seed:016X}{self._made:016X}", "WAIT": "true"}
        text |= {"TAGS": tags} if tags else {}
        text |= {"KEYS": keys} if keys else {}
        return PutMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=encode_properties({**text, **(properties or {})}),
            flag=self.random.randint(-(1 << 31), (1 << 31) - 1),
            sys_flag=sys_flag,
            born_timestamp=BORN_TIMESTAMP + self._made,
            born_host=born_host,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
        )

    def plain(self, number: int) -> PutMessage:
        """An everyday message: some have tags, keys, an unusual property, a large body."""
        size = self.random.randrange(4000) if number % 10 == 0 else self.random.randrange(1, 300)
        return self.message(
            PLAIN_TOPIC,
            # Most go to one queue, so that it needs a second file.
            queue_id=self.random.choice((0, 0, 0, 1, 2, 3)),
            body=self.random.randbytes(size),
            tags=self.random.choice(TAGS),
            # Fewer than 64 messages share a key: a query gives no more.
            keys=f"our-{self.seed}-{number} near-{self.seed}-{number // 40} 键{number}" if number % 4 else "",
            properties={"имя": f"значение ∑ {number}"} if number % 5 == 0 else None,
        )


COMPRESSORS: dict[SystemFlag, Callable[[bytes], bytes]] = {
    SystemFlag.COMPRESSED: zlib_ng.compress,
    SystemFlag.COMPRESSED | SystemFlag.ZLIB: zlib_ng.compress,
    # Java's reader of LZ4 frames knows no blocks that depend on one another.
    SystemFlag.COMPRESSED | SystemFlag.LZ4: lambda body: lz4.frame.compress(body, block_linked=False),
    SystemFlag.COMPRESSED | SystemFlag.ZSTD: zstandard.ZstdCompressor().compress,
}


def packed(maker: Maker) -> Iterator[PutMessage]:
    """Compressed bodies of all kinds, small ones and such as are worth it."""
    for flag, compress in COMPRESSORS.items():
        for size in (10, 9000, 200_000):
            words = " ".join(f"word{maker.random.randrange(50)}" for _ in range(size // 4))
            yield maker.message(
                KINDS_TOPIC, 1, compress(words.encode()[:size]), tags="packed", sys_flag=int(flag)
            )


def odd_ones(maker: Maker) -> Iterator[PutMessage]:
    """Flags, hosts, bodies and topics that an ordinary client does not produce."""
    for flag in (SystemFlag.MULTI_TAGS, SystemFlag.NEED_UNWRAP):
        yield maker.message(KINDS_TOPIC, 0, b"flag", tags="TagA", sys_flag=int(flag))
    yield maker.message(KINDS_TOPIC, 0, b"", keys="empty-body")
    yield maker.message(KINDS_TOPIC, 0, maker.random.randbytes(200_000), keys="large-body")
    yield maker.message(KINDS_TOPIC, 0, b"born at v6", keys="born-v6", born_host=BORN_V6)
    yield maker.message(KINDS_TOPIC, 3, b"third try", keys="retried", reconsume_times=3)
    yield maker.message(KINDS_TOPIC, 3, b"long property", properties={"long": "x" * 30_000})
    yield maker.message(LONG_TOPIC, 0, b"version 2", tags="TagA", keys="long-topic")
    # A committed transaction message as old brokers wrote it: its type in the flags, but in its queue.
    yield maker.message(
        KINDS_TOPIC,
        2,
        b"committed",
        keys="committed",
        sys_flag=int(SystemFlag.TRANSACTION_COMMIT),
        prepared_transaction_offset=4711,
    )


def queueless(maker: Maker) -> Iterator[PutMessage]:
    """Prepared and rolled-back records of the old kind: in the log, in no queue."""
    for flag in (SystemFlag.TRANSACTION_PREPARED, SystemFlag.TRANSACTION_ROLLBACK):
        yield maker.message(KINDS_TOPIC, 2, b"no unit", keys=f"queueless-{int(flag)}", sys_flag=int(flag))


def delayed(maker: Maker, level: int) -> PutMessage:
    """A message that waits in the schedule topic for `DELAYED_TOPIC`."""
    return maker.message(
        SCHEDULE_TOPIC,
        level - 1,
        f"delayed by level {level}".encode(),
        tags="TagA",
        keys=f"delayed-{level}",
        properties={"DELAY": str(level), "REAL_TOPIC": DELAYED_TOPIC, "REAL_QID": "1"},
    )


def transactional(maker: Maker) -> Iterator[PutMessage]:
    """A half message and the op message that ends it, as brokers of today write them."""
    yield maker.message(
        HALF_TOPIC,
        0,
        b"half",
        keys="half",
        properties={
            "TRAN_MSG": "true",
            "PGROUP": "OurTransactions",
            "REAL_TOPIC": KINDS_TOPIC,
            "REAL_QID": "0",
        },
    )
    yield maker.message(OP_TOPIC, 0, b"0,", tags="d")


def batch(maker: Maker, size: int) -> tuple[PutMessage, list[BatchElement]]:
    """A client's batch: the batch's own message, and its members with their own properties."""
    members = [maker.plain(number) for number in range(size)]
    elements = [BatchElement(member.flag, member.body, member.properties) for member in members]
    return maker.message(BATCH_TOPIC, 1, b"", properties={"CLUSTER": "DefaultCluster"}), elements
