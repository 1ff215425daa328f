"""Consume in order: one queue per order, one message at a time.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os
import threading
from collections.abc import Sequence

from skylark import Admin, ConsumeFrom, Message, Producer, PushConsumer, PushConsumerSettings, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-orderly"
STEPS = ("created", "paid", "packed", "sent")
ORDERS = [f"order-{number}" for number in range(5)]

with Admin(namesrv=NAMESRV) as admin:
    admin.topics.create(TOPIC, queues=4)

# Messages with the same sharding key go to the same queue.
with Producer("example-producers", namesrv=NAMESRV) as producer:
    for step in STEPS:
        for order in ORDERS:
            producer.send(Message(TOPIC, step.encode(), keys=[order], sharding_key=order))

settings = PushConsumerSettings(orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET)
consumer = PushConsumer("example-orderly", namesrv=NAMESRV, settings=settings)
finished = threading.Event()
seen: dict[str, list[str]] = {order: [] for order in ORDERS}


@consumer.subscribe(TOPIC)
def handle(messages: Sequence[ReceivedMessage]) -> None:
    """A failure pauses the queue for a second, then the same message is retried: none overtakes it."""
    for message in messages:
        seen[message.keys[0]].append(message.body.decode())
    if all(len(steps) == len(STEPS) for steps in seen.values()):
        finished.set()


with consumer:
    finished.wait(60)
for order, steps in seen.items():
    print(order, "->".join(steps))
    assert steps == list(STEPS)
