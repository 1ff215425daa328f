"""A consumer in its own process: SIGTERM ends it after the message at hand, and the next one continues."""

from pathlib import Path

from tests.support.first_day import program, serving

CONSUMER = """
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from skylark import ConsumeFrom, PushConsumer, PushConsumerSettings, ReceivedMessage

@dataclass
class Order:
    id: int
    amount: float

settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
consumer = PushConsumer("billing", namesrv=sys.argv[1], settings=settings)

@consumer.subscribe("orders", "created || paid")
def bill(messages: Sequence[ReceivedMessage]) -> None:
    for message in messages:
        order = message.json(Order)
        print(f"order {order.id}: {order.amount + 1}", flush=True)

consumer.run()
print("ended", flush=True)
"""
PRODUCER = """
import sys
from skylark import Message, Producer

first, end = map(int, sys.argv[2:])
with Producer("shop", namesrv=sys.argv[1]) as producer:
    for number in range(first, end):
        producer.send(Message.json("orders", {"id": number, "amount": 9.5}, tags="created"))
    producer.send(Message.json("orders", {"id": -1, "amount": 0}, tags="cancelled"))
"""


def send(log: Path, namesrv: str, first: int, end: int) -> None:
    with program(log, PRODUCER, namesrv, first, end) as sender:
        assert sender.process.wait(30) == 0, sender.text


def test_a_consumer_that_is_restarted_goes_on_where_it_was(tmp_path: Path) -> None:
    with serving(tmp_path) as servers:
        send(tmp_path / "send-1.log", servers.namesrv, 1, 4)
        with program(tmp_path / "first.log", CONSUMER, servers.namesrv) as consumer:
            for number in (1, 2, 3):
                consumer.until(rf"order {number}: 10.5\n")
            assert consumer.stop() == 0, consumer.text
            assert consumer.text.endswith("ended\n"), "no traceback, and what follows run() is run"
        send(tmp_path / "send-2.log", servers.namesrv, 4, 6)
        with program(tmp_path / "second.log", CONSUMER, servers.namesrv) as consumer:
            for number in (4, 5):
                consumer.until(rf"order {number}: 10.5\n")
            assert consumer.stop() == 0, consumer.text
            assert "order 3" not in consumer.text, "consumed before, and committed at the end"
            assert "order -1" not in consumer.text, "filtered by its tag"
