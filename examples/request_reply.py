"""Request and reply: a request waits for the reply of its consumer.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os
from collections.abc import Sequence

from skylark import (
    Admin,
    ConsumeFrom,
    Message,
    NoReply,
    Producer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
    reply,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-prices"
PRICES = {"apple": "1.20", "pear": "1.50"}

with Admin(namesrv=NAMESRV) as admin:
    admin.topics.create(TOPIC, queues=1)

answerer = Producer("example-answers", namesrv=NAMESRV)
settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)  # also requests from before the start
consumer = PushConsumer("example-price-list", namesrv=NAMESRV, settings=settings)


@consumer.subscribe(TOPIC)
def tell(messages: Sequence[ReceivedMessage]) -> None:
    """Send no reply for an unknown price."""
    for message in messages:
        price = PRICES.get(message.body.decode())
        if price is not None and message.wants_reply:
            answerer.send(reply(message, price.encode()))


with answerer, Producer("example-questions", namesrv=NAMESRV) as producer:
    with consumer:
        for fruit in PRICES:
            answer = producer.request(Message(TOPIC, fruit.encode()), timeout_ms=30_000)
            print(fruit, "costs", answer.body.decode())
        try:
            producer.request(Message(TOPIC, b"durian"), timeout_ms=500)
        except NoReply as error:
            print("durian:", error)
