"""The port of the proxy: TLS beside plain text, users, the HAProxy header, processes that share it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from h2.connection import H2Connection
from h2.events import Event, ResponseReceived, StreamEnded

from skylark.auth.model import Acl, AclEntry, Action, User, group, topic
from skylark.auth.store import AuthStore
from skylark.errors import BrokerError
from skylark.processes import PortReservation
from skylark.proxy.proxy import GrpcProxy
from skylark.proxy.schema import SERVICE, Code, v2
from skylark.remoting.address import split_address
from skylark.settings.auth import AuthSettings
from skylark.settings.client import ClientSettings
from skylark.settings.proxy import ProxySettings
from skylark.settings.tls import ServerTlsSettings, TlsMode
from tests.support.broker import running_cluster, until
from tests.support.grpc_client import (
    GrpcTestClient,
    consumer_settings,
    new_message,
    producer_settings,
    resource,
    running_proxy,
)

ABSENT = v2.QueryRouteRequest(topic=resource("absent"))


def trusting() -> ssl.SSLContext:
    """As Java's client: any certificate will do."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def test_plain_text_and_tls_share_the_port(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path) as (name_server, _),
        running_proxy(name_server.address) as proxy,
        GrpcTestClient(proxy.address) as plain,
        GrpcTestClient(proxy.address, tls=trusting()) as encrypted,
    ):
        for client in (encrypted, plain, encrypted):  # the first waits for the certificate
            assert (await client.code("QueryRoute", ABSENT))[0] is Code.TOPIC_NOT_FOUND
        _, writer = await asyncio.open_connection(*split_address(proxy.address), ssl=trusting())
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()


async def test_plain_text_is_refused_where_tls_is_required(tmp_path: Path) -> None:
    enforcing = ServerTlsSettings(mode=TlsMode.ENFORCING, test_mode=True)
    async with (
        running_cluster(tmp_path) as (name_server, _),
        running_proxy(name_server.address, tls=enforcing) as proxy,
        GrpcTestClient(proxy.address) as plain,
        GrpcTestClient(proxy.address, tls=trusting()) as encrypted,
    ):
        with pytest.raises((ConnectionError, OSError, Exception)) as caught:
            await plain.call("QueryRoute", ABSENT)
        assert not isinstance(caught.value, AssertionError)
        assert (await encrypted.code("QueryRoute", ABSENT))[0] is Code.TOPIC_NOT_FOUND


async def test_tls_is_refused_where_it_is_disabled(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path) as (name_server, _),
        running_proxy(name_server.address, tls=ServerTlsSettings(mode=TlsMode.DISABLED)) as proxy,
        GrpcTestClient(proxy.address) as plain,
    ):
        with pytest.raises(OSError):
            await asyncio.open_connection(*split_address(proxy.address), ssl=trusting())
        assert (await plain.code("QueryRoute", ABSENT))[0] is Code.TOPIC_NOT_FOUND


# --- The client's address ---


async def _seen_host(proxy: GrpcProxy, header: bytes) -> str:
    """The address that the proxy takes a client for, which sends this before its HTTP/2 preface."""
    reader, writer = await asyncio.open_connection(*split_address(proxy.address))
    try:
        writer.write(header + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        async with asyncio.timeout(30):
            await reader.read(1)
        hosts = [connection.host for connection in proxy._server.connections]
        return hosts[0] if hosts else "closed"
    except ConnectionError:
        return "closed"
    finally:
        writer.close()
        await until(lambda: not proxy._server.connections)


async def test_header_of_a_load_balancer_is_believed_from_named_peers_only(tmp_path: Path) -> None:
    header = b"PROXY TCP4 10.9.8.7 10.0.0.1 4711 8081\r\n"
    async with running_cluster(tmp_path) as (name_server, _):
        async with running_proxy(name_server.address, proxy_protocol_from="127.0.0.0/8") as proxy:
            assert await _seen_host(proxy, header) == "10.9.8.7"
            assert await _seen_host(proxy, b"") == "127.0.0.1"
        async with running_proxy(name_server.address) as proxy:
            assert await _seen_host(proxy, header) == "closed"
            assert await _seen_host(proxy, b"") == "127.0.0.1"


# --- Users ---

SECRET = "secret"
AUTH = AuthSettings(enabled=True, authorization=True, first_user='{"username":"root","password":"secret"}')


def signed(user: str, secret: str = SECRET, date: str = "20240101T000000Z") -> dict[str, str]:
    signature = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()
    return {
        "x-mq-date-time": date,
        "authorization": f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature}",
    }


def users() -> AuthStore:
    store = AuthStore()
    store.put_user(User("root", "secret", is_super=True))
    store.put_user(User("seller", "secret"))
    entries = (
        AclEntry(topic("T"), frozenset({Action.PUB}), is_allowed=True),
        AclEntry(group("G"), frozenset({Action.SUB}), is_allowed=True),
    )
    store.put_acl(Acl("seller", entries))
    return store


async def test_calls_need_a_signature_and_the_rights_of_its_user(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (name_server, _):
        proxy = GrpcProxy(
            ProxySettings(port=0, auth=AUTH), ClientSettings(name_servers=name_server.address), users=users()
        )
        await proxy.start()
        try:
            await _check_rights(proxy)
        finally:
            await proxy.stop()


async def _check_rights(proxy: GrpcProxy) -> None:
    async def code(metadata: dict[str, str], method: str, request: Any) -> Code:
        async with GrpcTestClient(proxy.address, metadata=metadata) as client:
            return (await client.code(method, request))[0]

    send = v2.SendMessageRequest(messages=[new_message("T")])
    assert await code({}, "SendMessage", send) is Code.UNAUTHORIZED
    assert await code(signed("seller", "wrong"), "SendMessage", send) is Code.UNAUTHORIZED
    assert await code(signed("seller"), "SendMessage", send) is Code.TOPIC_NOT_FOUND  # admitted
    assert await code(signed("root"), "SendMessage", send) is Code.TOPIC_NOT_FOUND
    other = v2.SendMessageRequest(messages=[new_message("T"), new_message("U")])
    assert await code(signed("seller"), "SendMessage", other) is Code.UNAUTHORIZED
    ack = v2.AckMessageRequest(group=resource("G"), topic=resource("T"))
    assert await code(signed("seller"), "AckMessage", ack) is Code.UNAUTHORIZED  # no SUB on the topic
    async with GrpcTestClient(proxy.address, metadata=signed("seller")) as client:
        async with client.telemetry(producer_settings("T")):
            pass
        status, _ = await client.receive("T", "G")
        assert status.code == Code.UNAUTHORIZED
        with pytest.raises(AssertionError, match="UNAUTHORIZED"):
            async with client.telemetry(consumer_settings("G", "T")):
                pass


# --- Processes ---


async def test_processes_share_a_port(tmp_path: Path) -> None:
    reservation = PortReservation(0)
    port = reservation.base
    async with running_cluster(tmp_path) as (name_server, _):
        reservation.release()
        words = ["--namesrv", name_server.address, "--port", str(port), "--processes", "2"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "skylark", "proxy", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                while b"2 gRPC proxies on" not in (line := await process.stdout.readline()):
                    assert line, "ended before it was ready"
            async with GrpcTestClient(f"127.0.0.1:{port}") as client:
                assert (await client.code("QueryRoute", ABSENT))[0] is Code.TOPIC_NOT_FOUND
        finally:
            process.terminate()
            assert await process.wait() == 0


async def test_proxy_by_itself_has_the_users_of_a_broker(tmp_path: Path) -> None:
    inner = '{"accessKey":"root","secretKey":"secret"}'
    auth = AuthSettings(enabled=True, authorization=True, first_user=AUTH.first_user, inner_credentials=inner)
    async with running_cluster(tmp_path, auth=auth) as (name_server, broker):
        root = ClientSettings(name_servers=name_server.address, access_key="root", secret_key=SECRET)
        proxy = GrpcProxy(ProxySettings(port=0, auth=AUTH), root)
        await proxy.start()
        try:
            assert proxy._user_copy is not None
            broker.access.store.replace(users().users(), users().acls())
            await proxy._user_copy.refresh()
            await _check_rights(proxy)
        finally:
            await proxy.stop()
        nobody = ClientSettings(name_servers=name_server.address)
        refused = GrpcProxy(ProxySettings(port=0, auth=AUTH), nobody)
        with pytest.raises(BrokerError):
            await refused.start()


async def test_a_call_without_its_message_ends_with_its_deadline(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (name_server, _), running_proxy(name_server.address) as proxy:
        client = H2Connection()
        client.initiate_connection()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "test"),
            (":path", f"/{SERVICE}/QueryRoute"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", "100m"),
        ]
        client.send_headers(1, headers)
        reader, writer = await asyncio.open_connection(*split_address(proxy.address))
        writer.write(client.data_to_send())
        found: list[Event] = []
        async with asyncio.timeout(30):
            while not any(isinstance(event, StreamEnded) for event in found):
                found += client.receive_data(await reader.read(4096))
        writer.close()
        [response] = [event for event in found if isinstance(event, ResponseReceived)]
        assert (b"grpc-status", b"4") in response.headers
