"""Fetch messages at your own pace: poll, commit, seek to the beginning.

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

# Offsets are committed only by commit(); a group without an offset starts with the first message.
settings = PullConsumerSettings(auto_commit=False, consume_from=ConsumeFrom.FIRST_OFFSET)
with PullConsumer("example-pullers", namesrv=NAMESRV, settings=settings) as consumer:
    consumer.subscribe(TOPIC, "created || paid")

    done = 0
    while done < COUNT:
        messages = consumer.poll(timeout_ms=5000)  # of one queue; empty after the timeout
        for message in messages:
            print(message.queue_id, message.queue_offset, message.body.decode())
        done += len(messages)
        consumer.commit()  # everything returned so far; a restart resumes after it

    print("lag by queue:", list(consumer.lag().values()))

    # Read again from the beginning of one queue, message by message.
    queue = consumer.assignment()[0]
    consumer.seek_to_begin(queue)
    for message in consumer:
        print("again:", message.body.decode())
        break
