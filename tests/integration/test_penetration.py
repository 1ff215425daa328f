"""Attacks on a broker with TLS and users: nothing is answered, nothing crashes, memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.errors import SettingsError
from skylark.protocol.bodies import UserInfo
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.requests.admin import AuthUpdateUser
from skylark.protocol.signature import Signer
from skylark.remoting.address import split_address
from skylark.settings import TlsMode
from skylark.settings.auth import AuthSettings
from skylark.settings.credentials import Credentials, read_credentials
from tests.integration.broker_rig import anonymous_bytes, wire
from tests.support.broker import BrokerClient, running_broker, until
from tests.support.certificates import CertificateFiles, make_files

ROOT = Credentials("root", "root-secret")
AUTH = AuthSettings(
    enabled=True,
    authorization=True,
    first_user='{"username":"root","password":"root-secret"}',
    failures_max=0,
)
SILENT = 1000
BYTES_PER_SILENT_MAX = 64 << 10
FIELDS = {
    "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0",
    "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_files(tmp_path / "certificates")


@contextlib.asynccontextmanager
async def attacked(
    directory: Path, files: CertificateFiles, **tls: object
) -> AsyncIterator[tuple[Broker, BrokerClient]]:
    """A broker, and a client of it that must be served whatever happens."""
    settings = files.server(mode=TlsMode.PERMISSIVE, **tls)
    async with (
        running_broker(directory / "store", auth=AUTH, tls=settings) as broker,
        BrokerClient(broker.address, credentials=ROOT) as client,
    ):
        await client.send("T", b"first")
        yield broker, client


def stored(broker: Broker) -> int:
    return sum(broker.store.max_offset("T", queue) for queue in range(4))


# --- Handshakes ---


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 3 * SILENT
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"needs {needed} open files, {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def silent_connections(address: str, count: int, sent: bytes) -> list[socket.socket]:
    """Connections that say this and no more. Without streams: their memory is not the server's."""
    loop = asyncio.get_running_loop()
    opened = []
    for _ in range(count):
        connected = socket.socket()
        connected.setblocking(False)
        await loop.sock_connect(connected, split_address(address))
        connected.send(sent)
        opened.append(connected)
    return opened


@pytest.mark.parametrize(
    "sent",
    [pytest.param(b"\x16", id="tls"), pytest.param(b"\x00", id="plain", marks=pytest.mark.nightly)],
)
@pytest.mark.usefixtures("many_files")
async def test_a_thousand_connections_that_send_one_byte_cost_little(
    tmp_path: Path, files: CertificateFiles, sent: bytes
) -> None:
    async with attacked(tmp_path, files, handshakes_per_s=0) as (broker, client):
        before = anonymous_bytes()
        opened = await silent_connections(broker.address, SILENT, sent)
        try:
            await until(lambda: len(broker._server.peers) > SILENT)
            assert anonymous_bytes() - before < SILENT * BYTES_PER_SILENT_MAX
            await client.send("T", b"others are served")
        finally:
            for each in opened:
                each.close()
        await until(lambda: len(broker._server.peers) == 1)
        assert stored(broker) == 2


async def test_unfinished_handshakes_are_limited_in_number_and_time(
    tmp_path: Path, files: CertificateFiles
) -> None:
    limits = {"handshakes_max": 20, "handshake_timeout_ms": 2000}
    async with attacked(tmp_path, files, **limits) as (broker, client):
        opened = await silent_connections(broker.address, 30, b"\x16")
        try:
            await until(
                lambda: len(broker._server.peers) == 21
            )  # ten were closed at once, plain text is served
            await client.send("T", b"x")
            await until(lambda: len(broker._server.peers) == 1)  # the others later
        finally:
            for each in opened:
                each.close()
        reader, writer = await asyncio.open_connection(
            *split_address(broker.address), ssl=files.client_context()
        )
        writer.close()
        assert reader is not None


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\xff\xff" + bytes(1000),
        b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(16_380),  # a hello of 16 MiB
        b"\x16\x03\x03\x00\x04\x01\x00\x00\x00" * 1000,  # empty hellos
        b"\x16\x03\x01\x00\x02\x16\x16",
        b"\x16" * 100_000,
    ],
    ids=["record", "hello", "hellos", "garbage", "flood"],
)
async def test_invalid_hellos_close_the_connection(
    tmp_path: Path, files: CertificateFiles, sent: bytes
) -> None:
    async with attacked(tmp_path, files, handshake_timeout_ms=1000) as (broker, client):
        reader, writer = await asyncio.open_connection(*split_address(broker.address))
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 30)
            assert len(answer) < 100  # an alert at most
        writer.close()
        await client.send("T", b"x")
        await until(lambda: len(broker._server.peers) == 1)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
async def test_renegotiation_is_refused(tmp_path: Path, files: CertificateFiles) -> None:
    async with attacked(tmp_path, files) as (broker, client):
        started = await asyncio.create_subprocess_exec(
            "openssl", "s_client", "-connect", broker.address, "-tls1_2", "-CAfile", str(files.authority),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert started.stdout is not None
        assert started.stdin is not None
        output = b""
        while b"Verify return code: 0" not in output:
            output += await asyncio.wait_for(started.stdout.read(1 << 16), 30)
        started.stdin.write(b"R\n")  # renegotiate
        rest, _ = await asyncio.wait_for(started.communicate(), 30)
        assert b"RENEGOTIATING" in rest
        assert b"no renegotiation" in rest
        await client.send("T", b"x")


async def test_a_record_longer_than_tls_allows_is_not_kept(tmp_path: Path, files: CertificateFiles) -> None:
    async with attacked(tmp_path, files) as (broker, client):
        host, port = split_address(broker.address)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaken = files.client_context().wrap_bio(incoming, outgoing, server_hostname=host)
        reader, writer = await asyncio.open_connection(host, port)
        while True:
            try:
                shaken.do_handshake()
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(1 << 16))
            else:
                writer.write(outgoing.read())
                break
        before = anonymous_bytes()
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"\x17\x03\x03\xff\xff" + bytes(1 << 20))
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(reader.read(1 << 16), 30):
                pass
        writer.close()
        await until(lambda: len(broker._server.peers) == 1)
        assert anonymous_bytes() - before < 32 << 20
        await client.send("T", b"x")


# --- Requests ---


def signed_send(opaque: int = 1) -> bytes:
    command = RemotingCommand(code=310, opaque=opaque, version=479, fields=dict(FIELDS), body=b"first")
    Signer(ROOT).sign(command)
    return b"".join(encode(command))


async def test_requests_that_are_cut_store_nothing(tmp_path: Path, files: CertificateFiles) -> None:
    frame = signed_send()
    async with attacked(tmp_path, files) as (broker, _):
        for end in range(1, len(frame), 23):
            async with wire(broker.address) as raw:
                await raw.send(frame[:end])
        await until(lambda: len(broker._server.peers) == 1)
        assert stored(broker) == 1


async def test_requests_with_a_flipped_bit_store_nothing_else(
    tmp_path: Path, files: CertificateFiles
) -> None:
    """Code, opaque, flag, version and language are not signed: what is stored is what was signed."""
    frame = signed_send()
    assert bytes(frame).endswith(b"first")
    async with attacked(tmp_path, files) as (broker, client):
        for position in range(8, len(frame), 3):
            altered = bytearray(frame)
            altered[position] ^= 1 << position % 7
            async with wire(broker.address) as raw:
                if position % 2:  # the user is known then, and sends are decoded into their type
                    await raw.send(frame)
                    assert (await raw.answer()).code == 0
                await raw.send(bytes(altered))
                with contextlib.suppress(TimeoutError, EOFError, ConnectionError):
                    await asyncio.wait_for(raw.answer(), 0.02)  # a flag without a reply, a longer header
        await until(lambda: len(broker._server.peers) == 1)
        found = [message.body for queue in range(4) for message in await client.pull("T", queue, 0)]
        assert set(found) == {b"first"}
        gate = broker.access.gate
        assert gate is not None
        assert gate.refusals["signature"] > 10


async def test_a_recorded_request_is_worth_as_much_as_its_user(
    tmp_path: Path, files: CertificateFiles
) -> None:
    """A signature has no time: a recorded request is accepted until its secret or its user changes."""
    recorded = signed_send()
    async with attacked(tmp_path, files) as (broker, client), wire(broker.address) as raw:
        for is_accepted in (True, True, False):
            if not is_accepted:
                await client.ask(AuthUpdateUser(ROOT.access_key, body=UserInfo(password="another-secret")))
            before = stored(broker)
            await raw.send(recorded)
            reply = await raw.answer()
            assert reply.code == (ResponseCode.SUCCESS if is_accepted else ResponseCode.NO_PERMISSION)
            assert stored(broker) - before == is_accepted


# --- Files ---


@pytest.mark.parametrize("problem", ["group", "others", "directory", "missing", "binary"])
@pytest.mark.parametrize("which", ["first_user", "inner_credentials", "secrets_key_file"])
async def test_a_broker_does_not_start_with_secrets_that_others_may_read(
    tmp_path: Path, which: str, problem: str
) -> None:
    file = spoiled(tmp_path / "secret", problem)
    changes: dict[str, Any] = {
        "first_user": json.dumps({"username": "root", "password": f"@{file}"}),
        "inner_credentials": f"@{file}",
        "secrets_key_file": file,
    }
    with pytest.raises(SettingsError) as refused:
        async with running_broker(tmp_path / "store", auth=replace(AUTH, **{which: changes[which]})):
            pass
    assert str(file) in str(refused.value)
    expected = r"mode is 06[04][04]: other users may read it; chmod 600 it|cannot read the file|not a key"
    assert re.search(expected, str(refused.value))
    assert "root-secret" not in str(refused.value)


@pytest.mark.parametrize("problem", ["group", "others", "directory", "missing", "binary"])
async def test_a_broker_does_not_start_with_a_private_key_that_others_may_read(
    tmp_path: Path, problem: str
) -> None:
    key = spoiled(tmp_path / "server.key", problem)
    tls = replace(make_files(tmp_path / "certificates").server(), key=key)
    with pytest.raises(SettingsError, match=rf"{key}.*(chmod 600 it|directory|not a certificate)"):
        async with running_broker(tmp_path / "store", tls=tls):
            pass


@pytest.mark.parametrize("problem", ["group", "others", "directory", "missing", "binary"])
def test_a_client_does_not_use_secrets_that_others_may_read(tmp_path: Path, problem: str) -> None:
    with pytest.raises(SettingsError, match=r"chmod 600 it|cannot read the file"):
        read_credentials(spoiled(tmp_path / "secret", problem))


def spoiled(file: Path, problem: str) -> Path:
    match problem:
        case "directory":
            file.mkdir(mode=0o700)
        case "group" | "others":
            file.write_text('{"accessKey":"root","secretKey":"root-secret"}')
            file.chmod(0o640 if problem == "group" else 0o604)
        case "binary":
            file.touch(mode=0o600)
            file.write_bytes(b"\xff\xfe\x80")
    return file
