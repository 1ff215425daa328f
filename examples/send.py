"""Send messages and look at their receipts.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os

from skylark import BadMessage, Message, Producer, SendFailed

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-send"

with Producer("example-producers", namesrv=NAMESRV) as producer:
    receipt = producer.send(Message(TOPIC, b"hello", tags="created", keys=["42"]))
    print(receipt.message_id, receipt.queue, receipt.queue_offset)

    # Any JSON value; a consumer reads it with message.json().
    producer.send(Message.json(TOPIC, {"order": 42, "total": 9.5}, tags="paid"))

    # Many in flight at once: futures. `submit` waits only while too much is in flight.
    futures = [producer.submit(Message(TOPIC, b"order %d" % number)) for number in range(100)]
    print(sum(future.result().is_ok for future in futures), "stored")

    # For messages that may be lost: no reply, no error.
    producer.send_oneway(Message(TOPIC, b"a line of a log"))

    try:
        producer.send(Message(TOPIC, b""))
    except BadMessage as error:
        print("refused before it was sent:", error)
    except SendFailed as error:
        print("failed at", error.brokers, "perhaps stored:", error.maybe_stored)
