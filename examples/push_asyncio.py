"""Consume with asyncio: listeners are coroutine functions, and a middleware times every call.

Needs servers: `skylark serve`, or set NAMESRV_ADDR. A program of yours ends with `await consumer.run()`.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from skylark import ConsumeContext, ConsumeFrom, Message, PushConsumerSettings, ReceivedMessage, aio

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-push-asyncio"
COUNT = 40

Messages = Sequence[ReceivedMessage]
Handle = Callable[[Messages, ConsumeContext], Awaitable[object]]


async def main() -> None:
    async with aio.Admin(namesrv=NAMESRV) as admin:
        await admin.topics.create(TOPIC, queues=4)
    async with aio.Producer("example-producers", namesrv=NAMESRV) as producer:
        await asyncio.gather(*(producer.send(Message(TOPIC, b"%d" % n)) for n in range(COUNT)))

    settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, batch_max=8)
    consumer = aio.PushConsumer("example-asyncio", namesrv=NAMESRV, settings=settings)
    finished = asyncio.Event()
    done: set[bytes] = set()
    spent_ms = 0.0

    @consumer.use
    def timed(handle: Handle) -> Handle:
        async def around(messages: Messages, context: ConsumeContext) -> object:
            nonlocal spent_ms
            started = time.perf_counter()
            try:
                return await handle(messages, context)
            finally:
                spent_ms += (time.perf_counter() - started) * 1000

        return around

    @consumer.subscribe(TOPIC)
    async def handle(messages: Messages, context: ConsumeContext) -> None:
        for number, message in enumerate(messages):
            await asyncio.sleep(0.001)  # a database, a web service
            done.add(message.body)
            context.done = number + 1  # if the next one fails, those before it are not retried
        if len(done) == COUNT:
            finished.set()

    async with consumer, asyncio.timeout(60):
        await finished.wait()
    print(f"{len(done)} messages, {spent_ms:.0f} ms in listeners")


asyncio.run(main())
