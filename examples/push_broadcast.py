"""Deliver every message to every member, for example to invalidate a cache in each process.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os
import threading
from collections.abc import Sequence

from skylark import (
    Admin,
    ClientSettings,
    ConsumeFrom,
    Message,
    MessageModel,
    Producer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-broadcast"

with Admin(namesrv=NAMESRV) as admin:
    admin.topics.create(TOPIC, queues=2)

settings = PushConsumerSettings(model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST_OFFSET)
heard: dict[str, list[str]] = {"cache-1": [], "cache-2": []}
finished = threading.Event()


def member(name: str) -> PushConsumer:
    # Progress is stored in a local file named after the instance: give each member its own name.
    client = ClientSettings(instance_name=name)
    consumer = PushConsumer("example-caches", namesrv=NAMESRV, settings=settings, client=client)

    @consumer.subscribe(TOPIC)
    def handle(messages: Sequence[ReceivedMessage]) -> None:
        heard[name] += [message.body.decode() for message in messages]
        if all(len(changes) >= 3 for changes in heard.values()):
            finished.set()

    return consumer


with member("cache-1"), member("cache-2"):
    with Producer("example-producers", namesrv=NAMESRV) as producer:
        for key in ("price", "stock", "name"):
            producer.send(Message(TOPIC, key.encode()))
    finished.wait(60)
for name, changes in heard.items():
    print(name, "heard of", sorted(changes))
