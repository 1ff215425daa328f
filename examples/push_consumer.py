"""Call a function for every message. Your own program would end with `consumer.run()`.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os
import threading
from collections.abc import Sequence

from skylark import (
    Admin,
    ConsumeFrom,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-push"
COUNT = 10

with Admin(namesrv=NAMESRV) as admin:
    admin.topics.create(TOPIC, queues=4)

with Producer("example-producers", namesrv=NAMESRV) as producer:
    for number in range(COUNT):
        producer.send(Message(TOPIC, f"order {number}".encode(), tags="created", keys=[str(number)]))

settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
consumer = PushConsumer("example-billing", namesrv=NAMESRV, settings=settings)
finished = threading.Event()
done: set[str] = set()


@consumer.subscribe(TOPIC, "created || paid")
def handle(messages: Sequence[ReceivedMessage]) -> ConsumeResult:
    """Returning means success. Raise, or return ConsumeResult.LATER, to retry the messages."""
    for message in messages:
        if message.keys == ["7"] and message.reconsume_times == 0:
            print("not now:", message.body.decode())
            return ConsumeResult.LATER
        print(f"queue {message.queue_id}, attempt {message.reconsume_times + 1}: {message.body.decode()}")
        done.add(message.message_id)
    if len(done) == COUNT:
        finished.set()
    return ConsumeResult.SUCCESS


with consumer:  # `consumer.run()` would run until Ctrl-C or SIGTERM
    finished.wait(60)
print(len(done), "orders billed")
