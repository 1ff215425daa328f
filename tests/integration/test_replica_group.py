"""Brokers of one name in controller mode, in one process with a controller: roles change while they run."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from skylark.admin.admin import AsyncAdmin
from skylark.broker.broker import Broker
from skylark.broker.replication.group_master import GroupReplication
from skylark.errors import BrokerError, ClientError, RocketMQError
from skylark.protocol.bodies import SyncStateSet
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.admin import GetBrokerEpochCache, GetBrokerHaStatus, GetBrokerRuntimeInfo
from skylark.protocol.requests.controller import ElectMaster
from skylark.protocol.requests.offset import QueryConsumerOffset, UpdateConsumerOffset
from skylark.protocol.requests.transaction import COMMIT, EndTransaction
from skylark.store.epochs import EpochEntry, decode_epochs, encode_epochs
from skylark.store.message_store import MessageStore
from tests.support.broker import (
    GROUP,
    BrokerClient,
    broker_settings,
    consumer,
    running_name_server,
    until,
)
from tests.support.popping import Popper
from tests.support.replica_group import (
    SMALL_FILES,
    designate,
    elected,
    in_sync,
    is_master,
    own_id,
    running_controller,
    running_group,
    running_replica,
    sync_set,
)
from tests.support.replication import in_step, send_code
from tests.support.store import message, put_all


async def send_all(broker: Broker, *bodies: bytes) -> None:
    async with BrokerClient(broker.address) as client:
        for body in bodies:
            assert await send_code(client, body) == ResponseCode.SUCCESS


async def bodies_of(broker: Broker, topic: str = "T") -> list[bytes]:
    async with BrokerClient(broker.address) as client:
        return [bytes(each.body) for each in await client.pull_all(topic)]


def batches_of(broker: Broker) -> bytes:
    """What is popped in order, as in its file."""
    return broker.pops.ordered.snapshot()()


# --- Roles ---


async def test_the_first_broker_is_elected_and_the_second_follows_it(tmp_path: Path) -> None:
    async with running_group(tmp_path) as (_, first, second):
        assert (own_id(first), own_id(second)) == (1, 2)
        assert (first.role.broker_id, second.role.broker_id) == (0, 2)
        assert (first.role.epoch, second.role.epoch) == (1, 1)
        assert sync_set(first) == {1, 2}
        await send_all(first, b"1", b"2")
        await in_step(first, second)
        async with BrokerClient(second.address) as client:
            with pytest.raises(BrokerError):
                await send_code(client, b"refused")
            status = await client.ask(GetBrokerHaStatus())
            assert not status.master
        async with BrokerClient(first.address) as client:
            info = (await client.ask(GetBrokerRuntimeInfo())).table
        assert (info["replicationEpoch"], info["replicationMembers"]) == ("1", "1 2")
        assert info["replicationLapsed"] == "false"
        for directory in ("a", "b"):
            file = tmp_path / directory / "epochFileCheckpoint"
            assert [tuple(entry) for entry in decode_epochs(file.read_bytes()).entries] == [(1, 0)]
        assert (tmp_path / "a" / "brokerIdentity").read_text() == "DefaultCluster#broker-a#1"
        assert not (tmp_path / "a" / "brokerIdentity-temp").exists()


async def test_a_lost_master_is_replaced_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async with running_controller(tmp_path / "controller") as controller, contextlib.AsyncExitStack() as life:
        first = await life.enter_async_context(running_replica(tmp_path / "a", controller=controller.address))
        await until(lambda: is_master(first))
        async with running_replica(tmp_path / "b", controller=controller.address) as second:
            await in_sync(first, second)
            await send_all(first, b"1", b"2", b"3")
            await life.aclose()
            await until(lambda: is_master(second))
            assert second.role.epoch == 2
            await send_all(second, b"4")
            async with running_replica(tmp_path / "a", controller=controller.address) as again:
                await in_sync(second, again)
                assert own_id(again) == 1
                await send_all(second, b"5")
                await in_step(second, again)
                assert await bodies_of(second) == [b"1", b"2", b"3", b"4", b"5"]
                assert again.epoch_file.epochs.entries == second.epoch_file.epochs.entries


async def test_roles_change_back_and_forth_in_running_processes(tmp_path: Path) -> None:
    async with running_group(tmp_path) as (controller, first, second):
        master, slave = first, second
        expected = []
        for turn in range(4):
            bodies = [f"{turn} {number}".encode() for number in range(3)]
            expected += bodies
            await send_all(master, *bodies)
            await designate(controller, slave)
            master, slave = slave, master
            await in_sync(master, slave)
        await in_step(master, slave)
        assert await bodies_of(master) == expected
        async with BrokerClient(master.address) as client:
            cache = await client.ask(GetBrokerEpochCache())
        assert [entry["epoch"] for entry in cache.epoch_list] == [1, 2, 3, 4, 5]


async def is_taken(client: BrokerClient, end: EndTransaction) -> bool:
    """A broker on a busy machine may refuse it: appends count as slow, or its lease as over."""
    try:
        await client.ask(end)
    except BrokerError:
        return False
    return True


async def test_offsets_delays_timers_and_transactions_go_on_at_the_new_master(tmp_path: Path) -> None:
    async with running_group(tmp_path) as (controller, first, second):
        await send_all(first, b"1", b"2")
        async with BrokerClient(first.address) as client:
            await client.heartbeat(consumer())
            await client.ask(UpdateConsumerOffset("CG", "T", 0, 2))
            await client.send("T", b"delayed", properties={"DELAY": "1"})
            await client.send("T", b"timed", properties={"TIMER_DELAY_MS": "1000"})
            half = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "K"}
            prepared = await client.send("T", b"half", properties=half, sys_flag=4)
        await until(lambda: second.offsets.query("T", "CG", 0) == 2)
        await designate(controller, second)
        async with BrokerClient(second.address) as client:
            assert await client.ask(QueryConsumerOffset("CG", "T", 0)) == 2
            end = EndTransaction(
                "PG", prepared.queue_offset, int(prepared.msg_id[-16:], 16), COMMIT, msg_id="K"
            )
            await until(partial(is_taken, client, end))
            expected = {b"1", b"2", b"delayed", b"timed", b"half"}

            async def is_complete() -> bool:
                return set(await bodies_of(second)) == expected

            await until(is_complete)
            # What the former master delivered just before, it may not have told the new one.
            counts = Counter(await bodies_of(second))
            assert [counts[body] for body in (b"1", b"2", b"half")] == [1, 1, 1]
        assert not is_master(first)


async def test_queues_that_are_popped_in_order_stay_blocked_at_the_new_master(tmp_path: Path) -> None:
    async with running_group(tmp_path) as (controller, first, second):
        await send_all(first, b"1", b"2", b"3")
        async with BrokerClient(first.address) as client:
            popped = await Popper(client, "T").pop(2, order=True, invisible_ms=60_000)
            assert popped.bodies == [b"1", b"2"]
            await Popper(client, "T").ack(popped.messages[1])
        await until(lambda: batches_of(first) == batches_of(second))
        await designate(controller, second)
        async with BrokerClient(second.address) as client:
            popper = Popper(client, "T")
            assert (await popper.pop(2, order=True)).messages == []
            await popper.ack(popped.messages[0])
            assert second.offsets.committed("T", GROUP)[0] == 2
            last = await popper.pop(2, order=True)
            assert last.bodies == [b"3"]
            await popper.ack(*last.messages)
        await until(lambda: batches_of(first) == batches_of(second))


async def test_name_servers_learn_of_the_new_master(tmp_path: Path) -> None:
    async with running_name_server(tmp_path) as name_server:
        async with running_group(tmp_path, name_servers=name_server.address) as (controller, first, second):
            await send_all(first, b"1")

            async def masters() -> dict[int, str]:
                route = await first.registration.route("T")
                return {} if route is None else dict(route.broker_datas[0].broker_addrs)

            await until(lambda: bool(first.registration.registered and second.registration.registered))

            async def knows(expected: dict[int, str]) -> bool:
                return await masters() == expected

            await until(lambda: knows({0: first.address, 2: second.address}))
            await designate(controller, second)
            await until(lambda: knows({0: second.address, 1: first.address}))


# --- What is acknowledged ---


async def test_a_send_waits_for_every_member_and_a_lost_one_leaves_the_set(tmp_path: Path) -> None:
    async with running_controller(tmp_path / "controller") as controller:
        async with running_replica(tmp_path / "a", controller=controller.address) as first:
            await until(lambda: is_master(first))
            await send_all(first, b"alone")
            async with running_replica(tmp_path / "b", controller=controller.address) as second:
                await in_sync(first, second)
                await send_all(first, b"both")
                assert second.store.appended_offset == first.store.appended_offset
            await until(lambda: sync_set(first) == {1})
            await send_all(first, b"alone again")


async def test_too_few_members_mean_no_messages(tmp_path: Path) -> None:
    settings = {"min_in_sync_replicas": 2}
    async with running_controller(tmp_path / "controller") as controller:
        async with running_replica(tmp_path / "a", controller=controller.address, settings=settings) as first:
            await until(lambda: is_master(first))
            async with BrokerClient(first.address) as client:
                with pytest.raises(BrokerError, match="in-sync replicas not enough"):
                    await send_code(client, b"1")
                async with running_replica(
                    tmp_path / "b", controller=controller.address, settings=settings
                ) as second:
                    await in_sync(first, second)
                    assert await send_code(client, b"2") == ResponseCode.SUCCESS


async def test_a_learner_follows_and_is_never_a_member(tmp_path: Path) -> None:
    async with running_controller(tmp_path / "controller") as controller:
        async with (
            running_replica(tmp_path / "a", controller=controller.address) as first,
            running_replica(
                tmp_path / "b", controller=controller.address, settings={"async_learner": True}
            ) as learner,
        ):
            await elected(first)
            await send_all(first, b"1", b"2")
            await in_step(first, learner)
            assert sync_set(first) == {own_id(first)}


# --- Logs that part ---


def write_tail(directory: Path, *bodies: bytes) -> None:
    """Append messages to a store that no other replica has, as a master does that dies before they left."""
    store = MessageStore(broker_settings(directory, store=SMALL_FILES).store)
    store.open()
    put_all(store, [message(body=body) for body in bodies])
    store.close()


async def test_a_returning_masters_own_tail_is_cut(tmp_path: Path) -> None:
    """Also where both wrote behind the same offset, and the epochs of the former master say nothing of it."""
    async with running_controller(tmp_path / "controller") as controller, contextlib.AsyncExitStack() as life:
        first = await life.enter_async_context(running_replica(tmp_path / "a", controller=controller.address))
        await until(lambda: is_master(first))
        async with running_replica(tmp_path / "b", controller=controller.address) as second:
            await in_sync(first, second)
            await send_all(first, b"1")
            await life.aclose()
            write_tail(tmp_path / "a", b"lost 1", b"lost 2", b"lost 3")
            await until(lambda: is_master(second))
            await send_all(second, b"2")
            async with running_replica(tmp_path / "a", controller=controller.address) as again:
                await in_sync(second, again)
                await send_all(second, b"3")
                await in_step(second, again)
                assert "discarded" in again.role.slave.divergence
                assert await bodies_of(second) == [b"1", b"2", b"3"]


async def test_a_former_master_shows_nothing_that_the_new_one_lacks(tmp_path: Path) -> None:
    """Its own tail is not cut before it has been compared with the new master's log, which takes a while.

    A consumer that saw it would skip the messages that the new master has stored at these offsets.
    """
    slowly = {"flow_control": True, "bytes_per_s_max": 4000}
    async with running_group(tmp_path, settings=slowly) as (controller, first, second):
        both = [b"%d" % number for number in range(15)]
        await send_all(first, *both)
        first.store.append([message(body=b"only here")], announce_later=True)  # replication is not told
        await designate(controller, second)
        await send_all(second, b"new 1", b"new 2")
        seen = set()
        while own_id(first) not in sync_set(second):
            seen.update(await bodies_of(first))
            await asyncio.sleep(0.01)
        assert "1 records" in first.role.slave.divergence
        assert seen >= set(both)
        assert b"only here" not in seen
        await in_step(second, first)
        assert await bodies_of(first) == [*both, b"new 1", b"new 2"]


async def test_a_restarted_replica_shows_nothing_before_it_was_compared(tmp_path: Path) -> None:
    async with running_controller(tmp_path / "controller") as controller:
        async with running_replica(tmp_path / "a", controller=controller.address) as first:
            await until(lambda: is_master(first))
            async with running_replica(tmp_path / "b", controller=controller.address) as second:
                await in_sync(first, second)
                await send_all(first, b"1")
                await until(lambda: second.role.slave.is_copy)
            await until(lambda: sync_set(first) == {1})
        write_tail(tmp_path / "b", b"only here")
        async with running_replica(tmp_path / "b", controller=controller.address) as second:
            with pytest.raises(BrokerError, match="shows nothing before it has joined"):
                await bodies_of(second)
            async with running_replica(tmp_path / "a", controller=controller.address) as first:
                await in_sync(first, second)
                await until(lambda: second.role.slave.is_copy)
                assert await bodies_of(second) == [b"1"]


async def test_a_restarted_master_shows_nothing_that_a_member_may_lack(tmp_path: Path) -> None:
    async with running_controller(tmp_path / "controller") as controller:
        async with running_replica(tmp_path / "a", controller=controller.address) as first:
            await until(lambda: is_master(first))
            await send_all(first, b"1")
            assert isinstance(first.replication, GroupReplication)
            first.replication.lead(1, SyncStateSet.of([1, 2], 90))  # as after a restart that nobody noticed
            with pytest.raises(BrokerError, match="before the other members of its set have its log"):
                await bodies_of(first)
            first.replication.adopt(SyncStateSet.of([1], 91))
            assert await bodies_of(first) == [b"1"]


async def test_logs_that_part_within_an_epoch_are_found_by_their_bytes(tmp_path: Path) -> None:
    """RocketMQ leaves out an epoch that begins where the last one did: both have the same epochs then."""
    for name, bodies in (("a", (b"of a 1", b"of a 2")), ("b", (b"of b 1", b"of b 2", b"of b 3"))):
        write_tail(tmp_path / name, *bodies)
        (tmp_path / name / "epochFileCheckpoint").write_bytes(encode_epochs([EpochEntry(1, 0)]))
    async with running_controller(tmp_path / "controller") as controller:
        async with running_replica(tmp_path / "b", controller=controller.address) as master:
            await until(lambda: is_master(master))
            async with running_replica(tmp_path / "a", controller=controller.address) as slave:
                await in_sync(master, slave)
                await in_step(master, slave)
                assert "2 records" in slave.role.slave.divergence
                assert await bodies_of(master) == [b"of b 1", b"of b 2", b"of b 3"]


async def test_a_controller_that_lost_its_state_continues_the_epochs_of_the_logs(tmp_path: Path) -> None:
    write_tail(tmp_path / "a", b"1")
    (tmp_path / "a" / "epochFileCheckpoint").write_bytes(encode_epochs([EpochEntry(7, 0)]))
    async with running_controller(tmp_path / "controller") as controller:
        async with running_replica(tmp_path / "a", controller=controller.address) as broker:
            await until(lambda: is_master(broker))
            assert broker.role.epoch == 8


async def test_a_lost_notice_is_made_up_for_by_asking(tmp_path: Path) -> None:
    async with running_controller(tmp_path / "controller", notify_roles=False) as controller:
        async with (
            running_replica(tmp_path / "a", controller=controller.address) as first,
            running_replica(tmp_path / "b", controller=controller.address) as second,
        ):
            master = await elected(first, second)
            slave = second if master is first else first
            await in_sync(master, slave)
            await designate(controller, slave)
            await until(lambda: not is_master(master))


async def test_a_replica_outside_the_set_waits_for_one_inside(tmp_path: Path) -> None:
    async with running_controller(tmp_path / "controller") as controller:
        async with running_replica(tmp_path / "a", controller=controller.address) as first:
            await until(lambda: is_master(first))
            async with running_replica(tmp_path / "b", controller=controller.address) as second:
                await in_sync(first, second)
            await until(lambda: sync_set(first) == {1})
            await send_all(first, b"only the first has it")
        async with running_replica(tmp_path / "b", controller=controller.address) as second:
            assert second.membership is not None
            await until(lambda: "2012" in second.membership.status.last_error)  # type: ignore[union-attr]
            assert not is_master(second)
            async with running_replica(tmp_path / "a", controller=controller.address) as first:
                await until(lambda: is_master(first))
                await in_sync(first, second)
                assert await bodies_of(first) == [b"only the first has it"]


# --- Leases ---


async def test_a_master_without_controllers_is_fenced_only_if_it_is_alone(tmp_path: Path) -> None:
    group = {"lease_ms": 300, "heartbeat_timeout_ms": 5000, "request_timeout_ms": 300}
    async with contextlib.AsyncExitStack() as life:
        controller = await life.enter_async_context(running_controller(tmp_path / "controller"))
        settings = {"ack_timeout_ms": 500}
        async with running_replica(
            tmp_path / "a", controller=controller.address, group=group, settings=settings
        ) as first:
            await until(lambda: is_master(first))
            async with running_replica(tmp_path / "b", controller=controller.address, group=group) as second:
                await in_sync(first, second)
                await life.aclose()
                await until(lambda: first.role.is_lapsed)
                assert not first.role.is_fenced
                await send_all(first, b"both have it")
            async with BrokerClient(first.address) as client:
                assert await send_code(client, b"nobody else") == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_a_lone_master_takes_no_messages_without_its_lease(tmp_path: Path) -> None:
    group = {"lease_ms": 300, "heartbeat_timeout_ms": 5000, "request_timeout_ms": 300}
    async with contextlib.AsyncExitStack() as life:
        controller = await life.enter_async_context(running_controller(tmp_path / "controller"))
        async with running_replica(tmp_path / "a", controller=controller.address, group=group) as first:
            await until(lambda: is_master(first))
            await send_all(first, b"1")
            await life.aclose()
            await until(lambda: first.role.is_fenced)
            async with BrokerClient(first.address) as client:
                with pytest.raises(BrokerError) as caught:
                    await send_code(client, b"2")
            assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
            async with running_controller(tmp_path / "controller"):
                pass  # another port: it does not help


# --- Hand-over and identity ---


async def test_a_hand_over_under_load_loses_nothing(tmp_path: Path) -> None:
    async with running_group(tmp_path) as (_, first, second):
        sent: list[bytes] = []
        is_over = asyncio.Event()

        async def load() -> None:
            number = 0
            while not is_over.is_set() or number < 50:
                body = b"%d" % number
                target = first if is_master(first) and not first.role.is_paused else second
                async with BrokerClient(target.address) as client:
                    with contextlib.suppress(RocketMQError):
                        if await send_code(client, body) == ResponseCode.SUCCESS:
                            sent.append(body)
                number += 1

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load())
            await until(lambda: len(sent) > 10)
            async with BrokerClient(first.address) as client:
                request = ElectMaster("DefaultCluster", "broker-a", own_id(second), designate_elect=True)
                found = await client.ask(request)
            assert found.master_broker_id == own_id(second)
            await until(lambda: is_master(second))
            count = len(sent)
            await until(lambda: len(sent) > count + 10)
            is_over.set()
        assert set(sent) <= set(await bodies_of(second))


async def test_sends_in_flight_at_a_hand_over_are_acknowledged(tmp_path: Path) -> None:
    """They are in the successor's log; only those that come later are refused."""
    async with running_group(tmp_path) as (_, first, second):
        codes: Counter[int] = Counter()

        async def load() -> None:
            async with BrokerClient(first.address) as client:
                while is_master(first):
                    try:
                        codes[await send_code(client, b"x")] += 1
                    except BrokerError as error:
                        codes[error.code] += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(load())
            await until(lambda: codes[ResponseCode.SUCCESS] > 100)
            async with BrokerClient(first.address) as client:
                await client.ask(
                    ElectMaster("DefaultCluster", "broker-a", own_id(second), designate_elect=True)
                )
        refusals = {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY}
        assert codes.keys() <= {ResponseCode.SUCCESS, *refusals}, codes


async def test_an_administrator_hands_over(tmp_path: Path) -> None:
    async with running_name_server(tmp_path) as name_server:
        async with running_group(tmp_path, name_servers=name_server.address) as (_, first, second):
            async with AsyncAdmin(namesrv=name_server.address) as admin:

                async def are_known() -> bool:
                    return len(await admin.brokers.nodes()) == 2

                await until(are_known)
                with pytest.raises(ClientError, match=r"to 7: its other replicas are \[2\]"):
                    await admin.brokers.hand_over("broker-a", 7)
                await send_all(first, b"1")
                found = await admin.brokers.hand_over("broker-a")
            assert found.master_address == second.address
            await until(lambda: is_master(second))
            await in_sync(second, first)
            await send_all(second, b"2")
            assert await bodies_of(second) == [b"1", b"2"]


async def test_a_replica_that_lost_its_log_gets_a_new_id(tmp_path: Path) -> None:
    async with running_controller(tmp_path / "controller") as controller:
        async with running_replica(tmp_path / "a", controller=controller.address) as first:
            await until(lambda: is_master(first))
            await send_all(first, b"1")
            (tmp_path / "b").mkdir()
            (tmp_path / "b" / "brokerIdentity").write_text("DefaultCluster#broker-a#7")
            async with running_replica(tmp_path / "b", controller=controller.address) as second:
                await in_sync(first, second)
                assert own_id(second) == 2
                await in_step(first, second)
