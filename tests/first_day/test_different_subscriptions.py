"""Two members of one group with different tags: everybody who is asked says so, and names them."""

import json
import re
from pathlib import Path

from tests.support.first_day import program, serving, until

CONSUMER = """
import signal, sys
from skylark import PushConsumer

consumer = PushConsumer("billing", namesrv=sys.argv[1])

@consumer.subscribe("orders", sys.argv[2])
def handle(message):
    print(message.tags)

with consumer:
    signal.sigwait({signal.SIGTERM})
"""


def test_members_with_different_tags_are_named_everywhere(tmp_path: Path) -> None:
    with serving(tmp_path) as servers:
        servers.run("topic", "create", "orders")
        with (
            program(tmp_path / "created.log", CONSUMER, servers.namesrv, "created") as created,
            program(tmp_path / "paid.log", CONSUMER, servers.namesrv, "paid") as paid,
        ):

            def kinds() -> float:
                return servers.metric("skylark_subscription_kinds").get(("billing",), 0)

            until(lambda: kinds() == 2, lambda: created.text + paid.text)

            status = servers.json("group", "status", "billing")
            found = status["subscriptions"]
            assert not found["same"]
            members = {kind["expressions"]["orders"]: kind["members"] for kind in found["kinds"]}
            assert members.keys() == {"created", "paid"}
            [first], [second] = members["created"], members["paid"]

            shown = servers.on_terminal("group", "status", "billing", columns=120)
            assert "DIFFERENT, so messages are skipped: " in shown
            narrow = servers.on_terminal("group", "status", "billing", columns=80)
            assert first in narrow.replace("\n", "")
            assert second in narrow.replace("\n", "")

            checks = json.loads(servers.run("doctor", "--data", tmp_path, "--json", code=1))
            [check] = [check for check in checks if check["check"] == "group billing"]
            assert check["state"] == "FAULT"
            for words in (f"orders: created ({first})", f"orders: paid ({second})"):
                assert words in check["found"]
                servers.started.until(f"WARNING .*group=billing .*{re.escape(words)}")
            assert "or each its own group" in check["advice"]

            told = until(lambda: [log for log in (created, paid) if "different subscriptions" in log.text])
            assert f"orders: created ({first})" in told[0].text
            assert f"orders: paid ({second})" in told[0].text

            paid.stop()
            until(lambda: kinds() == 1)
            assert "group billing" not in servers.run("doctor", "--data", tmp_path)
            same = servers.json("group", "status", "billing")["subscriptions"]
            assert same == {
                "same": True,
                "kinds": [{"expressions": {"orders": "created"}, "members": [first]}],
            }
