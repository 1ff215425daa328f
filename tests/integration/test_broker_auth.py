"""Access control of a running broker and name server: clients with and without credentials and rights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.aio import Admin, Producer, PushConsumer, TransactionProducer
from skylark.auth.rights import AUTHENTICATION, RIGHTS
from skylark.broker.broker import Broker
from skylark.broker.request_routes import SERVED
from skylark.client.producer.transaction_producer import TransactionState
from skylark.controller.handlers import ROUTES as CONTROLLER_ROUTES
from skylark.errors import BrokerError, ConnectFailed, ConnectionLost, NoPermission, SendFailed
from skylark.model.message import Message, pack_host
from skylark.model.message_id import offset_message_id
from skylark.namesrv.handlers import ROUTES
from skylark.protocol.bodies import AclInfo, Policy, PolicyEntry, UserInfo
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.connection import HOT_REQUESTS
from skylark.protocol.request import Request
from skylark.protocol.requests.admin import (
    AuthCreateAcl,
    AuthCreateUser,
    AuthDeleteAcl,
    AuthDeleteUser,
    AuthGetAcl,
    AuthGetUser,
    AuthListAcl,
    AuthListUser,
    AuthUpdateUser,
    GetBrokerConfig,
)
from skylark.protocol.requests.client import ConsumeMessageDirectly
from skylark.protocol.requests.lite import (
    COMPLETE_REMOVE,
    LiteSubscriptionChange,
    LiteSubscriptionChanges,
)
from skylark.protocol.requests.name_server import GetBrokerClusterInfo, GetNamesrvConfig
from skylark.protocol.requests.pull import ViewMessageById
from skylark.protocol.requests.send import ConsumerSendMsgBack
from skylark.protocol.signature import Signer
from skylark.remoting.tls_client import ClientTls
from skylark.settings import TlsMode
from skylark.settings.auth import AuthSettings
from skylark.settings.client import ClientSettings, ConsumeFrom, PushConsumerSettings
from skylark.settings.credentials import Credentials
from tests.integration.broker_rig import wire
from tests.support.broker import BrokerClient, running_broker, running_name_server, until
from tests.support.certificates import make_files
from tests.support.replica_group import in_sync, is_master, running_controller, running_replica
from tests.support.replication import running_master, running_slave, send_code

ROOT = Credentials("root", "root-secret")
INNER = Credentials("inner", "inner-secret")
ALICE = Credentials("alice", "alice-secret")
BOB = Credentials("bob", "bob-secret")
AUTH = AuthSettings(
    enabled=True,
    authorization=True,
    first_user='{"username":"root","password":"root-secret"}',
    inner_credentials='{"accessKey":"inner","secretKey":"inner-secret"}',
    failures_max=0,
)


def entry(resource: str, *actions: str, decision: str = "Allow") -> PolicyEntry:
    return PolicyEntry(resource=resource, actions=list(actions), decision=decision)


def acl(name: str, *entries: PolicyEntry) -> AuthCreateAcl:
    body = AclInfo(subject=f"User:{name}", policies=[Policy(entries=list(entries))])
    return AuthCreateAcl(f"User:{name}", body=body)


def user(credentials: Credentials, kind: str = "Normal") -> AuthCreateUser:
    name, secret = credentials.access_key, credentials.secret_key
    return AuthCreateUser(name, body=UserInfo(username=name, password=secret, user_type=kind))


@asynccontextmanager
async def guarded(directory: Path, **changes: Any) -> AsyncIterator[tuple[Broker, BrokerClient]]:
    """A broker with access control, and a client who may do everything."""
    async with (
        running_broker(directory, **{"auth": AUTH, **changes}) as broker,
        BrokerClient(broker.address, credentials=ROOT) as root,
    ):
        yield broker, root


async def refusal(client: BrokerClient, request: Request[Any]) -> BrokerError:
    with pytest.raises(BrokerError) as refused:
        await client.ask(request)
    return refused.value


# --- Clients ---


@asynccontextmanager
async def guarded_cluster(directory: Path) -> AsyncIterator[str]:
    """A name server and a broker, both with access control, and a user `alice` with rights to `orders`."""
    async with (
        running_name_server(directory, auth=AUTH) as name_server,
        guarded(directory / "store", name_servers=name_server.address) as (broker, root),
        BrokerClient(name_server.address, credentials=ROOT) as name_server_root,
    ):
        rights = acl(
            "alice",
            entry("Topic:orders", "Pub", "Sub", "Create"),
            entry("Group:billing", "Sub"),
        )
        for client in (root, name_server_root):
            await client.ask(user(ALICE))
            await client.ask(rights)
        await until(lambda: bool(broker.registration.registered))
        yield name_server.address


def settings_of(credentials: Credentials) -> ClientSettings:
    return ClientSettings(access_key=credentials.access_key, secret_key=credentials.secret_key)


async def test_our_clients_work_with_credentials(tmp_path: Path) -> None:
    received: list[bytes] = []

    async def consume(messages: Any) -> None:
        received.extend(message.body for message in messages)

    async with guarded_cluster(tmp_path) as namesrv:
        client = settings_of(ALICE)
        async with Producer("PG", namesrv=namesrv, client=client) as producer:
            for number in range(20):
                await producer.send(Message("orders", b"%d" % number))
            await asyncio.gather(*(producer.send(Message("orders", b"x")) for _ in range(64)))
            await producer.send_batch([Message("orders", b"batch"), Message("orders", b"batch")])
            await producer.send_oneway(Message("orders", b"oneway"))
        async with TransactionProducer(
            "TPG",
            namesrv=namesrv,
            client=client,
            execute=lambda *_: TransactionState.COMMIT,
            check=lambda _: TransactionState.UNKNOWN,
        ) as transactions:
            await transactions.send_in_transaction(Message("orders", b"committed"))
        start = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, first_pull_delay_ms=0)
        consumer = PushConsumer("billing", namesrv=namesrv, client=client, settings=start)
        consumer.subscribe("orders")(consume)
        async with consumer:
            await until(lambda: len(received) >= 88)
    assert sorted(received) == sorted(
        [*(b"%d" % number for number in range(20)), *[b"x"] * 64, b"batch", b"batch", b"oneway", b"committed"]
    )


@pytest.mark.parametrize("credentials", [Credentials("alice", "wrong"), Credentials("nobody", "12345678")])
async def test_clients_with_wrong_credentials_are_refused(tmp_path: Path, credentials: Credentials) -> None:
    async with guarded_cluster(tmp_path) as namesrv:
        async with Producer("PG", namesrv=namesrv, client=settings_of(credentials)) as producer:
            with pytest.raises((NoPermission, SendFailed)) as refused:
                await producer.send(Message("orders", b"x"))
        assert credentials.secret_key not in str(refused.value)


async def test_a_user_sends_only_where_it_may(tmp_path: Path) -> None:
    async with (
        guarded_cluster(tmp_path) as namesrv,
        Producer("PG", namesrv=namesrv, client=settings_of(ROOT)) as root,
        Producer("PG", namesrv=namesrv, client=settings_of(ALICE)) as alice,
    ):
        await root.send(Message("others", b"x"))
        await alice.send(Message("orders", b"x"))
        with pytest.raises((NoPermission, SendFailed), match="Topic:others"):
            await alice.send(Message("others", b"x"))


async def test_an_admin_with_credentials_works(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as namesrv:
        async with Admin(namesrv=namesrv, client=settings_of(ROOT)) as admin:
            await admin.topics.create("made")
            assert "made" in await admin.topics.names()
        async with Admin(namesrv=namesrv, client=settings_of(ALICE)) as admin:
            with pytest.raises(NoPermission):
                await admin.topics.create("refused")
            with pytest.raises(NoPermission):
                await admin.topics.names()


# --- Every code ---

BROKER_CODES = sorted({*SERVED, *(request.code for request in HOT_REQUESTS)})


async def test_every_code_needs_a_signature_and_rights(tmp_path: Path) -> None:
    """Without credentials nothing is answered; a user without an ACL gets only what every user may.

    Neither does one with all rights to other topics and groups get more.
    """
    fields = {
        **{name: "secret-topic" for name in ("topic", "b", "parentTopic")},
        **{name: "secret-group" for name in ("group", "consumerGroup", "groupName", "destGroup", "srcGroup")},
        "offset": "0", "commitLogOffset": "0",
    }  # fmt: skip
    change = LiteSubscriptionChange(COMPLETE_REMOVE, "client", "secret-group", "secret-topic")
    bodies = {RequestCode.LITE_SUBSCRIPTION_CTL: msgspec.json.encode(LiteSubscriptionChanges([change]))}
    async with guarded(tmp_path) as (broker, root):
        await root.send("secret-topic", b"x")
        await root.ask(user(ALICE))
        await root.ask(user(BOB))
        await root.ask(acl("bob", entry("Topic:other*", "All"), entry("Group:other*", "All")))
        async with wire(broker.address) as raw:
            for code in BROKER_CODES:
                command = RemotingCommand(
                    code=code, opaque=code, version=479, fields=dict(fields), body=bodies.get(code, b"")
                )
                answer = await raw.ask(b"".join(encode(command)))
                assert (answer.opaque, answer.code) == (code, ResponseCode.NO_PERMISSION), code
                assert answer.remark == "username cannot be null."
                assert not answer.body
                Signer(ALICE).sign(command)
                answer = await raw.ask(b"".join(encode(command)))
                if RIGHTS[code] is AUTHENTICATION and code != RequestCode.VIEW_MESSAGE_BY_ID:
                    assert answer.code != ResponseCode.NO_PERMISSION, code
                elif code not in (RequestCode.HEART_BEAT, RequestCode.BATCH_ACK_MESSAGE):
                    assert answer.code == ResponseCode.NO_PERMISSION, RequestCode(code).name
                    assert not answer.body
                    Signer(BOB).sign(command)
                    answer = await raw.ask(b"".join(encode(command)))
                    assert answer.code == ResponseCode.NO_PERMISSION, RequestCode(code).name
                    assert not answer.body


@pytest.mark.parametrize(
    ("running", "codes"), [(running_name_server, ROUTES), (running_controller, CONTROLLER_ROUTES)]
)
async def test_every_code_of_a_name_server_and_a_controller_needs_a_signature_and_rights(
    tmp_path: Path, running: Any, codes: Iterable[int]
) -> None:
    async with (
        running(tmp_path, auth=AUTH) as server,
        BrokerClient(server.address, credentials=ROOT) as root,
        wire(server.address) as raw,
    ):
        await root.ask(user(ALICE))
        await root.ask(user(BOB))
        await root.ask(acl("bob", entry("Topic:other*", "All"), entry("Group:other*", "All")))
        for code in codes:
            command = RemotingCommand(code=code, opaque=code, fields={"topic": "secret-topic"})
            answer = await raw.ask(b"".join(encode(command)))
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "username cannot be null.")
            for stranger in (ALICE, BOB) if RIGHTS[code] is not AUTHENTICATION else ():
                Signer(stranger).sign(command)
                answer = await raw.ask(b"".join(encode(command)))
                assert answer.code == ResponseCode.NO_PERMISSION, RequestCode(code).name
                assert not answer.body


async def test_a_name_server_may_leave_its_routes_open(tmp_path: Path) -> None:
    async with (
        running_name_server(tmp_path, auth=AUTH, open_routes=True) as server,
        wire(server.address) as raw,
    ):
        command = RemotingCommand(code=105, opaque=1, fields={"topic": "T"})
        assert (await raw.ask(b"".join(encode(command)))).code == ResponseCode.TOPIC_NOT_EXIST


async def test_refused_requests_of_a_read_do_not_touch_the_others(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, root):
        await root.send("T", b"first")
        frames = []
        for opaque, credentials in enumerate([ROOT, Credentials("root", "wrong"), ROOT], 1):
            fields = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
            command = RemotingCommand(
                code=310, opaque=opaque, version=479, fields=fields, body=b"%d" % opaque
            )
            Signer(credentials).sign(command)
            frames.append(b"".join(encode(command)))
        async with wire(broker.address) as raw:
            await raw.send(b"".join(frames))
            answers = [await raw.answer() for _ in frames]
        assert {answer.opaque: answer.code for answer in answers} == {1: 0, 2: 16, 3: 0}
        assert broker.store.max_offset("T", 0) + sum(broker.store.max_offset("T", n) for n in (1, 2, 3)) == 3


async def test_a_message_is_not_read_by_its_position_without_rights_to_its_topic(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as (broker, root),
        BrokerClient(broker.address, credentials=ALICE) as alice,
    ):
        await root.send("secret", b"x")
        await root.send("orders", b"y")
        first = await root.ask(ViewMessageById(0))
        secret, orders = 0, len(first)
        await root.ask(user(ALICE))
        await root.ask(acl("alice", entry("Topic:orders", "Sub"), entry("Group:billing", "Sub")))
        assert b"y" in bytes(await alice.ask(ViewMessageById(orders)))
        for request in (ViewMessageById(secret), ViewMessageById(secret, "orders")):
            assert "Topic:secret" in (await refusal(alice, request)).remark
        msg_id = offset_message_id(pack_host("127.0.0.1", broker.port), secret)
        directly = ConsumeMessageDirectly("billing", "client@1", msg_id, "orders")
        assert "Topic:secret" in (await refusal(alice, directly)).remark
        back = ConsumerSendMsgBack("billing", secret, 3)
        assert "Topic:secret" in (await refusal(alice, back)).remark
        await alice.ask(ConsumerSendMsgBack("billing", orders, 3))


# --- Administration ---


async def test_users_are_administered(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, root):
        await root.ask(user(ALICE))
        assert (await refusal(root, user(ALICE))).remark == "The user is existed"
        assert (
            await refusal(root, AuthCreateUser("x", body=UserInfo()))
        ).remark == "password can not be blank"
        blank = await refusal(root, AuthCreateUser(" ", body=UserInfo(password="12345678")))
        assert (blank.code, blank.remark) == (ResponseCode.INVALID_PARAMETER, "The username is blank")
        assert (await refusal(root, AuthUpdateUser("x", body=UserInfo()))).remark == "The user is not exist"
        found = await root.ask(AuthGetUser("alice"))
        assert found == UserInfo("alice", ALICE.secret_key, "Normal", "enable")
        assert await root.ask(AuthGetUser("nobody")) is None
        assert [each.username for each in await root.ask(AuthListUser()) or []] == ["root", "inner", "alice"]
        assert [each.username for each in await root.ask(AuthListUser("lic")) or []] == ["alice"]
        await root.ask(AuthUpdateUser("alice", body=UserInfo(user_status="disable")))
        async with BrokerClient(broker.address, credentials=ALICE) as alice:
            assert (await refusal(alice, GetBrokerConfig())).remark == "User:alice is disabled."
        await root.ask(AuthDeleteUser("alice"))
        await root.ask(AuthDeleteUser("alice"))
        assert await root.ask(AuthGetUser("alice")) is None


async def test_acls_are_administered(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, root):
        unknown = await refusal(root, acl("alice", entry("Topic:a", "Pub")))
        assert unknown.remark == "The subject of User:alice is not exist."
        await root.ask(user(ALICE))
        await root.ask(acl("alice", entry("Topic:a", "Pub"), entry("Topic:b", "Sub")))
        await root.ask(acl("alice", entry("Topic:a", "Sub", decision="Deny")))
        (policy,) = (await root.ask(AuthGetAcl("User:alice")) or AclInfo()).policies
        assert policy.entries == [entry("Topic:a", "Sub", decision="Deny"), entry("Topic:b", "Sub")]
        found = await root.ask(AuthListAcl("alice", "Topic:b"))
        assert [info.subject for info in found or []] == ["User:alice"]
        assert await root.ask(AuthListAcl("bob")) is None
        for bad, remark in [
            (acl("alice"), "The policy entries is empty."),
            (AuthCreateAcl("User:alice", body=AclInfo()), "The policies is empty."),
            (acl("alice", entry("nonsense", "Pub")), "The resource is null."),
            (acl("alice", entry("Topic:a")), "The actions is empty."),
            (acl("alice", entry("Topic:a", "Any")), "The actions can not be Any."),
            (acl("alice", entry("Topic:a", "Pub", decision="Maybe")), "The decision is null or illegal."),
        ]:
            assert (await refusal(root, bad)).remark == remark
        await root.ask(AuthDeleteAcl("User:alice", resource="Topic:a"))
        await root.ask(AuthDeleteAcl("User:alice"))
        assert (await refusal(root, AuthDeleteAcl("User:alice"))).remark == "The acl is not exist."
        assert (await refusal(root, AuthDeleteAcl("User:bob"))).remark == "The subject is not exist."


async def test_an_administrator_without_all_rights_gains_none(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as (broker, root),
        BrokerClient(broker.address, credentials=ALICE) as alice,
    ):
        await root.ask(user(ALICE))
        await root.ask(acl("alice", entry("Cluster:*", "Update", "Get")))
        await alice.ask(user(Credentials("bob", "12345678")))
        remark = "The super user can only be create by super user"
        assert (await refusal(alice, user(Credentials("eve", "12345678"), "Super"))).remark == remark
        for request in (
            AuthUpdateUser("root", body=UserInfo(password="12345678")),
            AuthDeleteUser("root"),
            AuthUpdateUser("alice", body=UserInfo(user_type="Super")),
        ):
            assert "only be update by super user" in (await refusal(alice, request)).remark
        shown = await alice.ask(AuthListUser()) or []
        assert {each.username for each in shown} == {"root", "inner", "alice", "bob"}
        assert {each.password for each in shown} == {None}


async def test_the_configuration_shows_no_secret(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, root), running_name_server(tmp_path / "ns", auth=AUTH) as server:
        text = (await root.ask(GetBrokerConfig())).text
        async with BrokerClient(server.address, credentials=ROOT) as name_server:
            config = await name_server.ask(GetNamesrvConfig())
            text += str(config)
        assert "authenticationEnabled" in text
        assert "initAuthenticationUser" in text
        for secret in (ROOT.secret_key, INNER.secret_key):
            assert secret not in text


async def test_users_survive_a_restart_in_private_files(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, root):
        await root.ask(user(ALICE))
        await root.ask(acl("alice", entry("Cluster:*", "Get")))
        files = sorted((tmp_path / "config").glob("auth*.json*"))
        assert {path.name for path in files} >= {"authUsers.json", "authAcls.json"}
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        assert (tmp_path / "config").stat().st_mode & 0o777 == 0o700
    async with guarded(tmp_path) as (broker, _), BrokerClient(broker.address, credentials=ALICE) as alice:
        await alice.ask(GetBrokerConfig())


async def test_short_secrets_are_refused(tmp_path: Path) -> None:
    short = Credentials("alice", "seven-c")
    async with guarded(tmp_path / "a") as (_, root):
        assert "at least 8" in (await refusal(root, user(short))).remark
        await root.ask(user(ALICE))
        change = AuthUpdateUser("alice", body=UserInfo(username="alice", password="seven-c"))
        assert "at least 8" in (await refusal(root, change)).remark
    async with guarded(tmp_path / "b", auth=replace(AUTH, secret_chars_min=1)) as (_, root):
        await root.ask(user(short))


async def test_without_authentication_users_are_administered_only_on_demand(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "a") as broker, BrokerClient(broker.address) as client:
        refused = await refusal(client, user(ALICE))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "authenticationEnabled" in refused.remark
    prepared = AuthSettings(metadata_provider="LocalAuthenticationMetadataProvider")
    async with (
        running_broker(tmp_path / "b", auth=prepared) as broker,
        BrokerClient(broker.address, credentials=ROOT) as client,
    ):
        await client.ask(user(ROOT, "Super"))
        (shown,) = await client.ask(AuthListUser()) or []
        assert shown.password is None  # names are not checked, so nobody is a super user
        await client.send("T", b"signed requests are served by an open broker")


# --- Guessing ---


async def test_an_address_that_guesses_is_disconnected(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=replace(AUTH, failures_max=3)) as (broker, root):
        async with BrokerClient(broker.address, credentials=Credentials("root", "guess")) as guesser:
            for _ in range(3):
                with pytest.raises((NoPermission, ConnectionLost)):
                    await guesser.ask(GetBrokerClusterInfo())
            with pytest.raises((ConnectFailed, ConnectionLost)):
                await guesser.ask(GetBrokerClusterInfo())
        with pytest.raises((ConnectFailed, ConnectionLost)):
            await root.ask(GetBrokerConfig())


# --- Slaves ---


async def test_a_slave_has_the_users_of_its_master(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", auth=AUTH) as master,
        BrokerClient(master.address, credentials=ROOT) as root,
    ):
        await root.ask(user(ALICE))
        await root.ask(acl("alice", entry("Cluster:*", "Get")))
        async with (
            running_slave(tmp_path / "slave", master.address, auth=AUTH) as slave,
            BrokerClient(slave.address, credentials=ALICE) as alice,
            BrokerClient(slave.address, credentials=ROOT) as slave_root,
        ):
            await until(lambda: slave.access.store.acl("alice") is not None)
            await alice.ask(GetBrokerConfig())
            # mqadmin sends every change to every broker.
            bob = user(Credentials("bob", "12345678"))
            await root.ask(bob)
            await slave_root.ask(bob)
            # What reaches only a slave is changed on its master.
            await slave_root.ask(user(Credentials("carol", "12345678")))
            assert master.access.store.user("carol") is not None
            assert slave.access.store.user("carol") is not None
            other = user(Credentials("bob", "another-secret"))
            assert (await refusal(slave_root, other)).remark == "The user is existed"
            await root.ask(acl("alice", entry("Cluster:*", "Get", "Update")))
            eve = user(Credentials("eve", "12345678"), "Super")
            await until(lambda: len(list(slave.access.store.acls())) == 1)
            assert (await refusal(alice, eve)).code in (ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION)
            assert master.access.store.user("eve") is None
            await root.ask(AuthDeleteUser("alice"))
            await until(lambda: slave.access.store.user("alice") is None)
    async with (  # the slave becomes the master
        running_master(tmp_path / "slave", auth=AUTH) as promoted,
        BrokerClient(promoted.address, credentials=Credentials("carol", "12345678")) as carol,
    ):
        assert "no matched policies" in (await refusal(carol, GetBrokerConfig())).remark


async def test_an_elected_master_has_the_users_and_rights_of_the_lost_one(tmp_path: Path) -> None:
    """In a group with TLS on every port: controller, brokers, replication."""
    files = make_files(tmp_path / "certificates")
    server = files.server(mode=TlsMode.ENFORCING, trusted=files.authority)
    guard: dict[str, Any] = {"auth": AUTH, "tls": server, "tls_client": files.client(own=True)}
    tls = ClientTls(files.client())
    async with (
        running_controller(tmp_path / "controller", **guard) as controller,
        AsyncExitStack() as life_of_first,
    ):
        group = {"controller": controller.address, **guard}
        first = await life_of_first.enter_async_context(running_replica(tmp_path / "a", **group))
        await until(lambda: is_master(first))
        async with BrokerClient(first.address, credentials=ROOT, tls=tls) as root:
            await root.ask(user(ALICE))
            await root.ask(acl("alice", entry("Topic:T", "Pub"), entry("Topic:U", "Pub", decision="Deny")))
        async with running_replica(tmp_path / "b", **group) as second:
            await in_sync(first, second)
            await until(lambda: second.access.store.acl("alice") is not None)
            await life_of_first.aclose()
            await until(lambda: is_master(second))
            async with (
                BrokerClient(second.address, credentials=ROOT, tls=tls) as root,
                BrokerClient(second.address, credentials=ALICE, tls=tls) as alice,
                BrokerClient(
                    second.address, credentials=replace(ALICE, secret_key="stolen"), tls=tls
                ) as thief,
                BrokerClient(second.address, credentials=BOB, tls=tls) as bob,
                BrokerClient(second.address, tls=tls) as stranger,
                BrokerClient(second.address, credentials=ALICE) as plain,
            ):
                assert await send_code(alice, b"1") == ResponseCode.SUCCESS
                for topic, reason in (("U", "the decision is deny"), ("V", "no matched policies")):
                    with pytest.raises(NoPermission, match=reason):
                        await send_code(alice, b"2", topic=topic)
                refusals = {
                    thief: "check signature failed",
                    bob: "bob is not found",
                    stranger: "cannot be null",
                }
                for client, reason in refusals.items():
                    with pytest.raises(NoPermission, match=reason):
                        await send_code(client, b"3")
                with pytest.raises(ConnectionLost):
                    await send_code(plain, b"4")
                assert second.store.max_offset("T", 0) == 1
                # A change at the new master reaches the old one, which returns as a slave.
                await root.ask(user(BOB))
                await root.ask(AuthDeleteUser("alice"))
            async with running_replica(tmp_path / "a", **group) as again:
                await in_sync(second, again)
                await until(lambda: again.access.store.user("bob") is not None)
                assert again.access.store.user("alice") is None
