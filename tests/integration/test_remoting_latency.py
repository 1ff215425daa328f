"""What a server tells of its answers, over real sockets and on both kinds of loop."""

import pytest

from skylark.errors import BrokerError
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.requests.client import GetConsumerListByGroup
from skylark.protocol.requests.offset import GetMaxOffset, GetMinOffset, UpdateConsumerOffset
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.latency import ONEWAY, SUCCESS, UNKNOWN_CODE, Kind, RequestLatencies
from tests.unit.remoting.rig import LOOPS, Rig, frame, raw_client, run_on, running, until

pytestmark = pytest.mark.parametrize("loop", list(LOOPS))
MAX, MIN = RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET
OK = ResponseCode.SUCCESS


def timed(rig: Rig) -> RequestLatencies:
    rig.server.latencies = latencies = RequestLatencies()
    return latencies


def counts(latencies: RequestLatencies) -> dict[Kind, int]:
    return {kind: times.count for kind, times in latencies.table.items()}


def test_every_answer_is_counted_by_what_was_asked_and_answered(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig, raw_client(rig.port) as client:
            latencies, pool = timed(rig), ConnectionPool()
            for queue_id in (3, 3):
                await pool.call(rig.address, GetMaxOffset("t", queue_id))
            await pool.call(rig.address, GetMinOffset("t", 3))
            with pytest.raises(BrokerError, match="no such topic"):
                await pool.call(rig.address, GetMaxOffset("t", 17))
            with pytest.raises(BrokerError, match="not supported"):
                await pool.call(rig.address, GetConsumerListByGroup("g"))
            with pytest.raises(BrokerError, match="bad luck"):
                await pool.call(rig.address, UpdateConsumerOffset("g", "t", 0, 13))
            await client.send(frame(GetMinOffset("t", 3).to_command(oneway=True), 7))
            await until(lambda: (MIN, OK, False, ONEWAY) in latencies.table)
            assert counts(latencies) == {
                (MAX, OK, False, SUCCESS): 2,
                (MAX, ResponseCode.TOPIC_NOT_EXIST, False, SUCCESS): 1,
                (MIN, OK, False, SUCCESS): 1,
                (MIN, OK, False, ONEWAY): 1,
                (UNKNOWN_CODE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, False, SUCCESS): 1,
                (RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.SYSTEM_ERROR, False, SUCCESS): 1,
            }
            await pool.close()

    run_on(loop, scenario())


def test_the_time_of_a_coroutine_is_that_of_its_request(loop: str) -> None:
    """Other requests come meanwhile on the same connection, and are answered before."""

    async def scenario() -> None:
        async with running() as rig, raw_client(rig.port) as client:
            latencies = timed(rig)
            await client.send(frame(GetMaxOffset("t", 19).to_command(), 1))
            await until(lambda: rig.server.at_work[MAX] == 1)
            [peer] = rig.server.peers
            began = peer.active_at
            while peer.active_at - began < 0.05:
                await client.send(frame(GetMinOffset("t", 3).to_command(), 2))
                await client.receive()
            rig.gate.set()
            assert (await client.receive()).opaque == 1
            await until(lambda: rig.server.at_work[MAX] == 0)
            waited = latencies.table[MAX, OK, False, SUCCESS]
            assert (waited.count, waited.sum >= 49) == (1, True)

    run_on(loop, scenario())
