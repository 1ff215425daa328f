"""A topic that is larger than all memory given to Spark is read and archived without growing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from skylark.model.message import PutMessage, pack_host
from skylark.settings import StoreSettings
from skylark.store.append_result import Refused
from skylark.store.message_store import MessageStore
from tests.support import spark_program

HERE = Path(__file__).parent
TOPIC = "large"
QUEUES = 4
BODY_BYTES = 4096
BATCH = 256
TOPIC_GIB = float(os.environ.get("SKYLARK_MEMORY_TEST_GIB", "10"))
"""How large the topic is; the disk must have room for it."""
DISK_RESERVE_BYTES = 4 << 30
DRIVER_MEMORY = "2g"
DRIVER_MIB_MAX = 2560
"""The heap, and what a JVM needs beside it."""
WORKER_MIB_MAX = 500
SCRIPT_TIMEOUT_S = 1500


def fill(directory: Path, total_bytes: int) -> int:
    """Write a store with a topic of so many bytes of bodies; return the count of its messages."""
    store = MessageStore(StoreSettings(path=directory))
    host = pack_host("127.0.0.1", 50_000)
    body = os.urandom(BODY_BYTES)
    properties = b"TAGS\x01A\x02KEYS\x01key\x02UNIQ_KEY\x017F00000100002A9F0000000000000000\x02WAIT\x01true"
    count = -(-total_bytes // BODY_BYTES)
    store.open()
    try:
        for first in range(0, count, BATCH):
            if store.refusal() is not None:  # too much waits for the disk
                store.flush_log()
            batch = [
                PutMessage(
                    topic=TOPIC,
                    queue_id=number % QUEUES,
                    body=body,
                    properties=properties,
                    born_timestamp=1_700_000_000_000 + number,
                    born_host=host,
                )
                for number in range(first, min(first + BATCH, count))
            ]
            assert not any(isinstance(result, Refused) for result in store.append(batch))
    finally:
        store.close()
    return count


@pytest.mark.nightly
@pytest.mark.timeout(SCRIPT_TIMEOUT_S + 900)
def test_a_large_topic_needs_little_memory(tmp_path: Path) -> None:
    total_bytes = int(TOPIC_GIB * (1 << 30))
    needed = total_bytes * 5 // 4 + DISK_RESERVE_BYTES
    if shutil.disk_usage(tmp_path).free < needed:
        pytest.skip(f"{needed >> 30} GiB of disk are needed; SKYLARK_MEMORY_TEST_GIB makes it less")
    store = tmp_path / "store"
    count = fill(store, total_bytes)
    try:
        script = str(HERE / "memory_session.py")
        command = [sys.executable, script, str(store), TOPIC, DRIVER_MEMORY, str(tmp_path)]
        output = spark_program.run(command, tmp_path / "script.log", SCRIPT_TIMEOUT_S)
    finally:
        shutil.rmtree(store)
    found = spark_program.last_object(output)
    print(found)  # noqa: T201
    assert (found["rows"], found["body_bytes"]) == (count, count * BODY_BYTES)
    assert found["archived"] == count
    assert found["worker_mib"] < WORKER_MIB_MAX
    assert found["driver_mib"] < DRIVER_MIB_MAX
