"""What a program prints when it ends with an error of a client: a few lines, the last of which is advice."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable

import pytest

from skylark import Admin, ConnectFailed, Message, Producer, PullConsumer, PushConsumer, aio
from skylark.cli.errors import hint

NOBODY = "127.0.0.1:1"
FRAMES_MAX = 4


def send() -> None:
    with Producer("shop", namesrv=NOBODY) as producer:
        producer.send(Message("orders", b"x"))


def submit() -> None:
    with Producer("shop", namesrv=NOBODY) as producer:
        producer.submit(Message("orders", b"x")).result()


def consume() -> None:
    consumer = PushConsumer("billing", namesrv=NOBODY)
    consumer.subscribe("orders", listener=print)
    consumer.run()


def pull() -> None:
    with PullConsumer("billing", namesrv=NOBODY) as consumer:
        consumer.queues("orders")


def administer() -> None:
    with Admin(namesrv=NOBODY) as admin:
        admin.topics.names()


async def send_async() -> None:
    async with aio.Producer("shop", namesrv=NOBODY) as producer:
        await producer.send(Message("orders", b"x"))


async def consume_async() -> None:
    consumer = aio.PushConsumer("billing", namesrv=NOBODY)
    consumer.subscribe("orders", listener=print)
    await consumer.run()


@pytest.mark.parametrize(
    "program",
    [
        *(send, submit, consume, pull, administer),
        pytest.param(lambda: asyncio.run(send_async()), id="send_async"),
        pytest.param(lambda: asyncio.run(consume_async()), id="consume_async"),
    ],
)
def test_a_server_that_is_not_there_takes_few_lines_to_say(
    program: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConnectFailed) as raised:
        program()
    error = raised.value
    lines = "".join(traceback.format_exception(error)).splitlines()
    assert lines[-2].endswith(f"cannot connect to name server {NOBODY}: Connection refused")
    assert lines[-1] == f"hint: {hint(error)}", "the same as on the command line"
    assert "`skylark serve`" in lines[-1]
    assert "NAMESRV_ADDR" in lines[-1]
    assert not any("direct cause" in line or "During handling" in line for line in lines)
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/skylark/" in frame.filename]
    assert len(ours) <= FRAMES_MAX, "\n".join(lines)
    assert caplog.text == "", "said once, by the error"
