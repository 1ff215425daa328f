"""Dead letters are copied to a table and sent again, by two people, each letter once."""

from pathlib import Path

import pytest

from skylark import Message, Producer
from tests.support.first_day import Servers, program, until
from tests.support.spark_shell import SparkShell

FAILING = """
import signal, sys
from skylark import PushConsumer, PushConsumerSettings

consumer = PushConsumer("books", namesrv=sys.argv[1], settings=PushConsumerSettings(reconsume_times_max=0))

@consumer.subscribe("sales")
def fail(message):
    raise ValueError("the database is away")

with consumer:
    signal.sigwait({signal.SIGTERM})
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_letters_are_exported_and_resent_once(servers: Servers, spark: SparkShell, tmp_path: Path) -> None:
    servers.run("topic", "create", "sales", "-q", 1)
    servers.run("group", "create", "books", "--retries", 0)
    with Producer("shop", namesrv=servers.namesrv) as producer:
        for number in range(6):
            producer.send(Message("sales", b"sale %d" % number))
    with program(tmp_path / "consumer.log", FAILING, servers.namesrv) as consumer:
        until(lambda: servers.metric("skylark_dead_letters").get(("books",)) == 6, lambda: consumer.text)
    place = ("-n", servers.namesrv)

    export = ("dlq", "export", "books", *place, "--to", f"delta:{tmp_path / 'dead'}")
    assert spark.json(*export)["counts"]["written"] == 6
    assert spark.json(*export)["counts"]["written"] == 0

    assert "--audit" in spark.run("dlq", "resend", "books", *place, code=2)
    resend = ("dlq", "resend", "books", *place, "--audit", tmp_path / "resent")
    some = spark.json(*resend, "--where", "text < 'sale 4'")["counts"]
    assert (some["read"], some["written"], some["filtered"]) == (6, 4, 2)
    rest = spark.json(*resend)
    assert (rest["counts"]["written"], rest["counts"]["duplicates"]) == (2, 4)
    assert Path(rest["state"]).is_relative_to(tmp_path / "resent")
