"""What the hot paths tell of their answers: each request is counted once, by code, answer and result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from skylark.broker.broker import Broker
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import ONEWAY_FLAG, TypedCommand
from skylark.protocol.requests.offset import UpdateConsumerOffset
from skylark.remoting.latency import ONEWAY, SUCCESS, WRITE_FAILED, Kind
from skylark.settings.store import FlushMode
from tests.support.broker import until
from tests.unit.broker.handlers import test_pull as pulls
from tests.unit.broker.handlers import test_send as sends
from tests.unit.broker.handlers.rig import Rig, rigged

SEND, SEND_BATCH, PULL = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.PULL_MESSAGE,
)
OK, NOT_FOUND = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
WAITED_S = 1.5


def counts(broker: Broker) -> dict[Kind, int]:
    return {kind: times.count for kind, times in broker.latencies.table.items()}


@pytest.fixture
async def pull_rig() -> AsyncIterator[pulls.PullRig]:
    made = pulls.PullRig(store={"commit_log_file_bytes": 1 << 20, "consume_queue_file_bytes": 20 * 2000})
    yield made
    await made.broker.tasks.close()
    made.close()


async def test_sends_are_counted_once_for_all_that_are_alike() -> None:
    with rigged(store={"commit_log_file_bytes": 1 << 20}) as rig:
        too_long = sends.command(body=b"x" * (sends.BODY_BYTES_MAX + 1))
        bad_topic, empty = sends.command("a b"), sends.command(body=b"")
        ordinary = [sends.command() for _ in range(5)]
        oneway = [sends.command(oneway=True) for _ in range(2)]
        await sends.send(rig, *ordinary, too_long, bad_topic, empty, *oneway)
        path = rig.broker.send_path
        for is_oneway in (False, True):
            batch = sends.command(body=sends.batch(b"1", b"2"), batch=True, oneway=is_oneway)
            path.send_batch(rig.client.peer, [batch])
        assert counts(rig.broker) == {
            (SEND, OK, False, SUCCESS): 5,
            (SEND, ResponseCode.MESSAGE_ILLEGAL, False, SUCCESS): 1,
            (SEND, ResponseCode.INVALID_PARAMETER, False, SUCCESS): 1,
            (SEND, ResponseCode.SYSTEM_ERROR, False, SUCCESS): 1,
            (SEND, OK, False, ONEWAY): 2,
            (SEND_BATCH, OK, False, SUCCESS): 1,
            (SEND_BATCH, OK, False, ONEWAY): 1,
        }


async def test_the_time_of_a_send_that_waits_for_the_disk_includes_the_flush() -> None:
    with rigged(store={"flush_mode": FlushMode.SYNC, "commit_log_file_bytes": 1 << 20}) as rig:
        since = rig.client.peer.active_at
        rig.broker.latencies._now = lambda: since + WAITED_S
        path = rig.broker.send_path
        await sends.send(rig, sends.command(), sends.command(), path=path)
        assert (counts(rig.broker), path.waiting) == ({}, 2)
        rig.broker.store.flush_log()
        await rig.client.taken()
        times = rig.broker.latencies.table[SEND, OK, False, SUCCESS]
        assert (times.count, times.sum, path.waiting) == (2, 2 * WAITED_S * 1000, 0)


async def test_pulls_are_counted_by_what_they_found(pull_rig: pulls.PullRig) -> None:
    pulls.put_all(pull_rig, 3)
    await pull_rig.answer(0)
    await pull_rig.answer(0)  # by a plan
    await pull_rig.answer(3)
    await pull_rig.answer(99)
    await pull_rig.answer(0, "Unheard")
    await pull_rig.pull(0, oneway=True)
    assert counts(pull_rig.broker) == {
        (PULL, OK, False, SUCCESS): 2,
        (PULL, NOT_FOUND, False, SUCCESS): 1,
        (PULL, ResponseCode.PULL_OFFSET_MOVED, False, SUCCESS): 1,
        (PULL, ResponseCode.TOPIC_NOT_EXIST, False, SUCCESS): 1,
        (PULL, OK, False, ONEWAY): 1,
    }


async def test_a_pull_that_waited_says_so_and_counts_from_when_it_came(pull_rig: pulls.PullRig) -> None:
    since = pull_rig.client.peer.active_at
    pull_rig.broker.latencies._now = lambda: since + WAITED_S
    pulls.put_all(pull_rig, 1)
    assert await pull_rig.pull(1, sys_flag=pulls.HELD) == []
    assert counts(pull_rig.broker) == {}
    pulls.put_all(pull_rig, 1)
    await pull_rig.client.taken()
    times = pull_rig.broker.latencies.table[PULL, OK, True, SUCCESS]
    assert (times.count, times.sum) == (1, WAITED_S * 1000)


async def test_a_pull_of_cold_data_is_counted_when_it_is_answered(pull_rig: pulls.PullRig) -> None:
    pulls.put_all(pull_rig, 1)
    pull_rig.cool_down()
    assert await pull_rig.pull(0) == []
    assert (counts(pull_rig.broker), pull_rig.path.cold) == ({}, 1)
    await pull_rig.answer_later()
    await until(lambda: pull_rig.path.cold == 0)
    assert counts(pull_rig.broker) == {(PULL, OK, False, SUCCESS): 1}


async def test_an_answer_to_somebody_gone_is_a_failed_write(pull_rig: pulls.PullRig) -> None:
    pull_rig.client.wire.close()
    await pull_rig.pull(0, "Unheard")
    assert counts(pull_rig.broker) == {(PULL, ResponseCode.TOPIC_NOT_EXIST, False, WRITE_FAILED): 1}


async def test_commits_are_counted_by_their_answer() -> None:
    with rigged() as rig:
        rig.broker.groups.find("CG", now_ms=1)
        rig.broker.topics.ensure_topic("T", 4, now_ms=1)
        _commit(rig, "CG", "CG", "Unheard")
        _commit(rig, "CG", oneway=True)
        await asyncio.sleep(0)
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        assert counts(rig.broker) == {
            (code, OK, False, SUCCESS): 2,
            (code, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, False, SUCCESS): 1,
            (code, OK, False, ONEWAY): 1,
        }


def _commit(rig: Rig, *groups: str, oneway: bool = False) -> None:
    requests = [
        UpdateConsumerOffset(consumer_group=group, topic="T", queue_id=0, commit_offset=1) for group in groups
    ]
    flag = ONEWAY_FLAG if oneway else 0
    rig.broker.offset_handlers.update_offsets(
        rig.client.peer,
        [TypedCommand(code=15, opaque=1, flag=flag, request=request) for request in requests],
    )
