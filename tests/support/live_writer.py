"""A program that writes a store as fast as it can and cleans behind itself, until it is told or killed.

    python -m tests.support.live_writer DIRECTORY [CLEAN_INTERVAL_MS]

Everything is small and short, so that files come and go all the time. It prints a line when it has begun.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

from skylark.model.message import PutMessage, encode_properties
from skylark.settings import StoreSettings
from skylark.store.message_store import MessageStore

TOPICS = ("orders", "payments")
QUEUES = 2
BATCH = 20
SLOTS, ITEMS = 500, 2000


def settings(directory: Path, clean_interval_ms: int = 100) -> StoreSettings:
    """Files of a few hundred messages, deleted as soon as they are full."""
    return StoreSettings(
        path=directory,
        commit_log_file_bytes=64 * 1024,
        consume_queue_file_bytes=20 * 200,
        index_slots=SLOTS,
        index_items=ITEMS,
        flush_interval_ms=20,
        queue_flush_interval_ms=20,
        reserved_hours=0,
        delete_hours=";".join(map(str, range(24))),
        clean_first_delay_ms=0,
        clean_interval_ms=clean_interval_ms,
        delete_pause_ms=0,
        delete_files_max=3,
    )


def message(number: int) -> PutMessage:
    """Message `number` of all: topic, queue and queue offset follow from it."""
    return PutMessage(
        TOPICS[number % 2],
        number // 2 % QUEUES,
        f"{number // (2 * QUEUES)} ".encode() + bytes(number % 100),
        encode_properties({"TAGS": f"tag{number % 3}", "KEYS": f"key-{number}"}),
    )


def main(directory: Path, clean_interval_ms: int = 100) -> None:
    """Write until standard input ends, then close the store."""
    store = MessageStore(settings(directory, clean_interval_ms))
    store.open()
    store.start()
    sys.stdout.write("writing\n")
    sys.stdout.flush()
    number = 0
    while not _is_told_to_stop():
        results = store.append([message(each) for each in range(number, number + BATCH)])
        number += sum(result.status.name == "PUT_OK" for result in results)
        store.flush_log()
    store.close()


def _is_told_to_stop() -> bool:
    """Asking is also the pause between two batches."""
    return bool(select.select([sys.stdin], [], [], 0.002)[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
