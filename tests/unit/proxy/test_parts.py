"""The pure parts of the proxy: hashes, ids, headers, signatures."""

from __future__ import annotations

import hashlib
import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.auth.model import User
from skylark.auth.store import AuthStore
from skylark.clock import SystemClock
from skylark.model.java import java_hash
from skylark.proxy.access import CallGate, parse_authorization
from skylark.proxy.call import Call
from skylark.proxy.proxy_header import BadProxyHeader, ProxyHeader, may_begin_header, parse_header
from skylark.proxy.schema import Code, v2
from skylark.proxy.send_calls import consistent_hash
from skylark.proxy.status import CallRefused
from skylark.proxy.transaction_id import TransactionId
from skylark.settings.auth import AuthSettings

SECRET = "secret"
DATE = "20240101T000000Z"
SIGNATURE = "2e5621239cbfdccc449dbd2e028cf60e7c6a592d"
"""What RocketMQ's clients compute for this secret and date."""


@pytest.mark.parametrize(
    ("group", "buckets"),
    [
        ("", [0, 0, 0, 0, 0, 0]),
        ("a", [0, 0, 0, 0, 0, 29]),
        ("order-1", [0, 0, 3, 3, 3, 3]),
        ("group-0", [0, 1, 1, 1, 1, 67]),
        ("group-1", [0, 1, 1, 7, 15, 36]),
        ("message group", [0, 1, 1, 1, 1, 17]),
        ("ä中", [0, 1, 2, 2, 2, 29]),
    ],
)
def test_queue_of_a_message_group_is_that_of_guavas_consistent_hash(group: str, buckets: list[int]) -> None:
    found = [consistent_hash(java_hash(group), number) for number in (1, 2, 4, 8, 16, 100)]
    assert found == buckets  # as com.google.common.hash.Hashing 32.0.1 answers


@given(
    st.from_regex(r"[a-zA-Z0-9_.-]{1,20}", fullmatch=True), st.integers(0, 1 << 60), st.integers(0, 1 << 60)
)
def test_transaction_ids_come_back(broker: str, queue_offset: int, physical_offset: int) -> None:
    made = TransactionId(broker, queue_offset, physical_offset, "01AA")
    assert TransactionId.parse(str(made)) == made


@given(st.text())
def test_other_transaction_ids_are_refused(text: str) -> None:
    with pytest.raises(CallRefused) as caught:
        TransactionId.parse(text)
    assert caught.value.code is Code.INVALID_TRANSACTION_ID


# --- HAProxy header ---

V2 = (
    b"\r\n\r\n\0\r\nQUIT\n"
    + struct.pack(">BBH", 0x21, 0x11, 12)
    + bytes([10, 0, 0, 9, 10, 0, 0, 1])
    + struct.pack(">HH", 4711, 8081)
)


@pytest.mark.parametrize(
    ("data", "host", "port"),
    [
        (b"PROXY TCP4 10.0.0.9 10.0.0.1 4711 8081\r\n", "10.0.0.9", 4711),
        (b"PROXY TCP6 2001:db8::9 2001:db8::1 4711 8081\r\n", "2001:db8::9", 4711),
        (b"PROXY UNKNOWN\r\n", "", 0),
        (V2, "10.0.0.9", 4711),
    ],
)
def test_header_in_pieces(data: bytes, host: str, port: int) -> None:
    for end in range(1, len(data)):
        assert may_begin_header(data[:end])
        assert parse_header(data[:end]) is None
    assert parse_header(data + b"more") == ProxyHeader(len(data), host, port)


@given(st.binary(max_size=300))
def test_other_bytes_are_no_header(data: bytes) -> None:
    for signature in (b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"):
        try:
            found = parse_header(signature + data)
        except BadProxyHeader:
            continue
        assert found is None or found.length <= len(signature) + len(data)


# --- Signatures ---


def call(**metadata: str) -> Call:
    given = {"x-mq-client-id": "c", **{name.replace("_", "-"): value for name, value in metadata.items()}}
    return Call("QueryRoute", given, "127.0.0.1", 4711)


def gate(*, failures_max: int = 0) -> CallGate:
    store = AuthStore()
    store.put_user(User("ak", SECRET, is_super=True))
    store.put_user(User("plain", SECRET))
    store.put_user(User("off", SECRET, is_enabled=False))
    settings = AuthSettings(
        enabled=True,
        authorization=True,
        first_user='{"username":"a","password":"b"}',
        failures_max=failures_max,
    )
    return CallGate(settings, store, SystemClock())


def header(user: str, signature: str = SIGNATURE) -> str:
    return f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"


def test_signature_of_the_official_clients() -> None:
    assert hmac.new(SECRET.encode(), DATE.encode(), hashlib.sha1).hexdigest() == SIGNATURE
    for user in ("ak", "ak//Rocketmq"):  # the latter is Go's
        gate().admit(call(authorization=header(user), x_mq_date_time=DATE), v2.QueryRouteRequest())
    assert parse_authorization("X Credential=a=b,Signature=c") == ("a=b", "c")


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({}, "username cannot be null."),
        ({"authorization": header("ak")}, "datetime is null."),
        ({"authorization": "word", "x_mq_date_time": DATE}, "authentication header is incorrect."),
        ({"authorization": header(""), "x_mq_date_time": DATE}, "username cannot be null."),
        ({"authorization": header("who"), "x_mq_date_time": DATE}, "User:who is not found."),
        ({"authorization": header("off"), "x_mq_date_time": DATE}, "User:off is disabled."),
        ({"authorization": header("ak", "00"), "x_mq_date_time": DATE}, "check signature failed."),
        ({"authorization": header("ak"), "x_mq_date_time": "20240101T000001Z"}, "check signature failed."),
        (
            {"authorization": header("plain"), "x_mq_date_time": DATE},
            "User:plain has no permission to access Topic:T from 127.0.0.1, no matched policies.",
        ),
    ],
)
def test_refused_calls(metadata: dict[str, str], text: str) -> None:
    request = v2.QueryRouteRequest(topic=v2.Resource(name="T"))
    with pytest.raises(CallRefused) as caught:
        gate().admit(call(**metadata), request)
    assert (caught.value.code, caught.value.message) == (Code.UNAUTHORIZED, text)


def test_address_with_many_failures_is_blocked_for_a_while() -> None:
    checked = gate(failures_max=2)
    bad = call(authorization=header("ak", "00"), x_mq_date_time=DATE)
    for _ in range(2):
        with pytest.raises(CallRefused):
            checked.admit(bad, v2.QueryRouteRequest())
    with pytest.raises(CallRefused, match="too many failed signatures"):
        checked.admit(call(authorization=header("ak"), x_mq_date_time=DATE), v2.QueryRouteRequest())
