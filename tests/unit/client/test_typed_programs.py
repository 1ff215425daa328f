"""What a type checker says of programs that use Skylark: nothing of right ones, each mistake of wrong ones.

mypy runs once, for all programs, as a user runs it: strict, without the project's settings. A line of a wrong
program ends with the kind of error that it must have.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

RIGHT = {
    "sending": """
        import concurrent.futures
        from datetime import timedelta
        from typing import assert_type

        import skylark
        from skylark import Message, MessageQueue, Producer, ProducerSettings
        from skylark import SendFailed, SendReceipt, by_hash

        with Producer("shop", namesrv="h:1", settings=ProducerSettings(retries=3)) as producer:
            message = Message("orders", b"x", tags="created", keys=["42"], deliver_after=timedelta(minutes=1))
            assert_type(producer.send(message), SendReceipt)
            assert_type(producer.submit(message), concurrent.futures.Future[SendReceipt])
            assert_type(producer.send_batch([message]), list[SendReceipt])
            assert_type(producer.queues("orders"), list[MessageQueue])
            assert_type(producer.request(message, timeout_ms=5), skylark.ReceivedMessage)
            assert_type(Message.json("orders", {"id": 42}, tags="created", delay_level=3), Message)
            producer.send(message, selector=by_hash, argument="42")
            try:
                producer.send(message)
            except SendFailed as error:
                assert_type(error.brokers, tuple[str, ...])
                assert_type(error.maybe_stored, bool)
            except skylark.errors.RocketMQError as error:
                assert_type(error.hint, str)
        """,
    "sending_async": """
        import asyncio
        from typing import assert_type

        from skylark import Message, MessageQueue, SendReceipt, aio

        async def main() -> None:
            async with aio.Producer("shop", namesrv="h:1") as producer:
                assert_type(await producer.send(Message("orders", b"x")), SendReceipt)
                assert_type(await producer.submit(Message("orders", b"x")), asyncio.Future[SendReceipt])
                assert_type(await producer.queues("orders"), list[MessageQueue])
            async for message in aio.PullConsumer("billing", namesrv="h:1"):
                assert_type(message.body, bytes)
        """,
    "listeners": """
        from collections.abc import Sequence
        from dataclasses import dataclass
        from typing import Any, assert_type

        from skylark import (
            ConsumeConcurrentlyStatus, ConsumeContext, ConsumeResult, MessageListenerConcurrently,
            MessageQueue, PushConsumer, ReceivedMessage,
        )

        consumer = PushConsumer("billing", namesrv="h:1")

        @dataclass
        class Order:
            id: int

        @consumer.subscribe("orders", "created || paid")
        def handle(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                assert_type(message.json(Order), Order)
                assert_type(message.json(list[int]), list[int])
                assert_type(message.keys, list[str])
                value = message.json()
                print(value["anything"])

        @consumer.subscribe("carts")
        async def with_context(messages: Sequence[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
            context.delay_level = 3
            return ConsumeResult.LATER

        @consumer.listen
        def optional(messages: Sequence[ReceivedMessage], more: dict[str, int] = {}) -> ConsumeResult | None:
            return None

        class AsInJava(MessageListenerConcurrently):
            def consume_message(
                self, messages: Sequence[ReceivedMessage], context: ConsumeContext
            ) -> ConsumeConcurrentlyStatus:
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer.subscribe("prices", listener=AsInJava())
        consumer.subscribe("stocks", listener=lambda messages: print(messages[0].body))

        @consumer.on_queues_changed
        def moved(topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]) -> None: ...

        # A decorated function stays what it is.
        assert_type(handle([]), None)
        assert_type(optional([], {"a": 1}), ConsumeResult | None)
        moved("orders", [], [])
        assert_type(consumer.queues(), list[MessageQueue])
        """,
    "transactions": """
        from skylark import Message, ReceivedMessage, TransactionProducer, TransactionState

        def execute(message: Message, order: dict[str, int]) -> TransactionState:
            return TransactionState.COMMIT

        async def check(message: ReceivedMessage) -> TransactionState:
            return TransactionState.UNKNOWN

        with TransactionProducer("shop", execute=execute, check=check) as producer:
            receipt = producer.send_in_transaction(Message("orders", b"x"), {"id": 42})
            print(receipt.state is TransactionState.COMMIT, receipt.receipt.message_id)
        """,
    "tests_of_users": """
        from typing import assert_type

        import skylark
        from skylark import Admin, Message, Producer
        from skylark.testing import EmbeddedServers, ManualClock

        def test_orders(skylark_servers: EmbeddedServers, skylark_topic: str) -> None:
            with skylark.testing.broker() as namesrv, Producer("shop", namesrv=namesrv) as producer:
                producer.send(Message(skylark_topic, b"x"))
            with Admin(namesrv=skylark_servers.namesrv) as admin:
                assert_type(admin.topics.names(), list[str])
                admin.topics.create("orders", queues=4)
            ManualClock().advance(1000)
        """,
}
WRONG = {
    "names": """
        import skylark
        from skylark import Nonsense  # E: attr-defined
        from skylark.aio import Message as M  # E: attr-defined
        from skylark.testing import Server  # E: attr-defined

        skylark.Produzer  # E: attr-defined
        skylark.aio.Produzer  # E: attr-defined
        skylark.testing.brocker()  # E: attr-defined
        """,
    "messages": """
        from skylark import Message, Producer

        Message("orders", "text")  # E: arg-type
        Message("orders", b"x", tag="created")  # E: call-arg
        Message("orders", b"x", keys=42)  # E: arg-type
        Message.json("orders", {}, tag="created")  # E: call-arg
        Message.json("orders", {}, delay_level="3")  # E: arg-type
        Message("orders", b"x").topic = "carts"  # E: misc
        with Producer("shop", namesrv="h:1") as producer:
            producer.send({"id": 42})  # E: arg-type
            producer.send(Message("orders", b"x"), timeout_ms="3 s")  # E: arg-type
            producer.send(Message("orders", b"x")).messageId  # E: attr-defined
            producer.queues(42)  # E: arg-type
            producer.request(Message("orders", b"x"), timeout=3)  # E: call-arg
        """,
    "consumers": """
        from collections.abc import Sequence

        from skylark import ConsumeContext, PushConsumer, PushConsumerSettings, ReceivedMessage

        settings = PushConsumerSettings(batch_size=3)  # E: call-arg
        consumer = PushConsumer("billing", namesrv="h:1", settings=settings)

        @consumer.subscribe("orders")  # E: type-var
        def none() -> None: ...

        @consumer.subscribe("orders")  # E: type-var
        def one(message: ReceivedMessage) -> None: ...

        @consumer.subscribe("orders")  # E: type-var
        def three(messages: Sequence[ReceivedMessage], context: ConsumeContext, more: int) -> None: ...

        @consumer.subscribe("orders")  # E: type-var
        def ignored(messages: Sequence[ReceivedMessage]) -> bool:
            return True

        @consumer.listen  # E: type-var
        def text(messages: str) -> None: ...

        @consumer.on_queues_changed  # E: type-var
        def moved(topic: str) -> None: ...

        @consumer.use  # E: type-var
        def middleware(messages: int) -> None: ...

        @consumer.subscribe("orders")
        def handle(messages: Sequence[ReceivedMessage]) -> None:
            number: int = messages[0].json(str)  # E: assignment
            messages[0].boddy  # E: attr-defined
            context: ConsumeContext = ConsumeContext(messages[0].queue, "billing")
            context.delay = 3  # E: attr-defined
        """,
}
MARK = re.compile(r"  # E: ([\w-]+)$")
ERROR = re.compile(r"^(?P<path>[^:]+):(?P<line>\d+):(?:\d+:)? error: (?P<text>.*?)  \[(?P<code>[\w-]+)\]$")

Errors = dict[str, dict[int, tuple[str, str]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Errors:
    """The errors of each program by line: kind and text."""
    folder = tmp_path_factory.mktemp("programs")
    for name, program in {**RIGHT, **WRONG}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", "--no-pretty", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    errors: Errors = {name: {} for name in {**RIGHT, **WRONG}}
    for line in done.stdout.splitlines():
        if match := ERROR.match(line):
            errors[Path(match["path"]).stem][int(match["line"])] = (match["code"], match["text"])
    return errors


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_right(name: str, found: Errors) -> None:
    assert found[name] == {}


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_of_a_wrong_program_is_found_and_nothing_else(name: str, found: Errors) -> None:
    lines = textwrap.dedent(WRONG[name]).splitlines()
    marked = {number: mark[1] for number, line in enumerate(lines, 1) if (mark := MARK.search(line))}
    assert len(marked) > 5
    assert {number: code for number, (code, _) in found[name].items()} == marked, found[name]
