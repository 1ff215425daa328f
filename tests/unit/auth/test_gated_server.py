"""A server with a gate: batches stay batches, refusals are answered, guessing addresses are closed."""

from pathlib import Path

import pytest

from skylark.auth.access_control import AccessControl
from skylark.auth.gate import Gate
from skylark.auth.model import User
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.connection import typed_command
from skylark.protocol.signature import Signer
from skylark.settings.auth import AuthSettings
from skylark.settings.credentials import Credentials
from skylark.testing import ManualClock
from tests.unit.remoting.rig import SEND, frame, raw_client, run_on, running, until

ROOT = Credentials("root", "root-secret")
COUNT = 20


def gate(directory: Path, clock: ManualClock | None = None, failures_max: int = 0) -> Gate:
    settings = AuthSettings(enabled=True, authorization=True, failures_max=failures_max)
    control = AccessControl(settings, directory, clock or ManualClock(), cluster="C")
    control.store.put_user(User("root", ROOT.secret_key, is_super=True))
    assert control.gate is not None
    return control.gate


def signed(opaque: int, credentials: Credentials = ROOT, *, oneway: bool = False) -> bytes:
    command = SEND.to_command(oneway=oneway)
    Signer(credentials).sign(command)
    return frame(command, opaque)


@pytest.mark.parametrize("is_known", [False, True], ids=["first", "known"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_signed_sends_of_a_read_are_one_batch(tmp_path: Path, loop: str, is_known: bool) -> None:
    async def scenario() -> None:
        async with running(guard=gate(tmp_path)) as rig, raw_client(rig.port) as client:
            if is_known:  # sends of a known user are decoded into their type at once
                await client.send(signed(COUNT))
                assert (await client.receive()).code == ResponseCode.SUCCESS
                rig.batches.clear()
            wrong = Credentials("root", "wrong")
            bad = {3, 11}
            frames = [signed(opaque, wrong if opaque in bad else ROOT) for opaque in range(COUNT)]
            await client.send(b"".join(frames))
            answers = [await client.receive() for _ in range(COUNT)]
            assert {answer.opaque for answer in answers if answer.code == ResponseCode.NO_PERMISSION} == bad
            assert {answer.opaque for answer in answers if answer.code == ResponseCode.SUCCESS} == (
                set(range(COUNT)) - bad
            )
            assert sum(rig.batches) == COUNT - len(bad)
            assert max(rig.batches) > 1

    run_on(loop, scenario())


def test_a_refused_oneway_request_is_not_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(guard=gate(tmp_path)) as rig, raw_client(rig.port) as client:
            await client.send(signed(1, Credentials("root", "wrong"), oneway=True) + signed(2))
            answer = await client.receive()
            assert (answer.opaque, answer.code) == (2, ResponseCode.SUCCESS)
            assert sum(rig.batches) == 1

    run_on("asyncio", scenario())


def test_an_unknown_code_is_refused_before_it_is_said_to_be_unknown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(guard=gate(tmp_path)) as rig, raw_client(rig.port) as client:
            await client.send(frame(RemotingCommand(code=9999), 1))
            assert (await client.receive()).remark == "username cannot be null."

    run_on("asyncio", scenario())


def test_a_guessing_address_is_closed_and_comes_back_later(tmp_path: Path) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with running(guard=gate(tmp_path, clock, failures_max=3)) as rig:
            async with raw_client(rig.port) as other, raw_client(rig.port) as client:
                await other.send(signed(1))
                assert (await other.receive()).code == ResponseCode.SUCCESS
                await client.send(b"".join(signed(opaque, Credentials("root", "no")) for opaque in range(3)))
                answers = [await client.receive() for _ in range(3)]
                assert {answer.remark for answer in answers} == {"check signature failed."}
                await until(lambda: not rig.server.peers)
            async with raw_client(rig.port) as client:
                assert await client.reader.read() == b""
            clock.advance(10_001)
            async with raw_client(rig.port) as client:
                await client.send(signed(7))
                assert (await client.receive()).opaque == 7

    run_on("asyncio", scenario())


def test_a_request_whose_fields_are_invalid_is_told_so_after_the_gate(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(guard=gate(tmp_path)) as rig, raw_client(rig.port) as client:
            command = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, fields={"b": "t"})
            assert typed_command(command) is command
            Signer(ROOT).sign(command)
            await client.send(frame(command, 4))
            answer = await client.receive()
            assert (answer.opaque, answer.code) == (4, ResponseCode.SYSTEM_ERROR)

    run_on("asyncio", scenario())
