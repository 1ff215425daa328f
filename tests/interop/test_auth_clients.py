"""The Node and C++ clients, unchanged, with credentials on our servers with users. They have no TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark import Admin
from skylark.admin.results import AclRule
from skylark.processes import GroupProcess
from tests.interop.test_auth_java import ROOT, SETTINGS
from tests.interop.verdict import Results, results
from tests.support.foreign import node_modules, virtualenv
from tests.support.names import fresh_name
from tests.support.skylark_servers import SkylarkServers

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
DRIVER_TIMEOUT_S = 300
SECRET = "clients-own-secret"
CLIENTS = [
    pytest.param("node", marks=pytest.mark.interop("node", "npm")),
    pytest.param("cpp", marks=pytest.mark.interop()),
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkylarkServers]:
    with SkylarkServers(tmp_path_factory.mktemp("servers"), SETTINGS) as running:
        yield running


def run(client: str, name_server: str, name: str, home: Path, secret: str) -> Results:
    """Send and consume with the credentials of the user `name`."""
    environment = {"HOME": str(home), "ACCESS_KEY": name, "SECRET_KEY": secret}
    if client == "node":
        command = ["node", str(HERE / "node" / "driver.js")]
        environment["NODE_PATH"] = str(node_modules(HERE / "node" / "package.json"))
    else:
        command = [
            str(virtualenv(HERE / "cpp_python" / "requirements.txt")), str(HERE / "cpp_python" / "driver.py")
        ]  # fmt: skip
    command += [name_server, name, "round_trip"]
    with GroupProcess(command, log=home / "output.log", env=environment) as process:
        return results(process, DRIVER_TIMEOUT_S)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_credentials(servers: SkylarkServers, tmp_path: Path, client: str) -> None:
    name = fresh_name(client)
    with Admin(namesrv=servers.name_server, client=ROOT) as admin:
        admin.topics.create(f"Round-{name}", queues=4)
        admin.users.create(name, SECRET)
        rules = [AclRule(f"Topic:Round-{name}", ("Pub", "Sub")), AclRule("Group:GID-*", ("Sub",))]
        admin.acls.create(name, rules)
    assert run(client, servers.name_server, name, tmp_path, SECRET) == {"round_trip": None}
    (tmp_path / "refused").mkdir()
    refused = run(client, servers.name_server, name, tmp_path / "refused", "another-secret")["round_trip"]
    assert refused is not None
