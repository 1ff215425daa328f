"""Send now, deliver later: by delay level (1 is a second, … 18 two hours), or at a time.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os
import time
from datetime import timedelta

from skylark import ConsumeFrom, Message, Producer, PullConsumer
from skylark.settings.client import PullConsumerSettings

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-delay"

with Producer("example-producers", namesrv=NAMESRV) as producer:
    producer.send(Message(TOPIC, b"now"))
    producer.send(Message(TOPIC, b"a second later", delay_level=1))
    sent = time.monotonic()
    # Any time, to the second; it can be cancelled.
    receipt = producer.send(Message(TOPIC, b"in an hour", deliver_after=timedelta(hours=1)))
    assert receipt.recall_handle is not None
    producer.recall(TOPIC, receipt.recall_handle)

settings = PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
with PullConsumer("example-delayed", namesrv=NAMESRV, settings=settings) as consumer:
    consumer.subscribe(TOPIC)
    seen: set[bytes] = set()
    while b"a second later" not in seen:
        for message in consumer.poll(timeout_ms=1000):
            seen.add(bytes(message.body))
            print(f"{time.monotonic() - sent:.1f} s after sending:", message.body.decode())
