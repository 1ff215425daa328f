"""Send many small messages quickly, in batches made by hand or automatically.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os

from skylark import Message, Producer, ProducerSettings, split_into_batches

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-batch"

messages = [Message(TOPIC, b"reading %d" % number, keys=[str(number)]) for number in range(1000)]

with Producer("example-producers", namesrv=NAMESRV) as producer:
    # One request per batch; all its messages are stored in one queue, or none.
    for batch in split_into_batches(messages):
        receipts = producer.send_batch(batch)
        print(len(receipts), "messages from offset", receipts[0].queue_offset, "of", receipts[0].queue)

# Collected for up to 10 ms or 32 KiB; each message keeps its own receipt.
settings = ProducerSettings(batching=True)
with Producer("example-producers", namesrv=NAMESRV, settings=settings) as producer:
    futures = [producer.submit(message) for message in messages]
    print(len({future.result().message_id for future in futures}), "receipts")
