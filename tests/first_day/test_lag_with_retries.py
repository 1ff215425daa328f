"""Failed messages that wait to be consumed again are lag, and those that were given up are shown."""

import re
from pathlib import Path

from tests.support.first_day import program, serving, until

FAILING = """
import signal, sys
from skylark import ConsumeFrom, Message, Producer, PushConsumer, PushConsumerSettings

settings = PushConsumerSettings(reconsume_times_max=0, consume_from=ConsumeFrom.FIRST_OFFSET)
consumer = PushConsumer("billing", namesrv=sys.argv[1], settings=settings)

@consumer.subscribe("orders")
def fail(message):
    raise ValueError("the database is away")

with consumer, Producer("shop", namesrv=sys.argv[1]) as producer:
    for number in range(4):
        producer.send(Message("orders", f"order {number}".encode()))
    signal.sigwait({signal.SIGTERM})
"""


def test_resent_dead_letters_are_lag_until_they_are_consumed(tmp_path: Path) -> None:
    with serving(tmp_path) as servers:
        servers.run("topic", "create", "orders", "-q", 1)
        servers.run("group", "create", "billing", "--retries", 0)
        with program(tmp_path / "consumer.log", FAILING, servers.namesrv) as consumer:
            dead = ("billing",)
            until(lambda: servers.metric("skylark_dead_letters").get(dead) == 4, lambda: consumer.text)
            consumer.stop()
        shown = servers.on_terminal("group", "status", "billing", columns=80)
        assert re.search(r"^retrying +0\ndead letters +4$", shown, re.MULTILINE), shown

        servers.run("dlq", "resend", "billing", "--yes")

        [row] = servers.json("group", "list")
        assert (row["lag"], row["retrying"], row["dead_letters"]) == (4, 4, 0)
        [group] = servers.json("top", "--once", "--every", 0.1)["groups"]
        assert (group["lag"], group["retrying"], group["dead_letters"]) == (4, 4, 0)
        assert servers.metric("rocketmq_consumer_lag_messages")["%RETRY%billing", "billing"] == 4
        assert servers.metric("skylark_dead_letters") == {dead: 0}
        shown = servers.on_terminal("group", "status", "billing", columns=120)
        assert re.search(r"^lag +4\nretrying +4\ndead letters +0$", shown, re.MULTILINE), shown
        assert "%RETRY%billing" in shown
