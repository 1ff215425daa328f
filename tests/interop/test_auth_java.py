"""Access control with Apache's clients and mqadmin on our servers, and with ours on Apache's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.java import jvm_command
from skylark import Admin, Message, NoPermission, Producer, SendFailed
from skylark.admin.results import AclRule
from skylark.processes import run
from skylark.settings.client import ClientSettings
from tests.interop.mqadmin import MqAdmin, admin_classpath
from tests.interop.servers import ApacheServers
from tests.interop.versions import CLIENTS, POMS
from tests.support.java import compiled
from tests.support.names import fresh_name
from tests.support.skylark_servers import SkylarkServers

pytestmark = pytest.mark.interop("java", "mvn")

JAVA = Path(__file__).parent / "java" / "auth"
TIMEOUT_S = 300
AUTH = "org.apache.rocketmq.auth"
ROOT = ClientSettings(access_key="root", secret_key="root-secret")
SETTINGS: dict[str, str | int] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": "root", "password": "root-secret"}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "inner-secret"}),
}
"""The same for both makes."""


class SignedMqAdmin(MqAdmin):
    """The tool with the credentials of the super user, where it looks for them."""

    def __init__(self, name_server: str, directory: Path) -> None:
        tools = directory / "conf" / "tools.yml"
        tools.parent.mkdir(parents=True, exist_ok=True)
        tools.write_text("accessKey: root\nsecretKey: root-secret\n")
        super().__init__(
            admin_classpath(), name_server, directory, options=[f"-Drocketmq.home.dir={directory}"]
        )


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkylarkServers]:
    with SkylarkServers(tmp_path_factory.mktemp("servers"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheServers]:
    """Apache's broker with access control."""
    with ApacheServers(tmp_path_factory.mktemp("apache"), SETTINGS) as running:
        yield running


def steps(version: str, name_server: str, directory: Path, *arguments: str) -> dict[str, str]:
    """Run the stock clients; what became of each step."""
    classpath = compiled(POMS[version], sorted(JAVA.glob("*.java")))
    command = jvm_command(classpath, "SignedClients", name_server, *arguments, home=directory, heap_mb=256)
    log = directory / "signed-clients.log"
    run(command, log=log, timeout_s=TIMEOUT_S, directory=directory)
    return dict(re.findall(r"^STEP (\w+) (.*)$", log.read_text(), re.MULTILINE))


@pytest.mark.parametrize("version", CLIENTS)
def test_java_clients_with_credentials(servers: SkylarkServers, tmp_path: Path, version: str) -> None:
    topic, group, user = (fresh_name(word) for word in ("topic", "group", "user"))
    with Admin(namesrv=servers.name_server, client=ROOT) as admin:
        admin.topics.create(topic)
        admin.topics.create("forbidden")
        admin.users.create(user, "user-secret")
        rules = [AclRule(f"Topic:{topic}", ("Pub", "Sub")), AclRule(f"Group:{group}*", ("Sub",))]
        admin.acls.create(user, rules)
    found = steps(version, servers.name_server, tmp_path, user, "user-secret", topic, group, "forbidden")
    refused = found.pop("other"), found.pop("wrong")
    assert found == dict.fromkeys(["send", "batch", "transaction", "push", "lite"], "ok")
    assert f"User:{user} has no permission to access Topic:forbidden" in refused[0]
    assert "No route info of this topic" in refused[1]  # what it makes of the name server's refusal


def test_mqadmin_administers_users_and_acls(servers: SkylarkServers, tmp_path: Path) -> None:
    broker, subject = ["-b", servers.broker], ["-s", "User:ann"]
    tool = SignedMqAdmin(servers.name_server, tmp_path)
    denied = ["-r", "Topic:a", "-a", "Pub", "-d", "Deny", "-i", "10.0.0.0/8"]
    created, listed, changed, shown, made, entries, narrowed, removed, gone = tool.run(
        ["createUser", *broker, "-u", "ann", "-p", "ann-secret", "-t", "Normal"],
        ["listUser", *broker],
        ["updateUser", *broker, "-u", "ann", "-s", "disable"],
        ["getUser", *broker, "-u", "ann"],
        ["createAcl", *broker, *subject, "-r", "Topic:a,Group:g*", "-a", "Pub,Sub", "-d", "Allow"],
        ["getAcl", *broker, *subject],
        ["updateAcl", *broker, *subject, *denied],
        ["deleteAcl", *broker, *subject, "-r", "Group:g*"],
        ["listAcl", *broker],
    )
    assert "success" in created, created
    assert re.search(r"ann\s+.*Normal\s+enable", listed), listed
    assert "success" in changed, changed
    assert re.search(r"ann\s+.*Normal\s+disable", shown), shown
    assert "success" in made, made
    assert all(resource in entries for resource in ("Topic:a", "Group:g*")), entries
    assert "success" in narrowed, narrowed
    assert "success" in removed, removed
    assert re.search(r"User:ann\s.*Topic:a\s+\[Pub\]\s+\[10\.0\.0\.0/8\]\s+Deny", gone), gone
    assert "Group:g*" not in gone


@pytest.mark.nightly
def test_users_move_from_apache_by_mqadmin(
    servers: SkylarkServers, apache: ApacheServers, tmp_path: Path
) -> None:
    source = SignedMqAdmin(apache.name_server, tmp_path)
    printed = source.run(
        ["createUser", "-b", apache.broker, "-u", "mover", "-p", "mover-secret", "-t", "Normal"],
        ["createAcl", "-b", apache.broker, "-s", "User:mover", "-r", "Topic:m*", "-a", "Pub", "-d", "Allow"],
        ["copyUser", "-f", apache.broker, "-t", servers.broker, "-u", "mover"],
        ["copyAcl", "-f", apache.broker, "-t", servers.broker, "-s", "User:mover"],
    )
    with Admin(namesrv=servers.name_server, client=ROOT) as admin:
        user = admin.users.get("mover")
        assert user is not None, printed
        assert user.secret == "mover-secret"
        assert admin.acls.get("mover") == [AclRule("Topic:m*", ("Pub",))], printed


@pytest.mark.nightly
def test_our_clients_on_apaches_broker(apache: ApacheServers) -> None:
    topic = fresh_name("topic")
    with Admin(namesrv=apache.name_server, client=ROOT) as admin:
        admin.topics.create(topic)
        admin.users.create("our-user", "our-secret")
        admin.acls.create("our-user", [AclRule(f"Topic:{topic}", ("Pub",))])
    ours = ClientSettings(access_key="our-user", secret_key="our-secret")
    with Producer("PG", namesrv=apache.name_server, client=ours) as producer:
        for number in range(20):
            producer.send(Message(topic, b"%d" % number, keys=f"k{number}"))
        producer.send_batch([Message(topic, b"x"), Message(topic, b"y")])
    wrong = ClientSettings(access_key="our-user", secret_key="wrong-secret")
    with (
        Producer("PG", namesrv=apache.name_server, client=wrong) as producer,
        pytest.raises((NoPermission, SendFailed), match="check signature failed"),
    ):
        producer.send(Message(topic, b"x"))
