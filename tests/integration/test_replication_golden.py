"""Apache's slave as it was captured: what it asks our master, and what it hears of our name server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.model.java import loads
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.settings.fields import FAST_PORT_DISTANCE
from tests.integration.broker_rig import wire
from tests.support.broker import BrokerClient, running_name_server, until
from tests.support.replication import running_master, send_code
from tests.unit.protocol.golden_frames import Captured, captured

ASKED = {21, 43, 45, 60, 61, 201, 402}
TIMER_CHECK_BYTES = 56


def asked(scenario: str) -> dict[int, Captured]:
    """One answer for each code that was asked for, with its question."""
    found: dict[int, Captured] = {}
    for frame in captured(scenario):
        if frame.kind == "response" and frame.asked is not None and frame.code == 0:
            found.setdefault(frame.asked.code, frame)
    return found


def members(value: Any) -> dict[str, str]:
    """The members of a document, and what they are."""
    return {str(name): type(item).__name__ for name, item in value.items()}


@pytest.mark.parametrize("is_fast", [True, False])
async def test_apaches_questions_get_answers_of_the_same_form(tmp_path: Path, is_fast: bool) -> None:
    """5.3.3 asks the fast port for some and the main port for others: both serve all."""
    answers = asked("slave-sync")
    assert answers.keys() == ASKED
    async with running_master(tmp_path) as master, BrokerClient(master.address) as client:
        await send_code(client, b"x")
        port = master.port - FAST_PORT_DISTANCE if is_fast else master.port
        async with wire(f"127.0.0.1:{port}") as slave:
            for code, theirs in answers.items():
                assert theirs.asked is not None
                ours: RemotingCommand = await slave.ask(theirs.asked.frame)
                assert ours.code == 0, (code, ours.remark)
                if code == RequestCode.GET_TIMER_CHECK_POINT:
                    assert len(ours.body) == len(theirs.body) == TIMER_CHECK_BYTES
                    continue
                mine, its = members(loads(bytes(ours.body))), members(loads(theirs.body))
                assert its.items() <= mine.items(), code


async def test_apaches_slave_hears_who_its_master_is(tmp_path: Path) -> None:
    """Its registration, with the answer that makes it connect."""
    theirs = asked("slave-namesrv")[RequestCode.REGISTER_BROKER]
    assert theirs.asked is not None
    assert set(theirs.header["extFields"]) == {"haServerAddr", "masterAddr"}
    async with (
        running_name_server(tmp_path) as name_server,
        running_master(tmp_path / "master", name_servers=name_server.address) as master,
    ):
        await until(lambda: bool(master.registration.registered))
        async with wire(name_server.address) as slave:
            ours = await slave.ask(theirs.asked.frame)
        assert ours.fields == {"haServerAddr": master.addresses.replica, "masterAddr": master.address}
