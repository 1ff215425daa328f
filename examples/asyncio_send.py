"""Send with asyncio: `await` one message, or keep hundreds in flight.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import asyncio
import os

from skylark import Message
from skylark.aio import Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-asyncio"


async def main() -> None:
    async with Producer("example-producers", namesrv=NAMESRV) as producer:
        receipt = await producer.send(Message(TOPIC, b"hello"))
        print(receipt.message_id)

        # Tasks, each waiting for its own receipt.
        receipts = await asyncio.gather(*(producer.send(Message(TOPIC, b"%d" % n)) for n in range(100)))
        print(len(receipts), "receipts")

        # The fastest way: no task per message. `submit` waits only while too much is in flight.
        futures = [await producer.submit(Message(TOPIC, b"%d" % n)) for n in range(1000)]
        print(sum(each.is_ok for each in await asyncio.gather(*futures)), "stored")


asyncio.run(main())
