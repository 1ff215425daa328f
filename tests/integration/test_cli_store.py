"""`skylark` as people run it: real processes, also on a store that another process writes and cleans."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skylark.model.message import PutMessage
from skylark.store.disk import RealDisk
from skylark.store.message_store import MessageStore
from skylark.store.store_reader import StoreReader
from skylark.store.verification import verify
from tests.support.directory import fingerprint
from tests.support.live_writer import ITEMS, QUEUES, SLOTS, TOPICS
from tests.support.store import encoded_batch, message, opened, put_all, small_settings, unpack_golden

ROOT = Path(__file__).parent.parent.parent
LIVE_SECONDS = 5.0
GOLDEN_GEOMETRY = ("--index-slots", "500", "--index-items", "2000")
LIVE_GEOMETRY = ("--index-slots", str(SLOTS), "--index-items", str(ITEMS))


def skylark(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the installed command; its output is no terminal."""
    command = [str(Path(sys.executable).with_name("skylark")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@contextmanager
def live_writer(root: Path, *more: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes and cleans a store; it has begun."""
    command = [sys.executable, "-m", "tests.support.live_writer", str(root), *map(str, more)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == b"writing\n"
            yield writer
        finally:
            writer.kill()


@pytest.fixture
def live_root(tmp_path: Path) -> Iterator[Path]:
    """A store that another process writes as long as the test lasts; afterwards it must close in order."""
    root = tmp_path / "live"
    with live_writer(root) as writer:
        yield root
        assert writer.stdin is not None
        writer.stdin.close()
        assert writer.wait(60) == 0


def wait_until_cleaned(root: Path) -> StoreReader:
    """A reader of the store once its owner has deleted the first file of the log."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        reader = StoreReader(root, index_slots=SLOTS, index_items=ITEMS)
        if reader.min_physical_offset > 0:
            return reader
        time.sleep(0.05)
    raise AssertionError("the writer does not clean")


# A store under its owner's hands


def test_a_live_store_is_read_and_verified_while_it_is_written_and_cleaned(live_root: Path) -> None:
    """Files come and go between any two reads: nothing raises, nothing is wrong, nothing is out of order."""
    reader = wait_until_cleaned(live_root)
    deadline = time.monotonic() + LIVE_SECONDS
    rounds = seen = found_by_key = 0
    begun_at = reader.end_physical_offset
    while time.monotonic() < deadline or not (seen and found_by_key):
        reader.refresh()
        for queue in reader.queues():
            before = -1
            for stored in reader.messages(queue.topic, queue.queue_id):
                assert stored.queue_offset > before
                assert stored.body.split()[0] == str(stored.queue_offset).encode()
                before = stored.queue_offset
                seen += 1
                if seen % 100 == 0:
                    found_by_key += len(reader.by_key(stored.topic, stored.keys[0]))
        result = verify(reader)
        assert result.findings == []
        rounds += 1
    assert rounds > 3
    assert reader.end_physical_offset > begun_at
    assert reader.min_physical_offset > 0


def test_the_command_on_a_live_store(live_root: Path) -> None:
    wait_until_cleaned(live_root)
    document = json.loads(skylark("store", "info", live_root, *LIVE_GEOMETRY, "--json").stdout)
    assert document["running"] is True
    queues = [
        (topic["topic"], queue["queue_id"]) for topic in document["topics"] for queue in topic["queues"]
    ]
    assert queues == [(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)]
    verified = skylark("store", "verify", live_root, *LIVE_GEOMETRY)
    assert verified.returncode == 0, verified.stdout
    assert "The store is sound." in verified.stdout
    dumped = skylark("store", "dump", live_root, "-t", TOPICS[0], "--json")
    assert dumped.returncode == 0, dumped.stderr
    for line in map(json.loads, dumped.stdout.splitlines()):
        assert line["body"].split()[0] == str(line["offset"])


def test_a_killed_store_is_verified_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "killed"
    with live_writer(root):
        wait_until_cleaned(root)
    before = fingerprint(root)
    verified = skylark("store", "verify", root, *LIVE_GEOMETRY, "--json")
    assert verified.returncode == 0, verified.stdout
    assert "not closed" in json.loads(verified.stdout)["notes"][0]
    assert fingerprint(root) == before


# Apache's directories


def test_the_command_on_apaches_directories(golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    before = fingerprint(root)
    shown = skylark("store", "info", root, *GOLDEN_GEOMETRY)
    assert shown.returncode == 0
    assert "batchconsumequeue" not in shown.stdout, "batch consume queues are served"
    verified = skylark("store", "verify", root, *GOLDEN_GEOMETRY)
    assert verified.returncode == 0
    assert "The store is sound." in verified.stdout
    found = skylark("store", "dump", root, *GOLDEN_GEOMETRY, "-t", "TopicTest", "-k", "order-2", "--json")
    messages = [json.loads(line) for line in found.stdout.splitlines()]
    assert messages[0]["offset_message_id"] == "7F000002000051AF0000000000000210"
    assert all("order-2" in message["properties"]["KEYS"].split() for message in messages)
    exported = skylark("store", "export", root, "-t", "TopicCompressed", "-d", "-o", tmp_path / "bodies")
    assert exported.returncode == 0
    assert sum(path.is_file() for path in (tmp_path / "bodies").rglob("*")) == 9
    assert fingerprint(root) == before


# How it ends


def many_messages(root: Path) -> Path:
    settings = small_settings(root, commit_log_file_bytes=1 << 20, message_bytes_max=4096)
    with opened(settings, RealDisk()) as store:
        put_all(store, [message(body=b"x" * 500)] * 1500)
    return root


def test_nonsense_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    for arguments in (("info", tmp_path / "nowhere"), ("verify", tmp_path), ("dump", __file__)):
        done = skylark("store", *arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("skylark: ")


def dump_in_the_middle(root: Path) -> subprocess.Popen[bytes]:
    """A dump of which one line was read, and which has far more to say than the pipe takes."""
    command = [sys.executable, "-m", "skylark", "store", "dump", str(root), "--json"]
    dump = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert dump.stdout is not None
    assert dump.stdout.readline().startswith(b"{")
    return dump


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    dump = dump_in_the_middle(many_messages(tmp_path / "store"))
    dump.send_signal(signal.SIGINT)
    _, complaint = dump.communicate(timeout=60)
    assert (dump.returncode, complaint) == (130, b"skylark: interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    dump = dump_in_the_middle(many_messages(tmp_path / "store"))
    assert dump.stdout is not None
    assert dump.stderr is not None
    dump.stdout.close()
    complaint = dump.stderr.read()
    dump.stderr.close()
    assert (dump.wait(60), complaint) == (141, b"")


# A store with batch queues after a kill


def test_messages_of_batches_are_dumped_and_verified_after_a_kill(tmp_path: Path) -> None:
    store = MessageStore(small_settings(tmp_path / "store"), disk=RealDisk())
    store.queues.is_declared_batched = lambda topic: topic == "batched"
    store.open()
    for number in range(6):
        bodies = [b"%d" % (3 * number + member) for member in range(3)]
        batch = PutMessage("batched", 0, encoded_batch(bodies), b"UNIQ_KEY\x01u%d\x02" % number)
        store.append_batches([(batch, 3)])
        if number == 3:
            store.housekeeper.flush()  # the last batches are in the log only
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    store.close()
    geometry = ("--index-slots", "16", "--index-items", "24")
    for root, count in ((tmp_path / "killed", 12), (tmp_path / "store", 18)):
        dumped = skylark("store", "dump", root, *geometry, "-t", "batched", "--json")
        assert dumped.returncode == 0, dumped.stderr
        found = [json.loads(line) for line in dumped.stdout.splitlines()]
        assert [(line["offset"], line["body"]) for line in found] == [(n, str(n)) for n in range(count)]
        verified = skylark("store", "verify", root, *geometry, "--json")
        assert verified.returncode == 0, verified.stdout + verified.stderr
