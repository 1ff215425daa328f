"""Slaves as clients and administrators see them: what they refuse, what they serve, who is master."""

from __future__ import annotations

import asyncio
import random
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from skylark.broker import registration
from skylark.broker.broker import Broker
from skylark.broker.replication import restore_offsets
from skylark.broker.replication.metadata_sync import MetadataSync
from skylark.errors import BrokerError, ConnectionLost, MasterExists, SystemBusy
from skylark.model.record import decode_all
from skylark.processes import free_ports
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.codes import ResponseCode
from skylark.protocol.request import Request
from skylark.protocol.requests.admin import GetBrokerHaStatus
from skylark.protocol.requests.client import ConsumeMessageDirectly
from skylark.protocol.requests.group import UpdateAndCreateSubscriptionGroup
from skylark.protocol.requests.name_server import GetRouteInfoByTopic, RegisterBrokerReply
from skylark.protocol.requests.offset import (
    CloneGroupOffset,
    GetAllConsumerOffset,
    GetEarliestMsgStoreTime,
    GetMaxOffset,
    GetMinOffset,
    InvokeBrokerToResetOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from skylark.protocol.requests.pull import (
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessage,
    PullResult,
    QueryConsumeQueue,
    QueryMessage,
    ViewMessageById,
)
from skylark.protocol.requests.send import ConsumerSendMsgBack
from skylark.protocol.requests.topic import DeleteTopicInBroker
from skylark.remoting.connection_pool import ConnectionPool
from tests.integration.broker_rig import healthy_client
from tests.support.broker import BrokerClient, broker_settings, running_broker, running_name_server, until
from tests.support.raw_server import raw_server
from tests.support.replication import (
    connected,
    has_all,
    in_step,
    raw_slave,
    replication,
    running_master,
    running_pair,
    running_slave,
    send_code,
)

NEW_GROUP = UpdateAndCreateSubscriptionGroup(SubscriptionGroupConfig(group_name="CG"))


def pull_of(queue_offset: int, *, suspend_ms: int = 0, max_messages: int = 32) -> PullMessage:
    flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0)
    return PullMessage(
        consumer_group="CG", topic="T", queue_id=0, queue_offset=queue_offset, max_msg_nums=max_messages,
        sys_flag=flags, commit_offset=0, suspend_timeout_ms=suspend_ms, sub_version=0, subscription="*",
    )  # fmt: skip


async def pull(
    client: BrokerClient, queue_offset: int, *, suspend_ms: int = 0, max_messages: int = 32
) -> PullResult:
    request = pull_of(queue_offset, suspend_ms=suspend_ms, max_messages=max_messages)
    return await client.ask(request, timeout_s=20)


# --- What a slave refuses ---


async def test_a_slave_takes_no_messages(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (_, slave), BrokerClient(slave.address) as client:
        for refused in (send_code(client, b"x"), client.ask(ConsumerSendMsgBack("CG", 0, 0))):
            with pytest.raises(BrokerError, match=r"\[REJECTREQUEST\]system busy") as caught:
                await refused
            assert caught.value.code == ResponseCode.SYSTEM_BUSY
        assert slave.store.appended_offset == 0


async def test_a_slave_sends_administrators_to_its_master(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (master, slave), BrokerClient(slave.address) as client:
        for request in (NEW_GROUP, DeleteTopicInBroker("T"), CloneGroupOffset("A", "B", "T")):
            with pytest.raises(BrokerError, match=f"from its master: ask {master.address}") as caught:
                await client.ask(request)
            assert caught.value.code == ResponseCode.SYSTEM_ERROR
        assert slave.groups.get("CG") is None


async def test_a_slave_serves_pulls_only_if_told_to(tmp_path: Path) -> None:
    async with (
        running_pair(tmp_path, slave_read=False) as (_, slave),
        BrokerClient(slave.address) as client,
    ):
        with pytest.raises(BrokerError, match="REJECTREQUEST"):
            await pull(client, 0)


# --- Reading ---


async def test_sf_125_far_behind_the_slave_is_suggested_else_the_master(tmp_path: Path) -> None:
    async with (
        running_pair(tmp_path, slave_read=True) as (master, slave),
        BrokerClient(master.address) as client,
        BrokerClient(slave.address) as at_slave,
    ):
        for _ in range(4):
            await send_code(client, bytes(100))
        await in_step(master, slave)
        await until(lambda: slave.topics.get("T") is not None)
        assert (await pull(client, 0)).reply.suggest_which_broker_id == 0
        for broker in (master, slave):
            # As if one record and a half were 40 % of the machine's memory.
            broker.store.reader.hot.memory_bytes = master.store.appended_offset * 3 // 8
        far = await pull(client, 0, max_messages=1)
        assert (far.code, far.reply.suggest_which_broker_id) == (ResponseCode.SUCCESS, 1)
        near = await pull(client, 3)
        assert (near.code, near.reply.suggest_which_broker_id) == (ResponseCode.SUCCESS, 0)
        # The slave keeps who is far behind, and sends back who is not.
        far = await pull(at_slave, 0, max_messages=1)
        assert (far.code, far.reply.suggest_which_broker_id) == (ResponseCode.SUCCESS, 1)
        near = await pull(at_slave, 3)
        assert (near.code, near.reply.suggest_which_broker_id) == (ResponseCode.SUCCESS, 0)


async def test_sf_117_a_slave_with_nothing_to_give_sends_to_its_master_at_once(tmp_path: Path) -> None:
    async with (
        running_pair(tmp_path) as (master, slave),
        BrokerClient(master.address) as client,
        BrokerClient(slave.address) as at_slave,
    ):
        await send_code(client, b"one")
        await in_step(master, slave)
        await until(lambda: slave.topics.get("T") is not None)
        for queue_offset in (1, 99):  # at the end; behind it
            answer = await pull(at_slave, queue_offset, suspend_ms=15_000)
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.reply.suggest_which_broker_id == 0
            assert answer.reply.next_begin_offset == queue_offset


async def test_with_the_master_dead_consumers_go_on_at_the_slave_and_return(tmp_path: Path) -> None:
    port = free_ports(-2, 1)
    async with running_slave(tmp_path / "slave", f"127.0.0.1:{port}") as slave:
        async with BrokerClient(slave.address) as at_slave:
            async with running_master(tmp_path / "master", port=port) as master:
                await connected(master)
                async with BrokerClient(master.address) as client:
                    for n in range(3):
                        await send_code(client, b"%d" % n)
                    await client.ask(NEW_GROUP)
                    await client.ask(UpdateConsumerOffset("CG", "T", 0, 1))
                await in_step(master, slave)
                await until(lambda: slave.offsets.query("T", "CG", 0) == 1)
            await until(lambda: not slave.role.slave.sees_master)
            found = await pull(at_slave, 1)
            assert [each.body for each in decode_all(found.records)] == [b"1", b"2"]
            await at_slave.ask(UpdateConsumerOffset("CG", "T", 0, 3))
            assert await at_slave.ask(QueryConsumerOffset("CG", "T", 0)) == 3
            # At the end, and beyond it, a consumer waits here until the master is back.
            held = [asyncio.ensure_future(pull(at_slave, at, suspend_ms=60_000)) for at in (3, 5)]
            await until(lambda: slave.long_polling.count == 2)
            async with running_master(tmp_path / "master", port=port) as master:
                for answer in await asyncio.gather(*held):
                    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
                    assert answer.reply.suggest_which_broker_id == 0
                # What was committed at the slave meanwhile is told to the master.
                await until(lambda: master.offsets.query("T", "CG", 0) == 3)
                await until(lambda: not slave.offsets.stray)


async def test_the_master_is_not_set_back_by_what_the_slave_heard_before(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (master, slave), BrokerClient(master.address) as client:
        await send_code(client, b"x")
        await client.ask(NEW_GROUP)
        await client.ask(UpdateConsumerOffset("CG", "T", 0, 9))
        await until(lambda: slave.offsets.query("T", "CG", 0) == 9)
        slave.offsets.commit("T", "CG", 0, 5, now_ms=0)
        await until(lambda: not slave.offsets.stray and slave.offsets.query("T", "CG", 0) == 9)
        assert master.offsets.query("T", "CG", 0) == 9


async def test_what_is_committed_at_a_slave_beside_its_master_reaches_that_one(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (master, slave), BrokerClient(slave.address) as at_slave:
        async with BrokerClient(master.address) as client:
            await send_code(client, b"x")
            await client.ask(NEW_GROUP)
        await until(lambda: slave.role.slave.is_copy and slave.groups.get("CG") is not None)
        await until(lambda: slave.topics.get("T") is not None)
        # As a client does whose name server, just started, has heard of the slave alone.
        await at_slave.ask(UpdateConsumerOffset("CG", "T", 0, 1))
        await until(lambda: master.offsets.query("T", "CG", 0) == 1)
        await until(lambda: not slave.offsets.stray)
        assert slave.offsets.query("T", "CG", 0) == 1


@pytest.mark.parametrize("failure", [ConnectionLost("master"), SystemBusy(2)])
async def test_what_the_master_could_not_be_told_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    async with running_pair(tmp_path) as (master, slave), BrokerClient(master.address) as client:
        await send_code(client, b"x")
        await client.ask(NEW_GROUP)
        await until(lambda: slave.role.slave.is_copy)
        call, refused = ConnectionPool.call, list[UpdateConsumerOffset]()

        async def call_badly(self: ConnectionPool, address: str, request: Request[Any], **how: Any) -> Any:
            if isinstance(request, UpdateConsumerOffset) and len(refused) < 2:
                refused.append(request)
                raise failure
            return await call(self, address, request, **how)

        monkeypatch.setattr(ConnectionPool, "call", call_badly)
        slave.offsets.commit("T", "CG", 0, 1, now_ms=0)
        await until(lambda: master.offsets.query("T", "CG", 0) == 1)
        assert len(refused) == 2
        await until(lambda: not slave.offsets.stray)
        assert slave.offsets.query("T", "CG", 0) == 1


async def test_a_master_that_is_back_knows_at_once_how_far_groups_came_at_its_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing(sync: MetadataSync, address: str) -> None:
        pass

    monkeypatch.setattr(restore_offsets, "TIMEOUT_S", 60.0)  # nobody may be late here
    monkeypatch.setattr(registration, "MASTER_TIMEOUT_S", 60.0)
    async with running_name_server(tmp_path) as name_server:
        shared: dict[str, Any] = {"name_servers": name_server.address}
        port = free_ports(-2, 1)
        async with running_slave(tmp_path / "slave", f"127.0.0.1:{port}", **shared) as slave:
            async with running_master(tmp_path / "master", port=port, **shared) as master:
                async with BrokerClient(master.address) as client:
                    for n in range(3):
                        await send_code(client, b"%d" % n)
                    await client.ask(NEW_GROUP)
                    await client.ask(UpdateConsumerOffset("CG", "T", 0, 1))
                    await client.ask(UpdateConsumerOffset("CG", "T", 1, 0))
                await in_step(master, slave)
                await until(lambda: slave.offsets.query("T", "CG", 0) == 1)
            monkeypatch.setattr(MetadataSync, "_sync_offsets", say_nothing)  # the slave will be late
            await until(lambda: not slave.role.slave.sees_master and bool(slave.registration.registered))
            async with BrokerClient(slave.address) as at_slave:
                await at_slave.ask(UpdateConsumerOffset("CG", "T", 0, 3))
                await at_slave.ask(UpdateConsumerOffset("CG", "T", 1, 7))  # the queue does not go so far
            async with running_master(tmp_path / "master", port=port, **shared) as master:
                assert master.offsets.query("T", "CG", 0) == 3
                assert master.offsets.query("T", "CG", 1) == 0


async def test_a_master_that_is_back_leaves_a_group_where_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slave may still know the group to be where it was before."""

    async def hear_nothing(sync: MetadataSync, address: str) -> None:
        pass

    async with running_name_server(tmp_path) as name_server:
        shared: dict[str, Any] = {"name_servers": name_server.address}
        port = free_ports(-2, 1)
        async with running_slave(tmp_path / "slave", f"127.0.0.1:{port}", **shared) as slave:
            async with running_master(tmp_path / "master", port=port, **shared) as master:
                async with BrokerClient(master.address) as client:
                    for n in range(3):
                        await send_code(client, b"%d" % n)
                    await client.ask(NEW_GROUP)
                    await client.ask(UpdateConsumerOffset("CG", "T", 0, 3))
                    await until(lambda: slave.offsets.query("T", "CG", 0) == 3)
                    monkeypatch.setattr(MetadataSync, "_sync_offsets", hear_nothing)
                    await client.ask(InvokeBrokerToResetOffset("T", "CG", 0, True, 0, 1))
            await until(lambda: bool(slave.registration.registered))
            async with running_master(tmp_path / "master", port=port, **shared) as master:
                assert await master.registration.find_slaves() == {slave.address}
                assert master.offsets.query("T", "CG", 0) == 1


async def test_what_a_crash_took_from_the_master_its_slave_still_has(tmp_path: Path) -> None:
    async with running_name_server(tmp_path) as name_server:
        shared: dict[str, Any] = {"name_servers": name_server.address}
        port = free_ports(-2, 1)
        async with running_slave(tmp_path / "slave", f"127.0.0.1:{port}", **shared) as slave:
            async with running_master(tmp_path / "master", port=port, **shared) as master:
                async with BrokerClient(master.address) as client:
                    await send_code(client, b"x")
                    await client.ask(NEW_GROUP)
                    await client.ask(UpdateConsumerOffset("CG", "T", 0, 1))
                await in_step(master, slave)
                await until(lambda: slave.offsets.query("T", "CG", 0) == 1)
            for file in (tmp_path / "master" / "config").glob("consumerOffset.json*"):
                file.unlink()
            (tmp_path / "master" / "abort").touch()
            await until(lambda: bool(slave.registration.registered))
            async with running_master(tmp_path / "master", port=port, **shared) as master:
                assert master.offsets.query("T", "CG", 0) == 1


async def test_what_was_committed_at_a_slave_reaches_its_master_though_the_slave_was_restarted(
    tmp_path: Path,
) -> None:
    port = free_ports(-2, 1)
    async with (
        running_slave(tmp_path / "slave", f"127.0.0.1:{port}") as slave,
        running_master(tmp_path / "master", port=port) as master,
        BrokerClient(master.address) as client,
    ):
        for n in range(3):
            await send_code(client, b"%d" % n)
        await client.ask(NEW_GROUP)
        await client.ask(UpdateConsumerOffset("CG", "T", 0, 1))
        await in_step(master, slave)
        await until(lambda: slave.offsets.query("T", "CG", 0) == 1)
    async with running_slave(tmp_path / "slave", f"127.0.0.1:{port}") as slave:
        async with BrokerClient(slave.address) as at_slave:
            await at_slave.ask(UpdateConsumerOffset("CG", "T", 0, 3))
    async with (
        running_slave(tmp_path / "slave", f"127.0.0.1:{port}") as slave,
        running_master(tmp_path / "master", port=port) as master,
    ):
        await until(lambda: not slave.offsets.stray)
        assert master.offsets.query("T", "CG", 0) == slave.offsets.query("T", "CG", 0) == 3
    async with running_slave(tmp_path / "slave", "127.0.0.1:1") as slave:
        assert slave.offsets.stray == set()


async def test_a_master_starts_though_its_slave_does_not_say_how_far_groups_came(tmp_path: Path) -> None:
    async with running_name_server(tmp_path) as name_server:
        shared: dict[str, Any] = {"name_servers": name_server.address}
        # New, and without a master: it knows of no offsets.
        async with running_slave(tmp_path / "slave", "127.0.0.1:1", **shared) as slave:
            await until(lambda: bool(slave.registration.registered))
            async with running_master(tmp_path / "master", **shared) as master:
                assert await master.registration.find_slaves() == {slave.address}


# --- Metadata ---


async def test_topics_groups_and_offsets_follow(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (master, slave), BrokerClient(master.address) as client:
        await send_code(client, b"x", topic="Kept")
        await send_code(client, b"x", topic="Deleted")
        config = SubscriptionGroupConfig(group_name="CG", retry_max_times=3)
        await client.ask(UpdateAndCreateSubscriptionGroup(config))
        await client.ask(UpdateConsumerOffset("CG", "Kept", 0, 1))

        def follows() -> bool:
            return (
                slave.topics.data_version == master.topics.data_version
                and slave.groups.get("CG") == master.groups.get("CG") is not None
                and slave.offsets.query("Kept", "CG", 0) == 1
                and slave.delay_levels.offsets == master.delay_levels.offsets
            )

        await until(follows)
        await in_step(master, slave)
        assert slave.topics.table().topic_config_table == master.topics.table().topic_config_table
        assert slave.store.max_offset("Deleted", 0) == 1
        slave.stats.count_gets("Deleted", "CG", 1, 100)
        slave.stats.count_gets("Kept", "CG", 1, 100)
        await client.ask(DeleteTopicInBroker("Deleted"))
        await until(lambda: slave.topics.get("Deleted") is None)
        await until(lambda: "Deleted" not in slave.store.topics())
        assert list(slave.stats.group_gets) == [("Kept", "CG")]  # its statistics are gone, too
        await send_code(client, b"anew", topic="Deleted")
        await in_step(master, slave)
        assert slave.store.max_offset("Deleted", 0) == 1
    async with running_slave(tmp_path / "slave", "127.0.0.1:1") as slave:  # it is in files
        assert slave.offsets.query("Kept", "CG", 0) == 1
        assert slave.groups.get("CG") == config


async def test_delayed_messages_are_delivered_by_the_master_alone(tmp_path: Path) -> None:
    store = {"delay_levels": "1s 1h"}
    async with running_pair(tmp_path, store=store) as (master, slave), BrokerClient(master.address) as client:
        await client.send("T", b"later", properties={"DELAY": "1"})
        await until(lambda: master.store.max_offset("T", 0) == 1)
        await in_step(master, slave)
        assert slave.store.max_offset("T", 0) == 1
        await until(lambda: slave.delay_levels.offsets.get(1) == 1)


# --- Who is master ---


async def test_a_slave_finds_its_master_by_the_name_server_and_is_in_the_route(tmp_path: Path) -> None:
    async with (
        running_name_server(tmp_path) as name_server,
        running_broker(tmp_path / "slave", name_servers=name_server.address, broker_id=2,
                       replication=replication()) as slave,
    ):  # fmt: skip
        await until(lambda: slave.role.slave.last_error == "no name server knows the master")
        async with (
            running_master(tmp_path / "master", name_servers=name_server.address) as master,
            BrokerClient(master.address) as client,
            BrokerClient(name_server.address) as asking,
        ):
            await send_code(client, b"x")
            await in_step(master, slave)
            assert slave.role.slave.replica_address == master.addresses.replica

            async def both_are_known() -> bool:
                route = await asking.ask(GetRouteInfoByTopic("T"))
                return route.broker_datas[0].broker_addrs == {0: master.address, 2: slave.address}

            await until(both_are_known)


async def test_metadata_is_taken_from_the_master_that_is_followed(tmp_path: Path) -> None:
    """A name server may speak of another one while the old one still sends its log."""
    async with running_name_server(tmp_path) as name_server, running_master(tmp_path / "other") as other:
        shared: dict[str, Any] = {"name_servers": name_server.address}
        async with (
            running_master(tmp_path / "master", **shared) as master,
            running_broker(tmp_path / "slave", broker_id=1, replication=replication(), **shared) as slave,
        ):
            await connected(master)
            async with BrokerClient(master.address) as client:
                await send_code(client, b"x", topic="Ours")
            async with BrokerClient(other.address) as client:
                await send_code(client, b"x", topic="Theirs")
            await until(lambda: slave.topics.get("Ours") is not None)
            told = slave.registration.on_reply
            slave.registration.on_reply = lambda _: None
            told(RegisterBrokerReply(ha_server_addr=other.addresses.replica, master_addr=other.address))
            for _ in range(3):
                taken_ms = slave.role.slave.metadata_ms
                await until(lambda taken_ms=taken_ms: slave.role.slave.metadata_ms > taken_ms)  # type: ignore[misc]
            assert slave.topics.get("Theirs") is None
            assert slave.topics.get("Ours") is not None


async def test_a_second_master_does_not_start_unless_forced(tmp_path: Path) -> None:
    async with running_name_server(tmp_path) as name_server:
        shared: dict[str, Any] = {"name_servers": name_server.address}
        async with running_master(tmp_path / "first", **shared) as first:
            await until(lambda: bool(first.registration.registered))
            with pytest.raises(MasterExists, match=f"--slave-of {first.address}"):
                await Broker(broker_settings(tmp_path / "second", **shared)).start()
            async with running_master(tmp_path / "other", name="broker-b", **shared):
                pass
            async with running_master(tmp_path / "second", settings={"force_master": True}, **shared):
                pass
        async with running_master(tmp_path / "second", **shared):  # the first is gone
            pass


async def test_a_promoted_slave_has_all_that_was_acknowledged_and_the_old_master_follows_it(
    tmp_path: Path,
) -> None:
    async with running_name_server(tmp_path) as name_server:
        shared: dict[str, Any] = {"name_servers": name_server.address}
        async with (
            running_master(tmp_path / "a", is_sync=True, **shared) as master,
            running_slave(tmp_path / "b", master.address, **shared) as slave,
            BrokerClient(master.address) as client,
        ):
            await connected(master)
            assert {await send_code(client, b"%d" % n) for n in range(20)} == {ResponseCode.SUCCESS}
            await until(lambda: slave.topics.get("T") is not None)
        async with running_master(tmp_path / "b", **shared) as promoted:
            async with BrokerClient(promoted.address) as client:
                assert [each.body for each in await client.pull_all("T")] == [b"%d" % n for n in range(20)]
                assert (await client.send("T", b"20")).queue_offset == 20
            async with running_slave(tmp_path / "a", promoted.address, **shared) as follower:
                await in_step(promoted, follower)
                assert follower.role.slave.divergence == ""


async def leave_a_tail(directory: Path) -> None:
    """Stores of a master and its slave, `a` and `b`: three messages in both, and one that only `a` has."""
    settings = {"ack_timeout_ms": 60_000}
    async with running_master(directory / "a", is_sync=True, settings=settings) as master:
        async with (
            running_slave(directory / "b", master.address) as slave,
            BrokerClient(master.address) as client,
        ):
            await connected(master)
            for n in range(3):
                assert await send_code(client, b"%d" % n) == ResponseCode.SUCCESS
            await client.ask(NEW_GROUP)
            await until(lambda: slave.topics.get("T") is not None and slave.groups.get("CG") is not None)
        await connected(master, 0)
        async with raw_slave(master) as lagging, BrokerClient(master.address) as client:
            await lagging.report(master.store.appended_offset)
            await connected(master)
            await send_code(client, b"lost", wait=False)
            assert master.store.max_offset("T", 0) == 3  # no reader has seen it


async def test_an_old_master_shows_nothing_before_it_has_joined_the_new_one(tmp_path: Path) -> None:
    await leave_a_tail(tmp_path)
    port = free_ports(-2, 1)
    async with (
        running_slave(tmp_path / "a", f"127.0.0.1:{port}") as old,
        BrokerClient(old.address) as at_old,
    ):
        # Nobody is there to compare with: what only this broker has, its new master may never get.
        await until(lambda: "cannot connect" in old.role.slave.last_error)
        questions: list[Request[Any]] = [
            pull_of(0),
            pull_of(3, suspend_ms=60_000),
            GetMaxOffset("T", 0),
            GetMinOffset("T", 0),
            SearchOffsetByTimestamp("T", 0, 1),
            GetEarliestMsgStoreTime("T", 0),
            ViewMessageById(0),
            QueryMessage("T", "key", 32, 0, 1 << 60),
            QueryConsumeQueue("T", 0, 0, 32),
            ConsumeMessageDirectly("CG", "client", "0" * 32),
            QueryConsumerOffset("CG", "T", 0),
            GetAllConsumerOffset(),
        ]
        for question in questions:
            with pytest.raises(BrokerError, match="before it has joined") as caught:
                await at_old.ask(question)
            assert caught.value.code == ResponseCode.SYSTEM_BUSY
        async with running_master(tmp_path / "b", port=port) as new, BrokerClient(new.address) as client:
            # Before the new master writes another message there.
            await until(lambda: old.role.slave.is_copy)
            assert "1 records" in old.role.slave.divergence
            assert await at_old.ask(GetMaxOffset("T", 0)) == 3
            assert (await client.send("T", b"3")).queue_offset == 3
            await in_step(new, old)
            await until(lambda: old.store.max_offset("T", 0) == 4)
            await until(lambda: old.topics.get("T") is not None and old.groups.get("CG") is not None)
            assert [each.body for each in decode_all((await pull(at_old, 2)).records)] == [b"2", b"3"]


async def test_an_old_master_does_not_send_groups_back_to_where_they_were(tmp_path: Path) -> None:
    await leave_a_tail(tmp_path)
    async with running_broker(tmp_path / "a") as alone, BrokerClient(alone.address) as client:
        await client.ask(UpdateConsumerOffset("CG", "T", 0, 1))
    port = free_ports(-2, 1)
    async with (
        running_slave(tmp_path / "a", f"127.0.0.1:{port}") as old,
        BrokerClient(old.address) as at_old,
    ):
        with pytest.raises(BrokerError, match="before it has joined"):
            await at_old.ask(QueryConsumerOffset("CG", "T", 0))
        async with running_master(tmp_path / "b", port=port) as new:
            new.offsets.commit("T", "CG", 0, 3, now_ms=0)
            await until(lambda: old.role.slave.is_copy)
            assert await at_old.ask(QueryConsumerOffset("CG", "T", 0)) == 3
            # A kill would not take it back, either.
            kept = old.live.current.config_directory / "consumerOffset.json"
            assert b'"T@CG":{0:3}' in kept.read_bytes()


async def test_a_slave_is_a_copy_only_when_it_has_the_offsets_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def hang(sync: MetadataSync, address: str) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with running_master(tmp_path / "master") as master, BrokerClient(master.address) as client:
        await send_code(client, b"x")
        await client.ask(NEW_GROUP)
        await client.ask(UpdateConsumerOffset("CG", "T", 0, 1))
        with monkeypatch.context() as patched:
            patched.setattr(MetadataSync, "_sync_offsets", hang)
            async with (
                running_slave(tmp_path / "slave", master.address) as slave,
                BrokerClient(slave.address) as at_slave,
            ):
                await asked.wait()
                await until(lambda: has_all(master, slave))
                # Else a consumer would begin anew, and the master would hear of that.
                with pytest.raises(BrokerError, match="before it has joined"):
                    await at_slave.ask(QueryConsumerOffset("CG", "T", 0))
        async with (
            running_slave(tmp_path / "slave", "127.0.0.1:1") as alone,
            BrokerClient(alone.address) as at_slave,
        ):
            with pytest.raises(BrokerError, match="before it has joined"):
                await at_slave.ask(QueryConsumerOffset("CG", "T", 0))
        async with running_slave(tmp_path / "slave", master.address) as slave:
            await until(lambda: slave.role.slave.is_copy)
            assert slave.offsets.query("T", "CG", 0) == 1


async def assert_shows_all_alone(directory: Path) -> None:
    async with running_slave(directory, "127.0.0.1:1") as alone, BrokerClient(alone.address) as client:
        found = decode_all((await pull(client, 0)).records)
        assert [each.body for each in found] == [b"0", b"1", b"2"]


async def test_a_slave_shows_all_it_has_after_a_restart_without_its_master(tmp_path: Path) -> None:
    await leave_a_tail(tmp_path)
    await assert_shows_all_alone(tmp_path / "b")  # it never was a master
    async with running_master(tmp_path / "b") as new, running_slave(tmp_path / "a", new.address) as old:
        await until(lambda: old.role.slave.is_copy)
        await in_step(new, old)
        await until(lambda: old.groups.get("CG") is not None)
    await assert_shows_all_alone(tmp_path / "a")  # it was one, and has followed another since


async def test_where_apache_ran_meanwhile_a_log_is_no_copy_any_more(tmp_path: Path) -> None:
    await leave_a_tail(tmp_path)
    checkpoint = broker_settings(tmp_path / "b").store.path / "checkpoint"
    page = bytearray(checkpoint.read_bytes())
    page[:8] = (1).to_bytes(8, "big")  # what is Apache's in it, without our checksum of that
    checkpoint.write_bytes(page)
    async with running_slave(tmp_path / "b", "127.0.0.1:1") as slave, BrokerClient(slave.address) as client:
        with pytest.raises(BrokerError, match="before it has joined"):
            await pull(client, 0)


# --- Watching ---


async def test_status_and_metrics(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (master, slave), BrokerClient(master.address) as client:
        await send_code(client, b"x")
        await in_step(master, slave)
        end = master.store.appended_offset
        await until(lambda: master.replication.slaves()[0].diff == 0)
        status = await client.ask(GetBrokerHaStatus())
        assert (status.master, status.in_sync_slave_nums, status.master_commit_log_max_offset) == (
            True,
            1,
            end,
        )
        [connection] = status.ha_connection_info
        assert (connection.slave_ack_offset, connection.diff, connection.in_sync) == (end, 0, True)
        async with BrokerClient(slave.address) as at_slave:
            status = await at_slave.ask(GetBrokerHaStatus())
        assert not status.master
        assert status.ha_client_runtime_info.max_offset == end
        assert "skylark_slaves 1.0" in await metrics(master)
        assert 'skylark_slave_lag_bytes{slave="127.0.0.1:' in await metrics(master)
        shown = await metrics(slave)
        assert "skylark_master_connected 1.0" in shown
        assert "skylark_master_lag_bytes 0.0" in shown


async def metrics(broker: Broker) -> str:
    def get() -> str:
        with urllib.request.urlopen(f"http://{broker.monitor.address}/metrics", timeout=60) as answer:
            return str(answer.read(), "utf-8")

    return await asyncio.to_thread(get)


# --- Bad input on the replication port ---


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((-1).to_bytes(8, "big", signed=True), "negative offset -1"),
        (((1 << 63) - 1).to_bytes(8, "big"), "although the log ends at"),
        (random.Random(8).randbytes(4096), "offset|although"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "although the log ends at"),
        (bytes(8) + (1 << 62).to_bytes(8, "big"), "although only"),
    ],
)
async def test_nonsense_closes_the_link_and_nothing_else(tmp_path: Path, data: bytes, reason: str) -> None:
    async with running_pair(tmp_path) as (master, slave), healthy_client(master.address):
        async with raw_slave(master) as bad:
            await bad.send(data)
            await bad.closed()
        await until(lambda: len(master.replication.slaves()) == 1)
        assert re.search(reason, master.replication.last_error)
    assert slave.role.slave.connections == 1


async def test_a_byte_now_and_then_ends_in_silence(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", settings={"idle_timeout_ms": 300}) as master,
        raw_slave(master) as bad,
    ):
        await bad.send(b"\0\0\0")
        await bad.closed()
        assert "silent for 300 ms" in master.replication.last_error


async def test_more_slaves_than_allowed_are_turned_away(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", settings={"connections_max": 2}) as master,
        raw_slave(master) as first,
        raw_slave(master) as second,
    ):
        await first.report(0)
        await second.report(0)
        await connected(master, 2)
        async with raw_slave(master) as third:
            await third.closed()
        assert "2 slaves are connected already" in master.replication.last_error


async def test_a_slave_that_reads_nothing_costs_no_memory_and_holds_nobody_up(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master") as master,
        raw_slave(master) as slow,
        BrokerClient(master.address) as client,
    ):
        await slow.report(0)
        await connected(master)
        for _ in range(12):
            assert await send_code(client, bytes(1 << 20)) == ResponseCode.SUCCESS
        [info] = master.replication.slaves()
        assert info.transfer_from_where < master.store.appended_offset


async def test_a_master_that_talks_nonsense_or_is_silent_is_left_and_tried_again(tmp_path: Path) -> None:
    answers = [b"\xff" * 12, (7).to_bytes(8, "big") + (5 << 20).to_bytes(4, "big"), b""]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        if answers:
            writer.write(answers.pop(0))
            while await reader.read(100):
                pass

    async with running_master(tmp_path / "master") as master, raw_server(serve) as liar:
        settings = {"replica_address": liar.address, "idle_timeout_ms": 300}
        async with running_slave(tmp_path / "slave", master.address, settings=settings) as slave:
            for words in ("malformed frame", "larger than the limit", "silent for 300 ms"):
                await until(lambda words=words: words in slave.role.slave.last_error)  # type: ignore[misc]
            assert slave.store.appended_offset == 0
