"""Questions and mistakes of the first day, each with an answer that helps."""

import re
from pathlib import Path

from tests.support.first_day import Servers, serving


def test_ids_permissions_addresses_and_groups(tmp_path: Path) -> None:
    with serving(tmp_path) as servers:
        servers.run("topic", "create", "orders", "-q", 1)
        servers.run("send", "orders", "first")
        sent = servers.json("tail", "orders", "--from", "begin", "--no-follow")
        unique, offset = sent["message_id"], sent["offset_message_id"]

        shown = servers.on_terminal("message", "id", unique, columns=80)
        assert re.search(r"^kind +unique id$", shown, re.MULTILINE), shown
        shown = servers.on_terminal("message", "id", offset, columns=120)
        assert re.search(rf"^broker +{sent['store_host']}$", shown, re.MULTILINE), shown

        assert servers.json("message", "get", offset)["body"] == "first"
        refused = servers.run("message", "get", unique, code=2)
        assert f"skylark message get TOPIC {unique}" in refused

        servers.run("group", "create", "billing")
        servers.run("offset", "reset", "billing", "orders", "--to", "end", "--yes")
        tracked = servers.json("message", "get", "orders", unique, "--track")
        [group] = tracked["groups"]
        assert group["state"].startswith("consumed or filtered: the group's offset is past it")

        servers.run("topic", "update", "orders", "--permission", "r")
        refused = servers.run("send", "orders", "second", code=2)
        assert "topic orders takes no messages" in refused
        assert "skylark topic update orders --permission rw" in refused
        assert "topic create" not in refused

        check_broker_as_name_server(servers)


def check_broker_as_name_server(servers: Servers) -> None:
    [broker] = re.findall(r"broker broker-a on (\S+)", servers.started.text)
    servers.namesrv = broker
    for words in (("topic", "list"), ("send", "orders", "third")):
        refused = servers.run(*words, code=2)
        assert f"skylark: {broker} is not a name server" in refused
        assert "pass the address of a name server" in refused
        assert "not supported" not in refused
