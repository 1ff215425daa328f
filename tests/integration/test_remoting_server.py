"""The server over real sockets, on both kinds of loop."""

import asyncio
import contextlib
import logging
import socket
import time
from typing import Any

import pytest

from skylark.errors import BrokerError, ConnectionLost, RequestTimeout, SystemBusy
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand, TypedCommand, prefix
from skylark.protocol.connection import Limits
from skylark.protocol.requests.client import GetConsumerListByGroup, NotifyConsumerIdsChanged
from skylark.protocol.requests.offset import GetMaxOffset, GetMinOffset, UpdateConsumerOffset
from skylark.remoting.connection_pool import REQUESTS_IN_FLIGHT_MAX, ConnectionPool
from skylark.remoting.link import Link
from skylark.remoting.server import EARLY_BYTES, BatchRoute, Peer, RemotingServer, ServerLimits
from tests.unit.remoting.rig import HOST, LOOPS, PULL, SEND, Rig, frame, raw_client, run_on, running, until

pytestmark = pytest.mark.parametrize("loop", list(LOOPS))


def test_what_handlers_return_and_raise_is_answered(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running() as rig:
            pool = ConnectionPool()
            assert await pool.call(rig.address, GetMaxOffset("t", 3)) == 3
            assert await pool.call(rig.address, GetMinOffset("t", 3)) == 0
            with pytest.raises(BrokerError) as caught:
                await pool.call(rig.address, GetMaxOffset("t", 17))
            assert (caught.value.code, caught.value.remark) == (ResponseCode.TOPIC_NOT_EXIST, "no such topic")
            with pytest.raises(BrokerError) as caught:
                await pool.call(rig.address, GetMaxOffset("t", 18))
            assert (caught.value.code, caught.value.remark) == (1, "ZeroDivisionError: a bug")
            with pytest.raises(BrokerError, match="another bug"):
                await pool.call(rig.address, GetMinOffset("t", 18))
            with pytest.raises(BrokerError, match="cannot encode the reply"):
                await pool.call(rig.address, GetMinOffset("t", 21))
            with pytest.raises(BrokerError) as caught:
                await pool.call(rig.address, GetConsumerListByGroup("g"))
            assert (caught.value.code, caught.value.remark) == (3, " request type 38 not supported")
            await pool.close()

    with caplog.at_level(logging.ERROR):
        run_on(loop, scenario())
    assert [record.message for record in caplog.records] == [
        "handler failed code=30",
        "handler failed code=31",
        "cannot encode reply code=31",
    ]


def test_oneway_requests_are_never_answered(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig, raw_client(rig.port) as client:
            for queue_id in (3, 17, 18):
                await client.send(frame(GetMaxOffset("t", queue_id).to_command(oneway=True), 7))
            await client.send(frame(GetConsumerListByGroup("g").to_command(oneway=True), 7))
            await client.send(frame(SEND.to_command(oneway=True), 7))
            await client.send(frame(GetMinOffset("t", 3).to_command(), 8))
            assert (await client.receive()).opaque == 8
            assert sum(rig.batches) == 1

    run_on(loop, scenario())


def test_what_comes_together_is_handled_and_answered_together(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig, raw_client(rig.port) as client:
            await client.send(b"".join(frame(SEND.to_command(), opaque) for opaque in range(50)))
            answers = [await client.receive() for _ in range(50)]
            assert [answer.opaque for answer in answers] == list(range(50))
            assert all(answer.fields["queueOffset"] == "100" for answer in answers)
            assert sum(rig.batches) == 50
            assert len(rig.batches) <= 3

    run_on(loop, scenario())


def test_what_is_written_while_gathering_leaves_at_its_end(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            with socket.create_connection((HOST, rig.port), timeout=20) as client:
                await until(lambda: len(rig.server.peers) == 1)
                [peer] = rig.server.peers
                with rig.server.gathering():
                    peer.write(b"first,")
                    peer.write(b"second")
                    client.setblocking(False)
                    with pytest.raises(BlockingIOError):
                        client.recv(100)
                client.settimeout(20)
                # The loop has had no turn since, and gets none in here.
                assert client.recv(12, socket.MSG_WAITALL) == b"first,second"
                peer.write(b"third")
                client.setblocking(False)
                with pytest.raises(BlockingIOError):
                    client.recv(100)
                received = await asyncio.get_running_loop().sock_recv(client, 100)
                assert received == b"third"

    run_on(loop, scenario())


def test_answers_of_some_size_leave_one_by_one(loop: str) -> None:
    """The peer reads the first while the others are made."""

    async def scenario() -> None:
        async with running() as rig:
            rig.pull_answer = b"r" * EARLY_BYTES.start
            received: list[int] = []
            pull = rig.pull

            def watched(peer: Peer, batch: list[TypedCommand[Any]]) -> None:
                for command in batch:
                    pull(peer, [command])
                    received.append(len(client.recv(1 << 20)))  # the loop has had no turn since

            rig.pull = watched  # type: ignore[method-assign]
            port = await rig.server.listen(HOST, 0, rig.routes())
            with socket.create_connection((HOST, port), timeout=20) as client:
                client.sendall(b"".join(frame(PULL.to_command(), opaque) for opaque in range(3)))
                await until(lambda: len(received) == 3)
            assert min(received) > 0

    run_on(loop, scenario())


def test_hot_requests_with_wrong_fields_are_refused_one_by_one(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig, raw_client(rig.port) as client:
            bad = SEND.to_command()
            bad.fields["f"] = "abc"
            missing = SEND.to_command()
            del missing.fields["b"]
            frames = (
                frame(SEND.to_command(), 1),
                frame(bad, 2),
                frame(missing, 3),
                frame(SEND.to_command(), 4),
            )
            await client.send(b"".join(frames))
            answers = {answer.opaque: answer for answer in [await client.receive() for _ in range(4)]}
            assert [answers[opaque].code for opaque in (1, 2, 3, 4)] == [0, 1, 1, 0]
            assert "SendMessageV2" in (answers[2].remark or "")
            assert not answers[2].fields

    run_on(loop, scenario())


def test_a_batch_handler_that_fails_answers_its_batch_only(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig, raw_client(rig.port) as client:
            commits = [UpdateConsumerOffset("g", "t", 0, offset) for offset in (12, 13)]
            data = b"".join(frame(commit.to_command(), number) for number, commit in enumerate(commits))
            await client.send(data + frame(SEND.to_command(), 2))
            answers = {answer.opaque: answer.code for answer in [await client.receive() for _ in range(3)]}
            assert answers == {0: 1, 1: 1, 2: 0}

    run_on(loop, scenario())


def test_every_port_has_its_own_table(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            fast = {code: route for code, route in rig.routes().items() if code != RequestCode.PULL_MESSAGE}
            fast_port = await rig.server.listen(HOST, 0, fast)
            pool = ConnectionPool()
            assert (await pool.call(rig.address, PULL)).records == rig.pull_answer
            with pytest.raises(BrokerError, match=" request type 11 not supported"):
                await pool.call(f"{HOST}:{fast_port}", PULL)
            assert (await pool.call(f"{HOST}:{fast_port}", SEND)).code == 0
            await pool.close()

    run_on(loop, scenario())


def test_tables_must_give_hot_codes_to_batches(loop: str) -> None:
    async def scenario() -> None:
        rig = Rig()
        for routes in ({10: rig.min_offset}, {30: BatchRoute(rig.send)}):
            with pytest.raises(ValueError, match="hot codes"):
                await RemotingServer().listen(HOST, 0, routes)

    run_on(loop, scenario())


# --- Servers that ask ---


def test_the_server_asks_and_tells_its_clients(loop: str) -> None:
    async def scenario() -> None:
        asked: list[RemotingCommand] = []

        async def on_request(link: Link, command: RemotingCommand) -> RemotingCommand:
            asked.append(command)
            return command.reply(body=b'{"consumerIdList":["me"]}')

        async with running() as rig:
            pool = ConnectionPool(on_request=on_request)
            await pool.call(rig.address, GetMinOffset("t", 0))
            [peer] = rig.server.peers
            assert (await peer.call(GetConsumerListByGroup("g"), timeout_s=60)).consumer_id_list == ["me"]
            peer.notify(NotifyConsumerIdsChanged("g"))
            await until(lambda: len(asked) == 2)
            assert (asked[1].code, asked[1].is_oneway, asked[1].language) == (40, True, "JAVA")
            assert asked[1].fields == {"consumerGroup": "g"}
            await pool.close()
            with pytest.raises(ConnectionLost):
                await peer.call(GetConsumerListByGroup("g"), timeout_s=60)

    run_on(loop, scenario())


def test_a_client_that_does_not_answer(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig, raw_client(rig.port) as client:
            await client.send(frame(GetMinOffset("t", 0).to_command()))
            await client.receive()
            [peer] = rig.server.peers
            with pytest.raises(RequestTimeout):
                await peer.call(GetConsumerListByGroup("g"), timeout_s=0.05)
            late = await client.receive()
            await client.send(frame(late.reply(body=b"{}"), late.opaque))  # nobody waits any more
            await client.send(frame(GetMinOffset("t", 0).to_command(), 5))
            assert (await client.receive()).opaque == 5

    run_on(loop, scenario())


def test_a_server_that_asks_too_much_is_told_so(loop: str) -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def on_request(link: Link, command: RemotingCommand) -> RemotingCommand:
            await gate.wait()
            return command.reply(body=b"{}")

        async with running() as rig:
            pool = ConnectionPool(on_request=on_request)
            await pool.call(rig.address, GetMinOffset("t", 0))
            [peer] = rig.server.peers
            request = GetConsumerListByGroup("g")
            calls = [
                asyncio.create_task(peer.call(request, timeout_s=20)) for _ in range(REQUESTS_IN_FLIGHT_MAX)
            ]
            await asyncio.sleep(0)
            with pytest.raises(SystemBusy):
                await peer.call(request, timeout_s=20)
            gate.set()
            await asyncio.gather(*calls)
            await pool.close()

    run_on(loop, scenario())


def test_clients_over_ipv6(loop: str) -> None:
    async def scenario() -> None:
        rig = Rig()
        try:
            rig.port = await rig.server.listen("::1", 0, rig.routes())
        except OSError:
            pytest.skip("no IPv6 here")
        pool = ConnectionPool()
        assert await pool.call(f"[::1]:{rig.port}", GetMaxOffset("t", 3)) == 3
        [peer] = rig.server.peers
        assert peer.address.startswith("[::1]:")
        assert peer.packed_host[:16] == b"\0" * 15 + b"\1"
        await pool.close()
        await rig.server.close()

    run_on(loop, scenario())


# --- Limits ---


def test_a_slow_reader_waits_and_harms_nobody(loop: str) -> None:
    limits = ServerLimits(write_high_water_bytes=256 << 10)

    async def scenario() -> None:
        async with running(limits) as rig, raw_client(rig.port) as slow:
            rig.pull_answer = b"r" * (256 << 10)
            count = 400
            sending = asyncio.create_task(
                slow.send(b"".join(frame(PULL.to_command(), n) for n in range(count)))
            )
            await until(lambda: rig.pulled > 0 and not next(iter(rig.server.peers)).is_writable)
            [peer] = rig.server.peers
            pool = ConnectionPool()
            for _ in range(20):
                assert await pool.call(rig.address, GetMaxOffset("t", 3)) == 3
            # The kernel's buffers hold some answers, ours hold a bounded number more.
            assert rig.pulled < count / 2
            assert peer._transport is not None
            assert peer._transport.get_write_buffer_size() < (256 << 10) * 8
            held = rig.pulled
            await pool.call(rig.address, GetMaxOffset("t", 3))
            assert rig.pulled == held
            for opaque in range(count):  # it reads at last: nothing was lost
                answer = await slow.receive()
                assert (answer.opaque, len(answer.body)) == (opaque, 256 << 10)
            await sending
            await pool.close()

    run_on(loop, scenario())


def test_a_peer_that_never_reads_is_cut_off(loop: str) -> None:
    limits = ServerLimits(write_high_water_bytes=64 << 10, write_bytes_max=1 << 20)

    async def scenario() -> None:
        async with running(limits) as rig, raw_client(rig.port) as client:
            await client.send(frame(GetMinOffset("t", 0).to_command()))
            await client.receive()
            [peer] = rig.server.peers
            for _ in range(1000):
                peer.write(b"p" * (64 << 10))
                if peer.is_closed:
                    break
            assert peer.is_closed
            await until(lambda: not rig.server.peers)

    run_on(loop, scenario())


def test_a_thousand_connections(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            # None of these times matters: a machine may stand still for seconds.
            pools = [ConnectionPool(connect_timeout_s=60) for _ in range(1000)]
            for start in range(0, 1000, 100):
                part = pools[start : start + 100]
                calls = (pool.call(rig.address, GetMaxOffset("t", 3), timeout_s=60) for pool in part)
                assert await asyncio.gather(*calls) == [3] * 100
            assert len(rig.server.peers) == 1000
            sends = (pool.call(rig.address, SEND, timeout_s=60) for pool in pools)
            assert {result.code for result in await asyncio.gather(*sends)} == {0}
            for pool in pools:
                await pool.close()
            await until(lambda: not rig.server.peers)
            assert len(rig.gone) == 1000

    run_on(loop, scenario(), timeout_s=240)


@pytest.mark.parametrize("turns", range(8))
def test_who_comes_while_a_server_closes_is_not_forgotten(loop: str, turns: int) -> None:
    """In whichever turn of the loop: the connection is closed, and not when its memory is needed."""

    async def scenario() -> None:
        async with running() as rig:
            with socket.create_connection((HOST, rig.port), timeout=20) as client:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await rig.server.close()
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.to_thread(client.recv, 1) == b""

    run_on(loop, scenario())


def test_one_connection_too_many(loop: str) -> None:
    async def scenario() -> None:
        async with running(ServerLimits(connections_max=2)) as rig:
            async with raw_client(rig.port), raw_client(rig.port):
                await until(lambda: len(rig.server.peers) == 2)
                async with raw_client(rig.port) as third:
                    assert await third.is_closed()
            await until(lambda: not rig.server.peers)
            assert len(rig.gone) == 2
            async with raw_client(rig.port) as client:
                await client.send(frame(GetMinOffset("t", 0).to_command()))
                assert (await client.receive()).code == 0

    run_on(loop, scenario())


def test_too_many_requests_in_flight(loop: str) -> None:
    async def scenario() -> None:
        async with running(ServerLimits(requests_in_flight_max=3)) as rig:
            pool = ConnectionPool()
            waiting = [asyncio.create_task(pool.call(rig.address, GetMaxOffset("t", 19))) for _ in range(3)]
            await until(lambda: len(rig.server.tasks) == 3)
            with pytest.raises(SystemBusy, match=r"^response code 2: \[OVERLOAD\]"):
                await pool.call(rig.address, GetMaxOffset("t", 3))
            assert (await pool.call(rig.address, SEND)).code == 0  # hot requests never wait in coroutines
            rig.gate.set()
            assert await asyncio.gather(*waiting) == [19, 19, 19]
            assert await pool.call(rig.address, GetMaxOffset("t", 3)) == 3
            await pool.close()

    run_on(loop, scenario())


def test_too_many_bytes_in_flight(loop: str) -> None:
    async def scenario() -> None:
        async with running(ServerLimits(bytes_in_flight_max=1 << 20)) as rig:
            async with raw_client(rig.port) as greedy, raw_client(rig.port) as healthy:
                await greedy.send(prefix(10, 8 << 20) + b"x" * (512 << 10))
                await until(lambda: rig.server.bytes_in_flight > 500_000)
                await healthy.send(frame(GetMaxOffset("t", 3).to_command()))
                assert (await healthy.receive()).code == 0
                greedy.writer.write(b"x" * (1 << 20))
                assert await greedy.is_closed()
                await until(lambda: rig.server.bytes_in_flight == 0)
                await healthy.send(frame(GetMaxOffset("t", 3).to_command()))
                assert (await healthy.receive()).code == 0

    run_on(loop, scenario())


def test_bodies_of_requests_at_work_count_as_bytes_in_flight(loop: str) -> None:
    async def scenario() -> None:
        async with running(ServerLimits(bytes_in_flight_max=1000)) as rig:
            async with raw_client(rig.port) as large, raw_client(rig.port) as other:
                held = GetMaxOffset("t", 19).to_command()
                held.body = b"x" * 2000
                await large.send(frame(held))
                await until(lambda: rig.server.bytes_in_flight == 2000)
                await other.send(frame(GetMinOffset("t", 0).to_command()))
                assert (await other.receive()).code == ResponseCode.SYSTEM_BUSY
                rig.gate.set()
                assert (await large.receive()).code == 0
                await until(lambda: rig.server.bytes_in_flight == 0)
                await other.send(frame(GetMinOffset("t", 0).to_command()))
                assert (await other.receive()).code == 0

    run_on(loop, scenario())


def test_idle_connections_are_closed_and_busy_ones_are_not(loop: str) -> None:
    async def scenario() -> None:
        async with running(ServerLimits(idle_timeout_s=1.5)) as rig:
            async with (
                raw_client(rig.port) as idle,
                raw_client(rig.port) as drip,
                raw_client(rig.port) as busy,
            ):
                started = time.monotonic()
                waiting = asyncio.create_task(idle.is_closed())
                dripping = asyncio.create_task(drip.is_closed())
                request = frame(GetMinOffset("t", 0).to_command())
                for byte in request[:-1]:  # one byte now and then is not a sign of life
                    if waiting.done() and dripping.done():
                        break
                    drip.writer.write(bytes([byte]))
                    await busy.send(request)
                    await busy.receive()
                    await asyncio.sleep(0.05)
                assert await waiting
                assert await dripping
                assert 1.4 < time.monotonic() - started < 60
                await busy.send(request)
                assert (await busy.receive()).code == 0
                assert len(rig.server.peers) == 1

    run_on(loop, scenario())


# --- The end ---


def test_closing_finishes_what_is_at_work(loop: str) -> None:
    async def scenario() -> None:
        rig = Rig()
        rig.port = await rig.server.listen(HOST, 0, rig.routes())
        pool = ConnectionPool()
        waiting = asyncio.create_task(pool.call(rig.address, GetMaxOffset("t", 19)))
        await until(lambda: len(rig.server.tasks) == 1)
        closing = asyncio.create_task(rig.server.close())
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            rig.gate.set()
            assert await waiting == 19
            await closing
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(HOST, rig.port)
        assert not rig.server.peers
        await pool.close()

    run_on(loop, scenario())


def test_closing_does_not_wait_for_ever(loop: str) -> None:
    async def scenario() -> None:
        rig = Rig(ServerLimits(write_high_water_bytes=64 << 10))
        rig.pull_answer = b"r" * (8 << 20)
        rig.port = await rig.server.listen(HOST, 0, rig.routes())
        pool = ConnectionPool()
        stuck = asyncio.create_task(pool.call(rig.address, GetMaxOffset("t", 20), timeout_s=30))
        async with raw_client(rig.port) as deaf:
            await deaf.send(frame(PULL.to_command()))
            await until(lambda: rig.pulled == 1 and len(rig.server.tasks) == 1)
            started = time.monotonic()
            await rig.server.close(drain_timeout_s=0.4)
            assert time.monotonic() - started < 20
        with pytest.raises(ConnectionLost):
            await stuck
        assert not rig.server.tasks
        assert not rig.server.peers
        await pool.close()

    run_on(loop, scenario())


# --- Bad input ---


def with_header(text: bytes, encoding: int = 0) -> bytes:
    return prefix(len(text), 0, encoding) + text


CLOSING = {
    "length 0": b"\0\0\0\0",
    "length 1": b"\0\0\0\1\0\0\0\0",
    "length 3": b"\0\0\0\3\0\0\0",
    "length -1": b"\xff\xff\xff\xff\0\0\0\2{}",
    "length 2^31-1": b"\x7f\xff\xff\xff",
    "length limit+1": ((16 << 20) - 3).to_bytes(4, "big"),
    "header longer than frame": b"\0\0\0\x0a\0\0\0\x64{}    ",
    "unknown encoding": with_header(b'{"code":31}', 7),
    "not an object": with_header(b"[]"),
    "deep": with_header(b'{"code":31,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "NaN": with_header(b'{"code":31,"opaque":NaN}'),
    "huge integer": with_header(b'{"code":31,"opaque":' + b"9" * 5000 + b"}"),
    "lone surrogate": with_header(b'{"code":31,"remark":"\\ud800"}'),
    "invalid UTF-8": with_header(b'{"code":31,"remark":"\xff"}'),
    "wrong type": with_header(b'{"code":"x"}'),
    "list as field": with_header(b'{"code":31,"extFields":{"topic":[]}}'),
    "list of fields": with_header(b'{"code":31,"extFields":[]}'),
    "lying binary header": with_header(b"\0\x1f\0\1\xdf" + b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\0" * 4, 1),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": bytes.fromhex("16030100f1010000ed0303"),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
}


@pytest.mark.parametrize("name", CLOSING)
def test_bad_input_closes_its_own_connection_only(loop: str, name: str) -> None:
    async def scenario() -> None:
        async with running(ServerLimits(protocol=Limits(header_bytes_max=1 << 20))) as rig:
            async with raw_client(rig.port) as bad, raw_client(rig.port) as healthy:
                good = frame(GetMinOffset("t", 3).to_command(), 1)
                await bad.send(good + CLOSING[name] + good)
                answer = await bad.receive()  # what came before is served
                assert answer.opaque == 1
                assert await bad.is_closed()
                await healthy.send(good)
                assert (await healthy.receive()).fields == {"offset": "0"}
                await until(lambda: len(rig.server.peers) == 1)
                assert rig.server.bytes_in_flight == 0

    run_on(loop, scenario())


def test_bad_input_that_is_answered(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig, raw_client(rig.port) as client:
            unknown = RemotingCommand(code=9999)
            await client.send(frame(unknown, 1))
            assert ((await client.receive()).code, unknown.code) == (3, 9999)
            await client.send(frame(GetMaxOffset("t", 3).to_command(), -(1 << 31)))
            assert (await client.receive()).opaque == -(1 << 31)
            for fields in ({}, {"topic": "t", "queueId": "x"}, {"topic": "t", "queueId": "9" * 99}):
                await client.send(frame(RemotingCommand(code=30, fields=fields), 2))
                assert (await client.receive()).code == 1
            # A response that nobody waits for, with a code of a hot request too.
            await client.send(frame(RemotingCommand(code=0, flag=1), 3))
            await client.send(frame(RemotingCommand(code=310, flag=1, fields=SEND.to_fields()), 3))
            # The same opaque twice: both are answered.
            await client.send(frame(GetMinOffset("t", 0).to_command(), 4) * 2)
            assert [(await client.receive()).opaque for _ in range(2)] == [4, 4]
            assert rig.batches == []

    run_on(loop, scenario())


def test_a_frame_cut_off_by_the_end_of_the_stream(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            async with raw_client(rig.port) as client:
                await client.send(frame(SEND.to_command())[:-10])
                await until(lambda: rig.server.bytes_in_flight > 0)
            await until(lambda: not rig.server.peers)
            assert rig.server.bytes_in_flight == 0
            assert rig.batches == []

    run_on(loop, scenario())


def test_one_frame_in_a_thousand_segments(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig, raw_client(rig.port) as client:
            for byte in frame(SEND.to_command(), 6):
                client.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.receive()).opaque == 6

    run_on(loop, scenario())
