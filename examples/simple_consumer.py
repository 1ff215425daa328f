"""Receive messages, acknowledge each, and give a slow one more time. No queue belongs to a consumer.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os

from skylark import Admin, ConsumeFrom, Message, Producer, SimpleConsumer, SimpleConsumerSettings

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-simple"
COUNT = 20

with Admin(namesrv=NAMESRV) as admin:
    admin.topics.create(TOPIC, queues=2)

with Producer("example-producers", namesrv=NAMESRV) as producer:
    for number in range(COUNT):
        producer.send(Message(TOPIC, f"order {number}".encode(), tags="created"))

# A group that is new to a topic starts with the first message.
settings = SimpleConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
with SimpleConsumer("example-workers", namesrv=NAMESRV, settings=settings) as consumer:
    consumer.subscribe(TOPIC, "created || paid")

    done = 0
    while done < COUNT:
        # Hidden from other members of the group for 30 seconds; waits up to 5 seconds for the first message.
        for message in consumer.receive(8, invisible_ms=30_000, wait_ms=5000):
            if done == 0:
                consumer.change_invisible_duration(message, 60_000)  # this one takes longer
            print(message.queue_id, message.queue_offset, message.body.decode())
            consumer.ack(message)  # otherwise it is delivered again
            done += 1
