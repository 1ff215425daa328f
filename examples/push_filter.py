"""Receive only messages with certain tags.

Needs servers: `skylark serve`, or set NAMESRV_ADDR. By properties: see docs/howto/filter-with-sql92.md.
"""

import os
import threading
from collections.abc import Sequence

from skylark import Admin, ConsumeFrom, Message, Producer, PushConsumer, PushConsumerSettings, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-filter"

with Admin(namesrv=NAMESRV) as admin:
    admin.topics.create(TOPIC, queues=2)

with Producer("example-producers", namesrv=NAMESRV) as producer:
    for number, tags in enumerate(("created", "paid", "cancelled", "created", "returned")):
        producer.send(Message(TOPIC, f"order {number} {tags}".encode(), tags=tags))

settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
consumer = PushConsumer("example-filter", namesrv=NAMESRV, settings=settings)
finished = threading.Event()
got: list[str] = []


# All members of a group must subscribe to the same: otherwise the last subscription would win.
@consumer.subscribe(TOPIC, "cancelled || returned")
def handle(messages: Sequence[ReceivedMessage]) -> None:
    got.extend(message.body.decode() for message in messages)
    if len(got) == 2:
        finished.set()


with consumer:
    finished.wait(60)
print(sorted(got))
assert sorted(got) == ["order 2 cancelled", "order 4 returned"]
