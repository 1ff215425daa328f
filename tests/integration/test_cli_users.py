"""`skylark user` and `skylark acl` against a broker with access control."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from skylark import Admin, Message, NoPermission, Producer
from skylark.cli.main import app
from skylark.settings.auth import AuthSettings
from skylark.settings.client import ClientSettings
from skylark.settings.credentials import CREDENTIALS_FILE_VARIABLE
from skylark.testing import EmbeddedServers
from tests.support.names import fresh_name

ROOT_SECRET = "root-secret"
AUTH = AuthSettings(
    enabled=True,
    authorization=True,
    first_user=json.dumps({"username": "root", "password": ROOT_SECRET}),
    failures_max=0,
)
PLAIN_ACL = """
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    admin: false
    defaultTopicPerm: DENY
    topicPerms: [topicB=PUB|SUB]
    groupPerms: [groupB=SUB]
"""


class Commands:
    """Runs `skylark` as the super user."""

    def __init__(self, namesrv: str, directory: Path) -> None:
        self.namesrv = namesrv
        self.file = directory / "credentials"
        self.file.touch(mode=0o600)
        self.file.write_text(f"accessKey=root\nsecretKey={ROOT_SECRET}\n")

    def invoke(self, *words: object, standard_input: str | None = None) -> Result:
        environment = {
            "NAMESRV_ADDR": self.namesrv, "COLUMNS": "200", "SKYLARK_CREDENTIALS_FILE": str(self.file)
        }  # fmt: skip
        return CliRunner().invoke(app, [str(word) for word in words], input=standard_input, env=environment)

    def __call__(self, *words: object, standard_input: str | None = None) -> str:
        result = self.invoke(*words, standard_input=standard_input)
        assert result.exit_code == 0, (words, result.output, result.exception)
        return result.stdout

    def json(self, *words: object) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with EmbeddedServers(settings={"auth": AUTH}) as servers:
        yield Commands(servers.namesrv, tmp_path_factory.mktemp("cli"))


@pytest.fixture
def name() -> str:
    return fresh_name("user")


def test_a_made_secret_is_shown_once_and_works(commands: Commands, name: str) -> None:
    created = commands.json("user", "create", name)
    assert len(created["secret"]) == 32
    commands("acl", "create", name, "Topic:cli*", "--actions", "pub,Create")
    client = ClientSettings(access_key=name, secret_key=created["secret"])
    with Producer("PG", namesrv=commands.namesrv, client=client) as producer:
        producer.send(Message("cli-topic", b"x"))
    for words in (("user", "show", name), ("user", "list"), ("acl", "list")):
        assert created["secret"] not in commands(*words) + json.dumps(commands.json(*words))


def test_users_are_changed_and_deleted(commands: Commands, name: str) -> None:
    commands("user", "create", name, "--secret-file", "-", standard_input="from-a-pipe\n")
    assert commands.json("user", "show", name) == {
        "user": name, "type": "Normal", "status": "enable", "rules": []
    }  # fmt: skip
    commands("user", "update", name, "--disabled", "--super")
    shown = commands.json("user", "show", name)
    assert (shown["type"], shown["status"]) == ("Super", "disable")
    changed = commands.json("user", "update", name, "--new-secret", "--enabled")
    client = ClientSettings(access_key=name, secret_key=changed["secret"])
    with Admin(namesrv=commands.namesrv, client=client) as admin:
        assert name in [user.name for user in admin.users.list()]
    assert commands.invoke("user", "delete", name).exit_code == 2  # asks, and there is no terminal
    commands("user", "delete", name, "--yes")
    assert "there is no user" in commands.invoke("user", "show", name).output


def test_a_test_tells_the_rule_that_decides(commands: Commands, name: str) -> None:
    commands("user", "create", name)
    commands("acl", "create", name, "Topic:order*", "--actions", "Sub", "--from", "10.0.0.0/8")
    commands("acl", "create", name, "Topic:orders", "--actions", "All", "--deny")
    commands("acl", "create", name, "*", "--actions", "Get")
    assert [rule["resource"] for rule in commands.json("acl", "show", name)] == [
        "Topic:orders",
        "Topic:order*",
        "*",
    ]
    allowed = commands("acl", "test", name, "Sub", "Topic:order-1", "--from", "10.1.2.3")
    assert allowed == "allowed: Allow Sub on Topic:order* from 10.0.0.0/8\n"
    for words, reason in [
        (("Sub", "Topic:order-1"), "no rule applies"),
        (("Sub", "Topic:orders", "--from", "10.1.2.3"), "Deny All on Topic:orders"),
        (("Get", "Topic:orders"), "Deny All on Topic:orders"),
    ]:
        refused = commands.invoke("acl", "test", name, *words)
        assert (refused.exit_code, refused.stdout) == (1, f"refused: {reason}\n")
    commands("acl", "update", name, "Topic:orders", "--allow")
    assert commands.json("acl", "test", name, "Get", "Topic:orders")["allowed"]
    commands("acl", "delete", name, "Topic:orders", "--yes")
    commands("acl", "delete", name, "--yes")
    assert commands.json("acl", "list", name) == []
    assert commands.json("acl", "test", "root", "Delete", "Topic:orders")["reason"].startswith("a super user")


def test_accounts_of_rocketmq_4_are_imported(commands: Commands, tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN_ACL)
    assert commands.json("user", "import", file) == {"created": ["RocketMQ"], "existing": []}
    assert commands.json("user", "import", file) == {"created": [], "existing": ["RocketMQ"]}
    assert commands.json("acl", "test", "RocketMQ", "Pub", "Topic:topicB")["allowed"]
    refused = commands.invoke("acl", "test", "RocketMQ", "Pub", "Topic:other")
    assert refused.stdout == "refused: Deny All on Topic:*\n"
    client = ClientSettings(access_key="RocketMQ", secret_key="12345678")
    with Admin(namesrv=commands.namesrv, client=client) as admin, pytest.raises(NoPermission):
        admin.topics.create("other")


def test_what_is_exported_is_imported_again(commands: Commands, tmp_path: Path, name: str) -> None:
    commands("user", "create", name)
    commands("acl", "create", name, "Topic:t", "--actions", "Pub", "--deny")
    users, rules = tmp_path / "users.json", tmp_path / "rules.json"
    commands("user", "export", users)
    assert users.stat().st_mode & 0o777 == 0o600
    commands("acl", "export", rules)
    before = commands.json("user", "show", name)
    commands("user", "delete", name, "--yes")
    commands("user", "import", users)
    assert commands.json("user", "show", name) == before
    commands("acl", "delete", name, "--yes")
    commands("acl", "import", rules)
    assert commands.json("user", "show", name) == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("user", "update", "x"), "nothing to change"),
        (("acl", "create", "root", "Topic:t", "--actions", "Fly"), "unknown action 'Fly'"),
        (
            ("acl", "create", "nobody", "Topic:t", "--actions", "Pub"),
            "The subject of User:nobody is not exist.",
        ),
        (("acl", "test", "nobody", "Pub", "Topic:t"), "there is no user 'nobody'"),
        (("user", "import", "missing.yml"), "missing.yml"),
    ],
)
def test_mistakes_are_said(commands: Commands, words: tuple[str, ...], sentence: str) -> None:
    refused = commands.invoke(*words)
    assert refused.exit_code == 2
    assert sentence in refused.output


def test_a_short_secret_is_refused(commands: Commands, name: str) -> None:
    refused = commands.invoke("user", "create", name, "--secret-file", "-", standard_input="short")
    assert "at least 8" in refused.output


def test_commands_without_credentials_are_refused(commands: Commands) -> None:
    # The variable is restored afterwards: --credentials sets it for the process.
    environment = {"NAMESRV_ADDR": commands.namesrv, CREDENTIALS_FILE_VARIABLE: None}
    refused = CliRunner().invoke(app, ["user", "list"], env=environment)
    assert refused.exit_code == 2
    assert "username cannot be null" in refused.output
    accepted = CliRunner().invoke(app, ["--credentials", str(commands.file), "user", "list"], env=environment)
    assert accepted.exit_code == 0, accepted.output
