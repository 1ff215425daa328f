"""The compiled layout of plain sends is equal to the Python path: log, queues, replies, counters, failures,
and what is refused if senders must sign.

Two brokers get the same bytes in the same pieces, one without the compiled module. Only the order of replies
to one read may differ. SKYLARK_SANITIZE=1 compiles it with sanitizers (see `test_no_sanitizer_complains`).
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.accelerator import compiler
from skylark.auth.access_control import AccessControl
from skylark.auth.model import Acl, AclEntry, Action, Resource, User
from skylark.broker.broker import Broker
from skylark.broker.handlers import plain_sends
from skylark.broker.handlers.plain_sends import with_code
from skylark.model.message import SCHEDULE_TOPIC
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.protocol.bodies import TopicConfig
from skylark.protocol.command import RemotingCommand
from skylark.protocol.frame_templates import SendReplies
from skylark.protocol.signature import LIBCRYPTO, Signer
from skylark.remoting.server import Peer, RemotingServer
from skylark.settings import BrokerSettings, StoreSettings
from skylark.settings.auth import AuthSettings
from skylark.settings.broker import TransactionSettings
from skylark.settings.credentials import Credentials
from skylark.settings.store import FlushMode
from skylark.store.index import _key_hashes
from skylark.store.index_backlog import BacklogColumns, key_rows
from skylark.store.queue_entry import ENTRY
from skylark.store.tail_reader import slices
from tests.support.clock import ManualClock

TOPIC = "Sends"
BATCHED = "Batched"
"""A BatchCQ topic."""
QUEUES = 4
ROOT, USER, OTHER = [Credentials(name, f"{name}-secret") for name in ("root", "user", "other")]
"""A super user, one who may send to the topic, and one who may send to another."""

needs_libcrypto = pytest.mark.skipif(LIBCRYPTO is None, reason="hashlib has no libcrypto of its own")
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler with Python's headers")


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

    def __init__(
        self, directory: Path, *, takes_plain: bool, auth: dict[str, Any] | None = None, **store: Any
    ) -> None:
        """With settings for `auth`, requests must be signed."""
        files = StoreSettings(path=directory, commit_log_file_bytes=1 << 20, index_enabled=False, **store)
        given_settings = BrokerSettings(store=files, advertised_host="127.0.0.1", port=10911, metrics_port=0)
        self.clock = ManualClock()
        self.broker = Broker(given_settings, clock=self.clock)
        self.broker.store.open()
        self.broker.transactions.load()
        send_path: Any = self.broker.send_path
        send_path._unique_ids = CountedKeys()
        assert send_path.takes_plain
        if not takes_plain:
            send_path._plain = None
        self.control = None if auth is None else self._access_control(directory, auth)
        gate = None if self.control is None else self.control.gate
        self.server = RemotingServer(latencies=self.broker.latencies, gate=gate)
        self.log_end = 0
        self.taken = 0
        self.connect()
        self.create_queues()

    def _access_control(self, directory: Path, auth: dict[str, Any]) -> AccessControl:
        given_settings = AuthSettings(enabled=True, authorization=True, **auth)
        control = AccessControl(given_settings, directory / "auth", self.clock, cluster="C")
        for each in (ROOT, USER, OTHER):
            control.store.put_user(User(each.access_key, each.secret_key, is_super=each is ROOT))
        for name, topics in ((USER.access_key, (TOPIC, BATCHED)), (OTHER.access_key, ("Other",))):
            resources = [Resource.parse(f"Topic:{topic}") for topic in topics]
            entries = [AclEntry(each, frozenset({Action.PUB}), True) for each in resources if each]
            control.store.put_acl(Acl(name, tuple(entries)))
        return control

    def create_queues(self) -> None:
        """Create the topics. With the second message to a queue, it and its sender are known."""
        config = TopicConfig(BATCHED, QUEUES, QUEUES, attributes={"+queue.type": "BatchCQ"})
        self.broker.topics.update(config, now_ms=self.clock.now_ms())
        fields = [{**PLAIN, "e": str(number)} for number in range(QUEUES)]
        fields += [
            {**each, "i": f"{each['i']}DELAY\x01{level}\x02"}
            for each, level in zip(fields, (1, 3, 18, 2), strict=True)
        ]
        fields.append({**PLAIN, "i": PLAIN["i"] + HALF})
        for user in (ROOT, USER):
            self.receive([frame(signed(each, b"x", user) if self.control else each, b"x") for each in fields])
            batch = element(b"x", b"") * 3
            for each in fields[:QUEUES]:
                sent = {**each, "b": BATCHED, "m": "true"}
                self.receive([frame(signed(sent, batch, user) if self.control else sent, batch, code=320)])

    def close(self) -> str:
        """Return the audit log."""
        self.broker.store.close()
        if self.control is None:
            return ""
        self.control.close()
        path = self.control.audit.path
        return path.read_text() if path.exists() else ""

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
        gate = None if self.control is None else self.control.gate
        latencies = {kind: sum(each.counts) for kind, each in self.broker.latencies.table.items()}
        found = (
            split_frames(self.wire.written),
            self.wire.closed,
            str(self.peer._codec.failure),
            log,
            queues,
            counted,
            sends,
            {kind: count for kind, count in latencies.items() if count},
            None if gate is None else dict(gate.refusals),
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


def signed(fields: dict[str, str], body: bytes, user: Credentials) -> dict[str, str]:
    """The fields with the signature of a user."""
    command = RemotingCommand(code=310, fields=dict(fields), body=body)
    Signer(user).sign(command)
    return command.fields


def element(body: bytes, text: bytes, flag: int = 0) -> bytes:
    """A message of a batch."""
    size = 22 + len(body) + len(text)
    return struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body + struct.pack(">H", len(text)) + text


PLAIN = {
    "a": "PG", "b": TOPIC, "c": AUTO_CREATE_TOPIC, "d": "4", "e": "0", "f": "0", "g": "1794719000000",
    "h": "0", "i": "UNIQ_KEY\x017F00000100\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
    "n": "broker-a",
}  # fmt: skip
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
TEXTS = st.one_of(
    st.just(PLAIN["i"]),
    st.lists(
        st.sampled_from(
            [
                "UNIQ_KEY\x01ABC123\x02", "UNIQ_KEY\x01odd key\x02", "UNIQ_KEY\x01\x02", "xUNIQ_KEY\x01A\x02",
                "TAGS\x01red\x02", "TAGS\x01\x02", "xTAGS\x01blue\x02", "TAGS\x01a rather long tag~\x02",
                "WAIT\x01true\x02", "WAIT\x01false\x02", "KEYS\x01k1 k2\x02", "own\x01value\x02",
                "DELAY\x013\x02", "DELAY\x0118\x02", "DELAY\x0199\x02", "xDELAY\x013\x02", "DELAYS\x013\x02",
                "REAL_TOPIC\x01T\x02", "TIMER_OUT\x011\x02", "INNER_NUM\x012\x02",
                HALF, HALF, "xTRAN_MSG\x01true\x02", "__transactionId__\x01A\x02", "TRAN_MSGS\x01true\x02",
                "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02", "UNIQ_KEY\x01" + "K" * 256 + "\x02",
                "TRAN_MSG\x01false\x02", "POP_CK\x01x\x02", "broken", "\x02", "",
                "é\x01ü\x02", 'q"\\\x01/\x02', "nul\x01\0\x02", "long\x01" + "x" * 500 + "\x02",
            ]
        ),
        max_size=4,
    ).map("".join),
)  # fmt: skip
NUMBERS = st.sampled_from(
    ["0", "1", "3", "4", "5", "7", "01", "", "x", "256", "1793", "99999999999", "2147483648"]
)


BODIES = st.binary(min_size=1, max_size=20) | st.sampled_from([b"x" * 511, b"y" * 513, b"z" * 3000])


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """The body of a batch."""
    flags = st.integers(-(1 << 31), (1 << 31) - 1)
    messages = st.tuples(BODIES | st.just(b""), TEXTS.map(str.encode), st.just(0) | flags)
    if draw(st.booleans()):  # of equal lengths
        messages = st.just(draw(messages))
    body = b"".join(element(*each) for each in draw(st.lists(messages, max_size=6)))
    if body and draw(st.integers(0, 5)) == 0:  # one damaged byte, or cut short
        place = draw(st.integers(0, len(body) - 1))
        body = body[:place] + draw(
            st.just(b"") | st.binary(min_size=1, max_size=1).map(lambda b: b + body[place + 1 :])
        )
    return body


@st.composite
def altered(draw: st.DrawFn, fields: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """Signed by one of the users, and altered afterwards in one case of three."""
    user = draw(
        st.sampled_from([USER, USER, USER, ROOT, OTHER, Credentials("nobody", "x"), Credentials("user", "x")])
    )
    if draw(st.integers(0, 9)) == 0:
        user = Credentials(user.access_key, user.secret_key, "token")
    fields = signed(fields, body, user)
    match draw(st.integers(0, 17)):
        case 0:
            body += b"x"
        case 1:
            fields[draw(st.sampled_from(sorted(fields)))] = draw(
                st.sampled_from(["", "0", "x", "root", "user "])
            )
        case 2:
            fields.pop(draw(st.sampled_from(["AccessKey", "Signature", "n"])), None)
        case 3:
            fields["Signature"] = draw(
                st.sampled_from([fields["Signature"].lower(), fields["Signature"][:-1], "é"])
            )
        case 4 if {"a", "b"} <= fields.keys():  # values that move between fields have the same signature
            fields["a"], fields["b"] = fields["a"] + fields["b"][:1], fields["b"][1:]
        case 5 if {"d", "e"} <= fields.keys():
            fields["d"], fields["e"] = fields["d"] + fields["e"], ""
        case _:
            pass
    return fields, body


@st.composite
def frames(draw: st.DrawFn, *, are_batches: bool, are_signed: bool) -> bytes:
    fields = {**PLAIN, "e": str(draw(st.integers(0, QUEUES)))}
    if draw(st.booleans()):
        fields["i"] = draw(TEXTS)
    body = draw(BODIES)
    rest: dict[str, Any] = {"opaque": draw(st.integers(0, 1 << 31))}
    if are_batches:
        fields["b"] = draw(st.sampled_from([TOPIC, BATCHED]))
        body, rest["code"] = draw(batches()), 320
        fields["m"] = draw(st.sampled_from(["true", "true", "false"]))
    match draw(st.integers(0, 14)):
        case 0:
            fields[draw(st.sampled_from("defghjkm"))] = draw(NUMBERS)
        case 1:
            del fields[draw(st.sampled_from(sorted(fields)))]
        case 2:
            fields[draw(st.sampled_from(["l", "o", "zz", "bname"]))] = draw(st.sampled_from(["1", "x"]))
        case 3:
            fields["b"] = draw(st.sampled_from(["Other", BATCHED, "%RETRY%nobody", "", "Ünknown", "x" * 130]))
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
            rest["code"] = draw(st.sampled_from([10, 11, 310, 320, 310310]))
        case 6:
            body = b""
        case _:
            pass
    if are_signed:
        fields, body = draw(altered(fields, body))
    made = frame(fields, body, **rest)
    if draw(st.integers(0, 30)) == 0:  # one damaged byte
        place = draw(st.integers(0, len(made) - 1))
        made = made[:place] + bytes([draw(st.integers(0, 255))]) + made[place + 1 :]
    return made


@st.composite
def reads(draw: st.DrawFn, *, are_signed: bool = False) -> list[bytes]:
    """Several frames as the network may cut them; some of them come again.

    Python stores single messages before batches, so these are not mixed.
    """
    kind = frames(are_batches=draw(st.booleans()), are_signed=are_signed)
    made = draw(st.lists(kind, min_size=1, max_size=12))
    data = b"".join(made + made[: draw(st.integers(0, 2))])
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


@pytest.fixture
def sides(compiled: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Side]]:
    monkeypatch.setattr(plain_sends, "lay_out_sends", compiled.lay_out_sends)

    def make(**settings: Any) -> list[Side]:
        return [
            Side(tmp_path / str(takes_plain), takes_plain=takes_plain, **settings)
            for takes_plain in (False, True)
        ]

    return make


@pytest.mark.parametrize("are_signed", [False, pytest.param(True, marks=needs_libcrypto)])
@pytest.mark.parametrize("flush", FlushMode)
async def test_any_requests_have_the_same_effect(
    sides: Callable[..., list[Side]], flush: FlushMode, are_signed: bool
) -> None:
    pure, taking = both = sides(flush_mode=flush, auth={"failures_max": 0} if are_signed else None)

    @settings(deadline=None)
    @given(reads(are_signed=are_signed), st.booleans())
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
    assert not pure.taken
    assert pure.close() == taking.close()


@pytest.mark.parametrize("are_signed", [False, pytest.param(True, marks=needs_libcrypto)])
async def test_single_messages_and_batches_are_taken_in_their_order(
    sides: Callable[..., list[Side]], are_signed: bool
) -> None:
    pure, taking = both = sides(auth={} if are_signed else None)
    for side in both:
        before = side.taken
        made = [
            frame(signed(PLAIN, body, USER) if are_signed else PLAIN, body, code=code)
            for code, body in ((310, b"one"), (320, element(b"two", b"") * 3), (310, b"three"))
        ]
        side.receive([b"".join(made)] if side is taking else made)
        assert side.taken - before == (len(made) if side is taking else 0)
    assert pure.changes() == taking.changes()
    assert pure.close() == taking.close()


@pytest.mark.parametrize("are_signed", [False, pytest.param(True, marks=needs_libcrypto)])
async def test_delayed_messages_and_batches_as_one_record_are_taken(
    sides: Callable[..., list[Side]], are_signed: bool
) -> None:
    pure, taking = both = sides(auth={} if are_signed else None)
    delayed = {**PLAIN, "i": "UNIQ_KEY\x01K1\x02DELAY\x013\x02TAGS\x01red\x02"}
    batched = {**PLAIN, "b": BATCHED, "m": "true"}
    for side in both:
        before = side.taken
        made = [
            frame(signed(fields, body, USER) if are_signed else fields, body, code=code)
            for code, fields, body in (
                (310, delayed, b"later"),
                (320, batched, element(b"two", b"") * 3),
                (320, batched, element(b"three", b"KEYS\x01k\x02") + element(b"", b"")),
                (310, delayed, b"much later"),
            )
        ]
        side.receive([b"".join(made)] if side is taking else made)
        assert side.taken - before == (len(made) if side is taking else 0)
        assert side.broker.store.queues[BATCHED, 0].max_offset == 3 * 2 + 5
        assert side.broker.store.queues[SCHEDULE_TOPIC, 2].max_offset == 4
    assert pure.changes() == taking.changes()
    assert pure.close() == taking.close()


async def test_half_messages_are_taken_up_to_the_limit(sides: Callable[..., list[Side]]) -> None:
    pure, taking = both = sides()
    burst = [
        frame({**PLAIN, "f": "4", "i": f"UNIQ_KEY\x01K{number}\x02TAGS\x01red\x02{HALF}"}, b"x" * 200)
        for number in range(5)
    ]
    for side in both:
        live, transactions, before = side.broker.live, side.broker.transactions, side.taken
        opened = transactions.open_count
        side.receive([b"".join(burst)])
        assert side.taken - before == (5 if side is taking else 0)
        for limits in (TransactionSettings(open_max=opened + 7), TransactionSettings(reject=True)):
            live.current = replace(live.current, transactions=limits)
            side.receive([b"".join(burst), b"".join(burst)])
            assert transactions.open_count == opened + 10, "the messages of one read may exceed it"
        transactions.follow()
    assert list(pure.broker.transactions.table) == list(taking.broker.transactions.table)
    assert pure.changes() == taking.changes()
    assert pure.close() == taking.close()


@pytest.mark.parametrize("shared", ["", "WAIT\x01true\x02"])
@pytest.mark.parametrize("topic", [TOPIC, BATCHED])
async def test_a_batch_without_a_key_is_taken_unless_it_becomes_one_record(
    sides: Callable[..., list[Side]], topic: str, shared: str
) -> None:
    pure, taking = both = sides()
    rows = b"".join(element(b"body", b"UNIQ_KEY\x01%032d\x02TAGS\x01red\x02" % row) for row in range(3))
    for side in both:
        before = side.taken
        side.receive([frame({**PLAIN, "b": topic, "i": shared, "m": "true"}, rows, code=320)])
        assert side.taken - before == (1 if side is taking and topic == TOPIC else 0)
    assert pure.changes() == taking.changes()
    assert pure.close() == taking.close()


@needs_libcrypto
async def test_failed_signatures_count_and_block_alike(sides: Callable[..., list[Side]]) -> None:
    pure, taking = both = sides(auth={"failures_max": 3})
    good, bad = frame(signed(PLAIN, b"x", USER), b"x"), frame(signed(PLAIN, b"x", USER), b"y")
    for side in both:
        for _ in range(4):
            side.receive([good + good + bad + good])
            await asyncio.sleep(0)  # blocked connections are closed by the loop
        assert side.wire.closed
        assert side.control is not None and side.control.gate is not None
        assert side.control.gate.is_blocked("127.0.0.1")
    assert taking.taken
    assert pure.changes() == taking.changes()
    assert pure.close() == taking.close()


@needs_libcrypto
async def test_a_user_who_changes_is_decided_about_anew(sides: Callable[..., list[Side]]) -> None:
    pure, taking = both = sides(auth={})
    request = frame(signed(PLAIN, b"x", USER), b"x")
    for side in both:
        assert side.control is not None
        side.receive([request])
        side.control.store.remove_user(USER.access_key)
        side.receive([request])
        await asyncio.sleep(0)  # refusals leave with the next turn of the loop
    assert taking.taken
    changes = pure.changes()
    assert b"is not found" in b"".join(changes[0])  # type: ignore[arg-type]
    assert changes == taking.changes()
    assert pure.close() == taking.close()


@needs_libcrypto
async def test_nothing_is_taken_while_every_request_is_audited(sides: Callable[..., list[Side]]) -> None:
    pure, taking = both = sides(auth={"audit_all": True})
    for side in both:
        side.receive([frame(signed(PLAIN, b"x", USER), b"x")])
    assert not taking.taken
    assert pure.changes() == taking.changes()
    audit = pure.close()
    assert audit.count('"allowed"') > QUEUES
    assert audit == taking.close()


async def test_a_burst_of_plain_sends_is_taken_whole(sides: Callable[..., list[Side]]) -> None:
    pure, taking = both = sides()
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
    assert pure.close() == taking.close()


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


@given(
    st.binary(min_size=1, max_size=100),
    st.lists(st.tuples(st.integers(-3, 110), st.integers(-2, 20)), min_size=1, max_size=5),
    st.booleans(),
    st.integers(0, 3),
)
def test_records_of_entries_are_joined_alike(
    compiled: ModuleType, file: bytes, records: list[tuple[int, int]], is_sorted: bool, cut: int
) -> None:
    start = 1000
    if is_sorted:
        records.sort()
    places, sizes = [start + place for place, _ in records], [size for _, size in records]
    entries = b"".join(ENTRY.pack(place, size, 7) for place, size in zip(places, sizes, strict=True))
    joined = compiled.join_records(memoryview(file), start, entries + bytes(cut))
    ends = [place + size for place, size in records]
    is_plain = (
        all(0 <= place <= end <= len(file) for (place, _), end in zip(records, ends, strict=True))
        and all(end <= place for end, (place, _) in zip(ends, records[1:], strict=False))
    )  # fmt: skip
    if is_plain:
        found = slices(memoryview(file), start, entries, sizes)
        assert found is not None
        assert joined == b"".join(found)
    else:
        assert joined is None


def test_a_call_during_another_has_a_message_of_its_own(compiled: ModuleType) -> None:
    """Brokers in several threads of a process: one runs on while the other makes a result."""

    def lay_out(data: bytes, make: Callable[..., object]) -> tuple[object, ...]:
        place = SimpleNamespace(next_offset=0), b"\x05Sends", 1, 0, False, 0
        constants = b"", plain_sends._FUNCTIONS, *(b"",) * 6
        made: tuple[object, ...] = compiled.lay_out_sends(
            data,
            {b"Sends/0": place},
            None,
            0,
            1 << 20,
            1,
            1 << 16,
            1 << 20,
            0,
            0,
            constants,
            make,
            make,
            make,
        )
        return made[2:5]

    def with_another(*_: object) -> int:
        lay_out(frame({**PLAIN, "i": "UNIQ_KEY\x01OTHER\x02"}, b"another body" * 1000), lambda *_: 2)
        return 1

    sent = frame(PLAIN, b"body") * 3
    assert lay_out(sent, with_another) == lay_out(sent, lambda *_: 1)


def test_replies_with_another_code() -> None:
    replies = SendReplies(region="R%d", trace_on=False)
    stored = [
        [replies.stored(number, b"ID", 3, number, transaction_id=b"K", code=code) for number in range(3)]
        for code in (0, 10)
    ]
    assert with_code(b"".join(stored[0]), 10) == b"".join(stored[1])


@pytest.mark.nightly
@pytest.mark.timeout(1200)
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
    names = ("test_dispatch_paths.py", "test_compiled_columns.py", "pipelines/test_decode_laws.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not nightly"]
    command += [__file__, *(str(Path(__file__).parent / name) for name in names)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR: AddressSanitizer" not in done.stderr
