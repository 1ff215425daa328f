"""Whatever a name server gets is answered with a code or closes its own connection, and others go on."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from skylark.namesrv.handlers import ROUTES, USER_CODES
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.requests.name_server import GetRouteInfoByTopic
from tests.integration.broker_rig import wire
from tests.integration.test_broker_bad_input import (
    CLOSING,
    framed,
    no_handler_failed,
    nonsense,
    plausible,
)
from tests.integration.test_namesrv import A, Caller, running

__all__ = ["no_handler_failed"]  # of every test here, too
CLUSTER_INFO = framed(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=4)
SERVED = ROUTES.keys() - USER_CODES  # without access control there are no users
UNSAFE = {RequestCode.UPDATE_NAMESRV_CONFIG}  # what would be in force afterwards is not what this is about


async def test_every_code_is_served_or_refused_with_code_3_and_a_remark(tmp_path: Path) -> None:
    async with running(tmp_path) as server, wire(server.address) as client:
        for code in RequestCode:
            answer = await client.ask(b"".join(encode(RemotingCommand(code=code))))
            is_refused = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert is_refused == (code not in SERVED), code
            if is_refused:
                assert answer.remark == f" request type {code} not supported"


async def test_every_request_with_every_kind_of_nonsense(tmp_path: Path) -> None:
    pick = random.Random(7)
    async with running(tmp_path) as server, Caller(server) as healthy, wire(server.address) as bad:
        await healthy.register()
        answered: Counter[int] = Counter()
        for code in sorted(SERVED - UNSAFE):
            for number in range(60):
                make = plausible if number % 3 else nonsense
                await bad.send(make(code, number, pick))
            answers = [await bad.answer() for _ in range(60)]
            assert {answer.opaque for answer in answers} == set(range(60)), code
            answered.update({answer.code for answer in answers})
            route = await healthy.ask(GetRouteInfoByTopic("t1"))
            assert [
                data.broker_addrs[0] for data in route.broker_datas if data.broker_name == "broker-a"
            ] == [A]
        assert answered[0] > len(SERVED) / 2  # the values are good enough for more than refusals


async def test_bytes_that_are_no_frames_close_their_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as server, Caller(server) as healthy:
        await healthy.register()
        for name, data in CLOSING.items():
            async with wire(server.address) as bad:
                await bad.send(CLUSTER_INFO + data + CLUSTER_INFO)
                assert (await bad.answer()).opaque == 4, name  # what came before is served
                assert await bad.is_closed(), name
            assert await healthy.members() == {"broker-a": {0: A}}
