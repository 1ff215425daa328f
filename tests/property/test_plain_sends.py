"""The compiled layout of plain sends is equal to the Python path: log, queues, replies, counters, failures.

Two brokers get the same bytes in the same pieces, one without the compiled module. Only the order of replies
to one read may differ. SKYLARK_SANITIZE=1 compiles it with sanitizers (see `test_no_sanitizer_complains`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.accelerator import build, compiler
from skylark.broker.broker import Broker
from skylark.broker.handlers import plain_sends
from skylark.broker.handlers.plain_sends import with_code
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.protocol.frame_templates import SendReplies
from skylark.remoting.server import Peer, RemotingServer
from skylark.settings import BrokerSettings, StoreSettings
from skylark.settings.store import FlushMode
from skylark.store.index import _key_hashes
from skylark.store.index_backlog import BacklogColumns, key_rows
from tests.support.clock import ManualClock

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
TOPIC = "Sends"
QUEUES = 4

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler with Python's headers")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module as it is in the source tree now, whether or not `make setup` has compiled it."""
    flags = SANITIZERS if os.environ.get("SKYLARK_SANITIZE") else ()
    path = build(tmp_path_factory.mktemp("compiled"), flags)
    spec = importlib.util.spec_from_file_location("skylark._compiled", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Wire(asyncio.Transport):
    """Remembers what a peer writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4000)})
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...


class CountedKeys:
    """Unique keys that two brokers make alike."""

    def __init__(self) -> None:
        self._next = 0

    def next(self, _: int) -> str:
        self._next += 1
        return f"BROKER{self._next:026}"


class Side:
    """A broker without sockets."""

    def __init__(self, directory: Path, *, takes_plain: bool, **store: Any) -> None:
        files = StoreSettings(path=directory, commit_log_file_bytes=1 << 20, index_enabled=False, **store)
        given_settings = BrokerSettings(store=files, advertised_host="127.0.0.1", port=10911, metrics_port=0)
        self.clock = ManualClock()
        self.broker = Broker(given_settings, clock=self.clock)
        self.broker.store.open()
        send_path: Any = self.broker.send_path
        send_path._unique_ids = CountedKeys()
        assert send_path.takes_plain
        if not takes_plain:
            send_path._plain = None
        self.server = RemotingServer(latencies=self.broker.latencies)
        self.log_end = 0
        self.taken = 0
        self.connect()

    def connect(self) -> None:
        self.peer = Peer(self.server, self.broker.main_routes())
        self.wire = Wire()
        self.peer.connection_made(self.wire)

    def receive(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            if not self.wire.closed:
                self.peer.data_received(piece)
                self.taken += self.peer._taken

    def changes(self) -> tuple[object, ...]:
        """Everything that requests have changed, and what was answered since the last call."""
        store, stats = self.broker.store, self.broker.stats
        log = [store.log.read(at, 1 << 20) for at in self._files()]
        queues = {key: (bytes(each.tail), each.next_offset, each.dirty) for key, each in store.queues.items()}
        counted = {
            topic: (each.count, each.size, list(each.larger)) for topic, each in stats.topic_puts.items()
        }
        sends = self.broker.send_path.waiting
        found = (
            split_frames(self.wire.written),
            self.wire.closed,
            str(self.peer._codec.failure),
            log,
            queues,
            counted,
            sends,
        )
        self.wire.written = b""
        if self.wire.closed:
            self.connect()
        return found

    def _files(self) -> list[int]:
        starts = self.broker.store.log.files.starts
        first = [start for start in starts if start + (1 << 20) > self.log_end]
        self.log_end = self.broker.store.log.appended
        return first


def split_frames(data: bytes) -> list[bytes]:
    """The frames in a definite order."""
    found, position = [], 0
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        found.append(data[position : position + 4 + length])
        position += 4 + length
    return sorted(found)


def frame(fields: dict[str, str], body: bytes, *, code: int = 310, opaque: Any = 1, **rest: Any) -> bytes:
    """A request as Java writes it; `rest` replaces members behind the fields."""
    members = {
        "code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON", "version": 479, **rest,
    }  # fmt: skip
    header = json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


PLAIN = {
    "a": "PG", "b": TOPIC, "c": AUTO_CREATE_TOPIC, "d": "4", "e": "0", "f": "0", "g": "1794719000000",
    "h": "0", "i": "UNIQ_KEY\x017F00000100\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
    "n": "broker-a",
}  # fmt: skip
TEXTS = st.one_of(
    st.just(PLAIN["i"]),
    st.lists(
        st.sampled_from(
            [
                "UNIQ_KEY\x01ABC123\x02", "UNIQ_KEY\x01odd key\x02", "UNIQ_KEY\x01\x02", "xUNIQ_KEY\x01A\x02",
                "TAGS\x01red\x02", "TAGS\x01\x02", "xTAGS\x01blue\x02", "TAGS\x01a rather long tag~\x02",
                "WAIT\x01true\x02", "WAIT\x01false\x02", "KEYS\x01k1 k2\x02", "own\x01value\x02",
                "DELAY\x013\x02", "TRAN_MSG\x01false\x02", "POP_CK\x01x\x02", "broken", "\x02", "",
                "é\x01ü\x02", 'q"\\\x01/\x02', "nul\x01\0\x02", "long\x01" + "x" * 500 + "\x02",
            ]
        ),
        max_size=4,
    ).map("".join),
)  # fmt: skip
NUMBERS = st.sampled_from(["0", "1", "3", "7", "01", "", "x", "256", "1793", "99999999999", "2147483648"])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    fields = {**PLAIN, "e": str(draw(st.integers(0, QUEUES)))}
    if draw(st.booleans()):
        fields["i"] = draw(TEXTS)
    body = draw(st.binary(min_size=1, max_size=20) | st.sampled_from([b"x" * 511, b"y" * 513, b"z" * 3000]))
    rest: dict[str, Any] = {"opaque": draw(st.integers(0, 1 << 31))}
    match draw(st.integers(0, 14)):
        case 0:
            fields[draw(st.sampled_from("defghjkm"))] = draw(NUMBERS)
        case 1:
            del fields[draw(st.sampled_from(sorted(fields)))]
        case 2:
            fields[draw(st.sampled_from(["l", "o", "zz", "bname"]))] = draw(st.sampled_from(["1", "x"]))
        case 3:
            fields["b"] = draw(st.sampled_from(["Other", "%RETRY%nobody", "", "Ünknown", "x" * 130]))
        case 4:
            rest |= draw(
                st.sampled_from(
                    [
                        {"flag": 2},
                        {"flag": 1},
                        {"remark": "r"},
                        {"opaque": -1},
                        {"language": "é"},
                        {"version": "x"},
                    ]
                )
            )
        case 5:
            rest["code"] = draw(st.sampled_from([10, 11, 320, 310310]))
        case 6:
            body = b""
        case _:
            pass
    made = frame(fields, body, **rest)
    if draw(st.integers(0, 30)) == 0:  # one damaged byte
        place = draw(st.integers(0, len(made) - 1))
        made = made[:place] + bytes([draw(st.integers(0, 255))]) + made[place + 1 :]
    return made


@st.composite
def reads(draw: st.DrawFn) -> list[bytes]:
    """Several frames as the network may cut them."""
    data = b"".join(draw(st.lists(frames(), min_size=1, max_size=12)))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


@pytest.fixture
def sides(compiled: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Side]]:
    monkeypatch.setattr(plain_sends, "_compiled", compiled, raising=False)
    monkeypatch.setattr(plain_sends, "is_compiled", True)

    def make(**store: Any) -> list[Side]:
        return [
            Side(tmp_path / str(takes_plain), takes_plain=takes_plain, **store)
            for takes_plain in (False, True)
        ]

    return make


@pytest.mark.parametrize("flush", FlushMode)
async def test_any_requests_have_the_same_effect(sides: Callable[..., list[Side]], flush: FlushMode) -> None:
    pure, taking = both = sides(flush_mode=flush)
    for side in both:  # creates the topic; its queues are known from then on
        side.receive([frame({**PLAIN, "e": str(number)}, b"first") for number in range(QUEUES)])

    @settings(deadline=None)
    @given(reads(), st.booleans())
    def check(pieces: list[bytes], is_flushed: bool) -> None:
        for side in both:
            side.receive(pieces)
            if is_flushed:
                side.broker.store.flush_log()
            else:
                side.clock.advance(60_000)
                side.broker.store.expire_waiters()
        assert pure.changes() == taking.changes()

    check()
    for side in both:
        side.receive([frame(PLAIN, b"one") + frame(PLAIN, b"two")])
    assert taking.taken > 1
    assert not pure.taken
    for side in both:
        side.broker.store.close()


async def test_a_burst_of_plain_sends_is_taken_whole(sides: Callable[..., list[Side]]) -> None:
    pure, taking = both = sides()
    for side in both:
        side.receive([frame({**PLAIN, "e": str(number)}, b"first") for number in range(QUEUES)])
    burst = b"".join(
        frame(
            {**PLAIN, "e": str(number % QUEUES), "i": f"UNIQ_KEY\x01K{number}\x02TAGS\x01t{number % 3}\x02"},
            b"x" * number,
        )
        for number in range(1, 1000)
    )
    for side in both:  # more than one file of the log
        for _ in range(5):
            side.receive([burst])
    assert taking.taken > 2 * 999, "what does not fit into the file is left to Python"
    assert len(taking.broker.store.log.files.starts) > 1
    assert pure.changes() == taking.changes()
    for side in both:
        side.broker.store.close()


@given(st.lists(st.tuples(TEXTS.map(str.encode), st.integers(-(1 << 31), (1 << 31) - 1)), max_size=5))
def test_unique_keys_have_the_same_index_rows(
    compiled: ModuleType, messages: list[tuple[bytes, int]]
) -> None:
    texts, prefixes = [text for text, _ in messages], [prefix for _, prefix in messages]
    columns = BacklogColumns(list(range(len(texts))), [0] * len(texts), prefixes, texts)
    hashes = compiled.unique_key_hashes(prefixes, texts)
    if hashes is None:
        assert not all(b"UNIQ_KEY\x017F" in text for text in texts), "plain messages are hashed"
    else:
        keys = key_rows(columns)
        assert (keys.physical_offsets, _key_hashes(keys)) == (columns.physical_offsets, hashes)


def test_a_call_during_another_has_a_message_of_its_own(compiled: ModuleType) -> None:
    """Brokers in several threads of a process: one runs on while the other computes a checksum."""

    def lay_out(data: bytes, checksum: Callable[[Any], int]) -> bytes:
        queue = SimpleNamespace(topic_part=b"\x05Sends", magic=1, queue_id=0, next_offset=0)
        _, _, records, *_ = compiled.lay_out_sends(
            data, {b"Sends/0": queue}, 0, 1 << 20, 1, 1 << 16, 1 << 20,
            bytes(8), bytes(8), b"", lambda *values: values, checksum, (b"",) * 6,
        )  # fmt: skip
        return bytes(records)

    def with_another(_: Any) -> int:
        lay_out(frame({**PLAIN, "i": "UNIQ_KEY\x01OTHER\x02"}, b"another body" * 1000), lambda _: 2)
        return 1

    sent = frame(PLAIN, b"body")
    assert lay_out(sent, with_another) == lay_out(sent, lambda _: 1)


def test_replies_with_another_code() -> None:
    replies = SendReplies(region="R%d", trace_on=False)
    stored = [
        [replies.stored(number, b"ID", 3, number, transaction_id=b"K", code=code) for number in range(3)]
        for code in (0, 10)
    ]
    assert with_code(b"".join(stored[0]), 10) == b"".join(stored[1])


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="preloads the sanitizer of gcc")
def test_no_sanitizer_complains() -> None:
    """The same requests, with the module compiled with AddressSanitizer."""
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {
        **os.environ, "SKYLARK_SANITIZE": "1", "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1", "PYTHONMALLOC": "malloc",
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not nightly", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR: AddressSanitizer" not in done.stderr
