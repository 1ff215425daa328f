"""TLS and plain text on one port, over real sockets, on both kinds of loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.errors import SettingsError
from skylark.protocol.requests.offset import GetMaxOffset
from skylark.remoting.server import ServerLimits
from skylark.remoting.tls import FLIGHT_BYTES, RECORD_BYTES, HandshakeRate, ServerTls, make_server_tls
from skylark.remoting.tls_client import ClientTls
from skylark.settings import ClientCertificate, ServerTlsSettings, TlsMode
from tests.support.certificates import CertificateFiles, foreign_authority, make_files
from tests.unit.remoting.rig import (
    HOST,
    LOOPS,
    PULL,
    SEND,
    RawClient,
    Rig,
    frame,
    raw_client,
    run_on,
    running,
    until,
)

loops = pytest.mark.parametrize("loop", list(LOOPS))
QUESTION = frame(GetMaxOffset("t", 7).to_command(), opaque=5)
"""Answered with the offset 7."""


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_files(tmp_path / "certificates")


@contextlib.asynccontextmanager
async def tls_client(
    port: int, context: ssl.SSLContext, name: str = HOST, *, limit: int = 1 << 16
) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=name, limit=limit)
    client = RawClient(reader, writer)
    try:
        yield client
    finally:
        writer.transport.abort()


async def asked(client: RawClient) -> int:
    await client.send(QUESTION)
    answer = await client.receive()
    assert answer.opaque == 5
    return int(answer.fields["offset"])


def certificate_of(client: RawClient) -> bytes:
    found = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(found, bytes)
    return found


@loops
@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE, TlsMode.ENFORCING])
def test_the_mode_decides_which_connections_one_port_accepts(
    loop: str, mode: TlsMode, files: CertificateFiles
) -> None:
    async def scenario() -> None:
        async with running(tls=make_server_tls(files.server(mode=mode))) as rig:
            async with raw_client(rig.port) as plain:
                await plain.send(QUESTION)
                if mode is TlsMode.ENFORCING:
                    assert await plain.is_closed()
                else:
                    assert (await plain.receive()).fields["offset"] == "7"
            if mode is TlsMode.DISABLED:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    async with tls_client(rig.port, files.client_context()):
                        pass
            else:
                async with tls_client(rig.port, files.client_context()) as client:
                    assert await asked(client) == 7

    run_on(loop, scenario())


@loops
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_batches_and_long_answers_cross_records(
    loop: str, version: ssl.TLSVersion, files: CertificateFiles
) -> None:
    async def scenario() -> None:
        context = files.client_context()
        context.minimum_version = context.maximum_version = version
        async with running(tls=make_server_tls(files.server())) as rig:
            rig.pull_answer = os.urandom(5 * RECORD_BYTES + 3)
            async with tls_client(rig.port, context) as client:
                sends = b"".join(frame(SEND.to_command(), opaque=number) for number in range(400))
                await client.send(sends)
                assert [(await client.receive()).opaque for _ in range(400)] == list(range(400))
                assert max(rig.batches) > 1  # what one read brought is handled together
                await client.send(b"".join(frame(PULL.to_command(), opaque=number) for number in range(20)))
                for number in range(20):
                    answer = await client.receive()
                    assert (answer.opaque, bytes(answer.body)) == (number, rig.pull_answer)

    run_on(loop, scenario())


@loops
def test_a_long_answer_is_sent_before_the_next_is_made(loop: str, files: CertificateFiles) -> None:
    async def scenario() -> None:
        async with running(tls=make_server_tls(files.server())) as rig:
            rig.pull_answer = os.urandom(FLIGHT_BYTES)
            async with tls_client(rig.port, files.client_context()) as client:
                assert await asked(client) == 7
                descriptor = client.writer.get_extra_info("socket").fileno()
                has_arrived: list[bool] = []

                def look() -> None:  # the loop that reads for the client waits for this
                    wait_s = 30 if has_arrived else 0
                    has_arrived.append(bool(select.select([descriptor], [], [], wait_s)[0]))

                rig.before_pull = look
                await client.send(b"".join(frame(PULL.to_command(), opaque=number) for number in range(2)))
                for number in range(2):
                    answer = await client.receive()
                    assert (answer.opaque, bytes(answer.body)) == (number, rig.pull_answer)
                assert has_arrived == [False, True]

    run_on(loop, scenario())


class SlowClient:
    """A TLS client that sends what it has to say one byte at a time."""

    def __init__(self, raw: RawClient, context: ssl.SSLContext) -> None:
        self._raw = raw
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=HOST)

    async def flush(self) -> None:
        for byte in self._outgoing.read():
            await self._raw.send(bytes([byte]))
            await asyncio.sleep(0)

    async def _receive(self) -> None:
        data = await self._raw.reader.read(1 << 16)
        if not data:
            raise EOFError
        self._incoming.write(data)

    async def shake_hands(self) -> None:
        while True:
            try:
                self.ssl.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                await self._receive()
            else:
                await self.flush()
                return

    async def read(self) -> bytes:
        while True:
            try:
                return self.ssl.read(1 << 16)
            except ssl.SSLWantReadError:
                await self._receive()


@loops
def test_a_hello_and_records_may_come_byte_by_byte(loop: str, files: CertificateFiles) -> None:
    async def scenario() -> None:
        async with running(tls=make_server_tls(files.server())) as rig, raw_client(rig.port) as raw:
            client = SlowClient(raw, files.client_context())
            await client.shake_hands()
            for part in (QUESTION[:3], QUESTION[3:50], QUESTION[50:]):  # a frame in three records
                client.ssl.write(part)
            await client.flush()
            assert b'"opaque":5' in await client.read()

    run_on(loop, scenario())


@loops
def test_close_notify_in_the_middle_of_a_frame_closes_the_connection(
    loop: str, files: CertificateFiles
) -> None:
    async def scenario() -> None:
        async with running(tls=make_server_tls(files.server())) as rig, raw_client(rig.port) as raw:
            client = SlowClient(raw, files.client_context())
            await client.shake_hands()
            client.ssl.write(QUESTION + QUESTION[:20])
            with contextlib.suppress(ssl.SSLError):
                client.ssl.unwrap()
            await client.flush()
            assert b'"opaque":5' in await client.read()
            with pytest.raises(ssl.SSLZeroReturnError):  # the server's close_notify
                await client.read()
            await until(lambda: not rig.server.peers)

    run_on(loop, scenario())


@loops
def test_an_invalid_record_closes_the_connection(
    loop: str, files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tls=make_server_tls(files.server())) as rig, raw_client(rig.port) as raw:
            client = SlowClient(raw, files.client_context())
            await client.shake_hands()
            await raw.send(b"\x17\x03\x03\xff\xff" + bytes(1000))  # longer than a record may be
            assert await raw.is_closed()
            await until(lambda: not rig.server.peers)

    run_on(loop, scenario())
    assert "reason=invalid TLS record" in caplog.text


@loops
def test_connections_that_stop_in_the_handshake_are_closed_and_cost_little(
    loop: str, files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        tls = make_server_tls(files.server(handshake_timeout_ms=1500))
        assert tls is not None
        async with running(tls=tls) as rig, contextlib.AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(raw_client(rig.port)) for _ in range(200)]
            for client in silent:
                await client.send(b"\x16")
            async with tls_client(rig.port, files.client_context()) as client:
                assert await asked(client) == 7  # others are served meanwhile
            for each in silent:
                assert await each.is_closed()
            await until(lambda: not rig.server.peers)
            assert (tls.handshakes, tls.failed_handshakes) == (1, 200)

    run_on(loop, scenario())
    refusals = [line for line in caplog.messages if "no TLS handshake within 1.5 s" in line]
    assert len(refusals) == 1  # at most one line in ten seconds


@loops
def test_an_address_with_too_many_handshakes_is_refused(
    loop: str, files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        tls = make_server_tls(files.server(handshakes_per_s=1))
        assert tls is not None
        # A full bucket has the handshakes of two seconds. A third may come before this is over.
        async with running(tls=tls) as rig, contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                client = await stack.enter_async_context(tls_client(rig.port, files.client_context()))
                assert await asked(client) == 7
            refused = 0
            while not refused:
                raw = await stack.enter_async_context(raw_client(rig.port))
                await raw.send(b"\x16")
                refused = tls.handshake_counts["refused"]
                await asyncio.sleep(0)
            assert await raw.is_closed()
            assert await asked(client) == 7  # open connections stay
            plain = await stack.enter_async_context(raw_client(rig.port))
            assert await asked(plain) == 7

    run_on(loop, scenario())
    assert caplog.text.count("TLS handshakes refused") == 1


def test_handshakes_are_limited_by_address_and_second(caplog: pytest.LogCaptureFixture) -> None:
    rate = HandshakeRate(per_second=10)
    assert [rate.admits("a", 0.0) for _ in range(25)] == [True] * 20 + [False] * 5
    assert rate.admits("b", 0.0)
    assert [rate.admits("a", 0.55) for _ in range(7)] == [True] * 5 + [False] * 2
    assert [rate.admits("a", 100.0) for _ in range(21)].count(True) == 20
    assert rate.refused == 8
    assert [line.split(" reason")[0] for line in caplog.messages] == [
        "TLS handshakes refused count=1 last=a",
        "TLS handshakes refused count=7 last=a",
    ]
    unlimited = HandshakeRate(per_second=0)
    assert all(unlimited.admits("a", 0.0) for _ in range(1000))


@loops
def test_the_connection_limit_holds_before_the_handshake(loop: str, files: CertificateFiles) -> None:
    async def scenario() -> None:
        limits = ServerLimits(connections_max=2)
        async with (
            running(limits, tls=make_server_tls(files.server())) as rig,
            raw_client(rig.port),
            raw_client(rig.port) as second,
        ):
            await second.send(b"\x16")
            await until(lambda: len(rig.server.peers) == 2)
            async with raw_client(rig.port) as third:
                assert await third.is_closed()

    run_on(loop, scenario())


@loops
def test_a_client_certificate_may_be_required(loop: str, files: CertificateFiles) -> None:
    async def scenario() -> None:
        settings = files.server(client_certificate=ClientCertificate.REQUIRE, trusted=files.authority)
        async with running(tls=make_server_tls(settings)) as rig:
            async with tls_client(rig.port, files.client_context(own=True)) as client:
                assert await asked(client) == 7
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                async with tls_client(rig.port, files.client_context()) as client:
                    await asked(client)

    run_on(loop, scenario())


@loops
def test_an_optional_client_certificate_is_checked_if_there_is_one(
    loop: str, files: CertificateFiles, tmp_path: Path
) -> None:
    async def scenario() -> None:
        trusted = tmp_path / "another.pem"
        trusted.write_bytes(foreign_authority().certificate)
        settings = files.server(client_certificate=ClientCertificate.OPTIONAL, trusted=trusted)
        async with running(tls=make_server_tls(settings)) as rig:
            async with tls_client(rig.port, files.client_context()) as client:
                assert await asked(client) == 7
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                async with tls_client(rig.port, files.client_context(own=True)) as client:
                    await asked(client)

    run_on(loop, scenario())


@loops
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(loop: str, version: ssl.TLSVersion, files: CertificateFiles) -> None:
    async def scenario() -> None:
        context = files.client_context()
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        async with running(tls=make_server_tls(files.server())) as rig:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                async with tls_client(rig.port, context):
                    pass

    run_on(loop, scenario())


@loops
def test_a_slow_reader_is_not_read_from_and_gets_everything(loop: str, files: CertificateFiles) -> None:
    async def scenario() -> None:
        limits = ServerLimits(write_high_water_bytes=1 << 16)
        async with running(limits, tls=make_server_tls(files.server())) as rig:
            rig.pull_answer = os.urandom(1 << 20)
            async with tls_client(rig.port, files.client_context(), limit=1 << 12) as client:
                await client.send(b"".join(frame(PULL.to_command(), opaque=number) for number in range(50)))
                await until(lambda: any(not peer.is_writable for peer in rig.server.peers))
                assert rig.pulled < 50
                for number in range(50):
                    answer = await client.receive()
                    assert (answer.opaque, bytes(answer.body)) == (number, rig.pull_answer)

    run_on(loop, scenario())


@loops
def test_no_reply_leaves_beside_the_encryption(loop: str, files: CertificateFiles) -> None:
    async def scenario() -> None:
        async with running(tls=make_server_tls(files.server())) as rig:
            async with tls_client(rig.port, files.client_context()) as client:
                assert await asked(client) == 7
                (peer,) = rig.server.peers
                assert peer.prepare(b"plain text") is None
            await until(lambda: not rig.server.peers)
            async with raw_client(rig.port) as plain:
                await plain.send(QUESTION)
                await plain.receive()
                (peer,) = rig.server.peers
                prepared = peer.prepare(b"plain text")
                assert prepared is not None
                peer.take_back(prepared)

    run_on(loop, scenario())


# --- Files ---


async def served(rig: Rig, files: CertificateFiles) -> bytes:
    """Return the certificate that a new connection gets."""
    async with tls_client(rig.port, files.client_context()) as client:
        assert await asked(client) == 7
        return certificate_of(client)


@loops
def test_changed_files_are_for_new_connections_and_old_ones_stay(
    loop: str, files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        tls = ServerTls(files.server())
        async with running(tls=tls) as rig, tls_client(rig.port, files.client_context()) as old:
            before = certificate_of(old)
            assert await asked(old) == 7
            files.renew()
            tls.check_files()
            assert await served(rig, files) == before  # may still be being written
            tls.check_files()
            after = await served(rig, files)
            assert after != before
            assert ssl.DER_cert_to_PEM_cert(after).encode() in files.certificate.read_bytes()
            assert await asked(old) == 7
            tls.check_files()
            assert tls.reloads == 1

    with caplog.at_level(logging.INFO):
        run_on(loop, scenario())
    assert caplog.text.count("certificate reloaded") == 1


def test_a_pair_that_cannot_be_loaded_is_reported_once_and_the_old_one_stays(
    files: CertificateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(files.server())
    context = tls.context
    key = files.key.read_bytes()
    files.key.write_bytes(make_files(tmp_path / "other").key.read_bytes())
    for _ in range(4):
        tls.check_files()
    assert tls.context is context
    assert "the key does not belong to the certificate" in tls.reload_failure
    assert caplog.text.count("certificate not reloaded") == 1
    files.key.unlink()
    for _ in range(4):
        tls.check_files()
    assert tls.context is context
    assert "No such file" in tls.reload_failure
    files.key.touch(mode=0o644)
    files.key.write_bytes(key)
    for _ in range(2):
        tls.check_files()
    assert "other users may read it" in tls.reload_failure
    files.key.chmod(0o600)
    files.key.write_bytes(key)
    for _ in range(2):
        tls.check_files()
    assert tls.context is not context
    assert tls.reload_failure == ""


def test_a_new_certificate_for_the_same_key_is_loaded(files: CertificateFiles) -> None:
    """RocketMQ waits until both files have changed."""
    tls = ServerTls(files.server())
    context = tls.context
    files.certificate.write_bytes(files.certificate.read_bytes() + b"\n")
    tls.check_files()
    tls.check_files()
    assert tls.context is not context


def test_what_cannot_be_loaded_is_refused_at_start(files: CertificateFiles, tmp_path: Path) -> None:
    other = make_files(tmp_path / "other")
    missing = tmp_path / "missing.pem"
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for settings, reason in [
        (ServerTlsSettings(certificate=files.certificate, key=other.key), "the key does not belong to"),
        (ServerTlsSettings(certificate=missing, key=files.key), f"{missing}: No such file or directory"),
        (ServerTlsSettings(certificate=text, key=files.key), "not a certificate with its key in PEM format"),
        (
            files.server(client_certificate=ClientCertificate.REQUIRE, trusted=text),
            "no certificates in PEM format",
        ),
    ]:
        with pytest.raises(SettingsError, match=reason):
            make_server_tls(settings)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_may_read_is_refused_unless_that_is_allowed(
    files: CertificateFiles, mode: int
) -> None:
    for key in (files.key, files.client_key):
        key.chmod(mode)
    with pytest.raises(
        SettingsError, match=f"server.key: .* its mode is {mode:04o}: other users may read it"
    ):
        make_server_tls(files.server())
    with pytest.raises(
        SettingsError, match=f"client.key: .* its mode is {mode:04o}: other users may read it"
    ):
        ClientTls(files.client(own=True))
    assert make_server_tls(files.server(check_key_mode=False)) is not None
    ClientTls(files.client(own=True, check_key_mode=False))


def test_a_file_like_rocketmqs_overrides_the_settings(files: CertificateFiles, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.test.mode.enable=false\ntls.server.certPath={files.certificate}\n"
        f"tls.server.keyPath={files.key}\ntls.client.authServer=true\ntls.server.mode=disabled\n"
    )
    made = make_server_tls(ServerTlsSettings(mode=TlsMode.ENFORCING, test_mode=True, config_file=file))
    assert made is not None
    assert made.is_enforcing
    assert (made.settings.certificate, made.settings.test_mode) == (files.certificate, False)


@loops
def test_test_mode_makes_a_certificate_of_its_own(loop: str) -> None:
    async def scenario() -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        async with (
            running(tls=make_server_tls(ServerTlsSettings(test_mode=True))) as rig,
            tls_client(rig.port, context) as client,
        ):
            assert await asked(client) == 7

    run_on(loop, scenario())


def test_without_a_certificate_there_is_no_tls() -> None:
    assert make_server_tls(ServerTlsSettings()) is None
    assert ServerTlsSettings().effective_mode is TlsMode.DISABLED


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mode": TlsMode.ENFORCING}, "tls.certificate: missing; tls.mode enforcing needs"),
        ({"certificate": Path("a")}, "tls.key: missing"),
        ({"key": Path("a")}, "tls.certificate: missing"),
        ({"client_certificate": ClientCertificate.REQUIRE}, "tls.trusted: missing"),
        (
            {
                "client_certificate": ClientCertificate.REQUIRE,
                "trusted": Path("a"),
                "check_client": False,
            },
            "tls.check_client: client certificates are always checked",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        ServerTlsSettings(**settings)  # type: ignore[arg-type]
