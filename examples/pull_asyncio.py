"""Pull with asyncio: `async for` over the messages of explicitly assigned queues.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import asyncio
import os

from skylark import Message, aio

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-pull-asyncio"
COUNT = 10


async def main() -> None:
    async with aio.Admin(namesrv=NAMESRV) as admin:
        await admin.topics.create(TOPIC, queues=1)

    async with aio.Producer("example-producers", namesrv=NAMESRV) as producer:
        await asyncio.gather(
            *(producer.send(Message(TOPIC, f"{number}".encode())) for number in range(COUNT))
        )

    async with aio.PullConsumer("example-assigned", namesrv=NAMESRV) as consumer:
        queues = await consumer.queues(TOPIC)
        consumer.assign(queues)  # not shared with the group: other readers do not matter
        await consumer.seek_to_begin(queues[0])
        seen = 0
        async for message in consumer:
            print(message.queue_offset, message.body.decode())
            seen += 1
            if seen == COUNT:
                break
        await consumer.commit()


asyncio.run(main())
