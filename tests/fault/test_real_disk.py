"""X1, X2 and X7 on a real disk: SIGKILL under load, a small tmpfs, RLIMIT_FSIZE, half-done calls."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.clock import SystemClock
from skylark.model.message import PutMessage, encode_properties
from skylark.settings import FlushMode, StoreSettings
from skylark.store.append_result import AppendedRecord, PutStatus
from skylark.store.disk import RealDisk
from skylark.store.message_store import MessageStore
from tests.fault.checker import check
from tests.fault.workload import Promises, Sent, small_settings

TMPFS_BYTES = 1 << 20

# Puts until it is killed, and says of each message where it is once it is acknowledged.
WRITER = """
    import sys
    from pathlib import Path
    from skylark.model.message import PutMessage, encode_properties
    from skylark.settings import FlushMode, StoreSettings
    from skylark.store.message_store import MessageStore
    from skylark.store.append_result import PutStatus

    path, mode, life = sys.argv[1:]
    store = MessageStore(StoreSettings(
        path=Path(path), flush_mode=FlushMode(mode), commit_log_file_bytes=65536,
        consume_queue_file_bytes=400, index_slots=50, index_items=200, message_bytes_max=4096,
        queue_flush_interval_ms=3, flush_interval_ms=5,
    ))
    store.open()
    store.start()
    for number in range(100_000):
        topic, queue_id = f"topic-{number % 2}", number % 3
        body = f"{life}-{number}".encode() + bytes(number % 700)
        properties = encode_properties({"TAGS": "red", "KEYS": f"key-{life}-{number}"})
        status, result = store.put(PutMessage(topic, queue_id, body, properties))
        assert status is PutStatus.PUT_OK, status
        print(topic, queue_id, result.queue_offset, result.physical_offset, result.size, number, flush=True)
"""


def settings_of_writer(path: Path, mode: FlushMode) -> StoreSettings:
    return StoreSettings(
        path=path,
        flush_mode=mode,
        commit_log_file_bytes=65536,
        consume_queue_file_bytes=400,
        index_slots=50,
        index_items=200,
        message_bytes_max=4096,
    )


def run_until_killed(path: Path, mode: FlushMode, life: int, messages: int) -> list[Sent]:
    """What the writer had acknowledged when SIGKILL met it."""
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), mode.value, str(life)]
    sent = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if not line.endswith("\n"):
                break
            topic, queue_id, queue_offset, physical_offset, size, number = line.split()
            body = f"{life}-{number}".encode() + bytes(int(number) % 700)
            place = (int(queue_id), int(queue_offset), int(physical_offset), int(size))
            sent.append(Sent(topic, *place, body, f"key-{life}-{number}", "red"))
            if len(sent) == messages:
                writer.send_signal(signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL
    return sent


@pytest.mark.parametrize("rounds", [4, pytest.param(12, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("mode", FlushMode)
def test_sigkill_under_load(tmp_path: Path, mode: FlushMode, rounds: int) -> None:
    """X1 and X2: nothing acknowledged is lost, round after round, and no offset is given out twice."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    sent: list[Sent] = []
    for life in range(rounds):
        sent += run_until_killed(tmp_path / "store", mode, life, rng.randrange(1, 120))
        places = [(each.topic, each.queue_id, each.queue_offset) for each in sent]
        assert len(set(places)) == len(places), "an offset was given out twice"
        store = MessageStore(settings_of_writer(tmp_path / "store", mode))
        report = store.open()
        assert not report.damages
        for each in sent:
            (message,) = store.get(each.topic, each.queue_id, each.queue_offset, 1).messages()
            assert (message.body, message.physical_offset) == (each.body, each.physical_offset)
        store.build_index()
        for each in rng.sample(sent, min(len(sent), 50)):
            assert [message.body for message in store.messages_by_key(each.topic, each.key)] == [each.body]
        store.close()


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte, where this machine lets us mount one."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    directory = tmp_path / "small"
    directory.mkdir()
    if mount is None or unmount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    options = ["-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(directory)]
    if subprocess.run([mount, *options], check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield directory
    finally:
        subprocess.run([unmount, "--lazy", str(directory)], check=True)


def test_a_full_file_system(small_tmpfs: Path) -> None:
    """X7: sends are refused, reads go on, room is noticed without a restart; no signal kills the process."""
    ballast = small_tmpfs / "ballast"
    ballast.write_bytes(bytes(TMPFS_BYTES // 2))
    settings = StoreSettings(
        path=small_tmpfs / "store",
        commit_log_file_bytes=1 << 16,
        consume_queue_file_bytes=4000,
        index_enabled=False,
        message_bytes_max=8192,
    )
    store = MessageStore(settings)
    store.open()
    bodies: list[bytes] = []
    while True:
        body = f"{len(bodies)} ".encode() * 500
        status, _ = store.put(PutMessage("alpha", 0, body))
        if status is not PutStatus.PUT_OK:
            break
        bodies.append(body)
    assert status in (PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.CREATE_MAPPED_FILE_FAILED)
    store.housekeeper.flush_quietly()
    assert [body_at(store, number) for number in range(len(bodies))] == bodies
    ballast.unlink()
    status, _ = store.put(PutMessage("alpha", 0, b"room again"))
    assert status is PutStatus.PUT_OK
    store.close()
    again = MessageStore(settings)
    assert not again.open().damages
    assert [body_at(again, number) for number in range(len(bodies) + 1)] == [*bodies, b"room again"]
    again.close()


def body_at(store: MessageStore, queue_offset: int) -> bytes:
    (message,) = store.get("alpha", 0, queue_offset, 1).messages()
    return message.body


# Files may not grow beyond a limit; SIGXFSZ is ignored, so the calls fail with EFBIG.
LIMITED = """
    import resource, signal, sys
    from pathlib import Path
    from skylark.errors import DiskFull
    from skylark.model.message import PutMessage
    from skylark.settings import StoreSettings
    from skylark.store.message_store import MessageStore

    path, log_bytes, queue_bytes, limit = Path(sys.argv[1]), *map(int, sys.argv[2:])
    store = MessageStore(StoreSettings(
        path=path, commit_log_file_bytes=log_bytes, consume_queue_file_bytes=queue_bytes, index_enabled=False,
        message_bytes_max=4096,
    ))
    store.open()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for number in range(100):
        status, _ = store.put(PutMessage("alpha", 0, b"%d " % number * 200))
        print(status.name)
    try:
        store.housekeeper.flush()
    except DiskFull as error:
        print("flush", type(error).__name__)
    print(store.get("alpha", 0, 0, 1).status.name)
"""


def run_limited(path: Path, log_bytes: int, queue_bytes: int, limit: int) -> list[str]:
    numbers = [str(number) for number in (log_bytes, queue_bytes, limit)]
    command = [sys.executable, "-c", textwrap.dedent(LIMITED), str(path), *numbers]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split("\n")[:-1]


def test_a_file_size_limit_on_the_log(tmp_path: Path) -> None:
    """The log's file cannot be made: every put is refused, and the process lives."""
    lines = run_limited(tmp_path / "store", 1 << 20, 4000, 1 << 16)
    assert set(lines[:100]) <= {"SERVICE_NOT_AVAILABLE", "CREATE_MAPPED_FILE_FAILED"}
    assert lines[-1] == "NO_MESSAGE_IN_QUEUE"


def test_a_file_size_limit_on_a_queue(tmp_path: Path) -> None:
    """A queue cannot be written: puts and reads go on, and a restart without the limit finds everything."""
    lines = run_limited(tmp_path / "store", 1 << 16, 1 << 20, 1 << 17)
    assert lines == ["PUT_OK"] * 100 + ["flush DiskFull", "FOUND"]
    settings = StoreSettings(
        path=tmp_path / "store",
        commit_log_file_bytes=1 << 16,
        consume_queue_file_bytes=1 << 20,
        index_enabled=False,
    )
    store = MessageStore(settings)
    store.open()
    assert [body_at(store, number) for number in range(100)] == [
        b"%d " % number * 200 for number in range(100)
    ]
    store.close()


def test_calls_that_do_half_of_what_they_were_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may read or write less than asked: the disk asks again until all is done."""
    rng = random.Random(3)
    pread, pwrite, pwritev = os.pread, os.pwrite, os.pwritev

    def some(length: int) -> int:
        return rng.randint(1, length) if length else 0

    monkeypatch.setattr(os, "pread", lambda file, length, at: pread(file, some(length), at))
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[: some(len(data))], at))
    monkeypatch.setattr(
        os,
        "pwritev",
        lambda file, parts, at: pwritev(file, [(joined := b"".join(parts))[: some(len(joined))]], at),
    )
    settings = small_settings(FlushMode.SYNC, path=tmp_path / "store")
    store = MessageStore(settings)
    store.open()
    sent = []
    for number in range(60):
        body = f"{number}".encode() * rng.randrange(1, 200)
        properties = encode_properties({"TAGS": "red", "KEYS": f"key-{number}"})
        (placed,) = store.append([PutMessage("alpha", 0, body, properties)])
        assert isinstance(placed, AppendedRecord)
        place = (placed.queue_offset, placed.physical_offset, placed.size)
        sent.append(Sent("alpha", 0, *place, body, f"key-{number}", "red"))
        if number == 30:
            store.flush_log()
            store.housekeeper.flush()
    store.close()
    # As after a crash that left the log alone: all is read again.
    shutil.rmtree(settings.path / "consumequeue")
    (settings.path / "checkpoint").unlink()
    (settings.path / "abort").touch()
    promises = Promises(tuple(sent), flushed=sent[-1].end)
    check(RealDisk(), settings, SystemClock(), promises, durable_only=True)
