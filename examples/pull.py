"""Fetch messages when you want them: poll, commit, look again from the beginning.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os

from skylark import Admin, ConsumeFrom, Message, Producer, PullConsumer, PullConsumerSettings

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-pull"
COUNT = 20

with Admin(namesrv=NAMESRV) as admin:
    admin.topics.create(TOPIC, queues=2)

with Producer("example-producers", namesrv=NAMESRV) as producer:
    for number in range(COUNT):
        producer.send(Message(TOPIC, f"order {number}".encode(), tags="created"))

# Nothing is committed unless we say so; a group without a position begins with the first message.
settings = PullConsumerSettings(auto_commit=False, consume_from=ConsumeFrom.FIRST_OFFSET)
with PullConsumer("example-pullers", namesrv=NAMESRV, settings=settings) as consumer:
    consumer.subscribe(TOPIC, "created || paid")

    done = 0
    while done < COUNT:
        messages = consumer.poll(timeout_ms=5000)  # of one queue; empty when nothing came in time
        for message in messages:
            print(message.queue_id, message.queue_offset, message.body.decode())
        done += len(messages)
        consumer.commit()  # all that was handed out; a restart goes on behind it

    print("lag by queue:", list(consumer.lag().values()))

    # Once more, from the beginning of one queue, message by message.
    queue = consumer.assignment()[0]
    consumer.seek_to_begin(queue)
    for message in consumer:
        print("again:", message.body.decode())
        break
