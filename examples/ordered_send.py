"""Keep related messages in order: messages with one sharding key go to one queue.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os

from skylark import Message, Producer, by_hash

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-ordered"

with Producer("example-producers", namesrv=NAMESRV) as producer:
    for step in ("created", "paid", "shipped"):
        for order in ("order-1001", "order-1002", "order-1003"):
            # Wait for each receipt before the next message of the same key is sent.
            receipt = producer.send(Message(TOPIC, f"{order} {step}".encode(), tags=step, sharding_key=order))
            print(order, step, "queue", receipt.queue.queue_id, "offset", receipt.queue_offset)

    # Select the queue yourself: any function of (queues, message, argument), or a queue.
    producer.send(Message(TOPIC, b"by hash"), selector=by_hash, argument="order-1001")
    producer.send(Message(TOPIC, b"the last one"), selector=lambda queues, message, argument: queues[-1])
    producer.send(Message(TOPIC, b"this one"), queue=producer.queues(TOPIC)[0])
