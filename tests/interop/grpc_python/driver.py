"""Scenarios of the official RocketMQ 5 client for Python, in an environment of its own.

Usage: driver.py ENDPOINTS SCENARIO TOPIC GROUP [plain|tls] [ACCESS_KEY SECRET]. The last line is PASS, or
FAIL with the reason; the exit code is 0 or 1.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

WAIT_S = 60


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Resolving(TransactionChecker):  # type: ignore[misc]
    def __init__(self) -> None:
        self.checked: list[bytes] = []

    def check(self, message: Any) -> Any:
        self.checked.append(message.body)
        is_rolled_back = message.body == b"rolled back"
        return TransactionResolution.ROLLBACK if is_rolled_back else TransactionResolution.COMMIT


class Collecting(MessageListener):  # type: ignore[misc]
    def __init__(self, fails_first: bytes = b"") -> None:
        self.seen: list[bytes] = []
        self._fails_first = fails_first
        self._failed = threading.Event()

    def consume(self, message: Any) -> Any:
        if message.body == self._fails_first and not self._failed.is_set():
            self._failed.set()
            return ConsumeResult.FAILURE
        self.seen.append(message.body)
        return ConsumeResult.SUCCESS


class Driver:
    def __init__(self, words: list[str]) -> None:
        endpoints, _, self.topic, self.group = words[:4]
        credentials = Credentials(*words[5:7]) if len(words) > 6 else Credentials()
        self.configuration = ClientConfiguration(endpoints, credentials, request_timeout=10)
        self.tls = {"tls_enable": len(words) > 4 and words[4] == "tls"}

    def producer(self, checker: Any = None) -> Any:
        producer = Producer(self.configuration, (self.topic,), checker=checker, **self.tls)
        producer.startup()
        return producer

    def message(self, body: bytes, **more: Any) -> Any:
        message = Message()
        message.topic, message.body = self.topic, body
        for name, value in more.items():
            setattr(message, name, value)
        return message

    def consumer(self, expression: Any = None) -> Any:
        consumer = SimpleConsumer(
            self.configuration, self.group, {self.topic: expression or FilterExpression()}, **self.tls
        )
        consumer.startup()
        return consumer

    def take(self, consumer: Any, count: int) -> list[Any]:
        found: list[Any] = []
        end = time.monotonic() + WAIT_S
        while len(found) < count:
            assert time.monotonic() < end, f"only {len(found)} of {count} messages"
            for message in consumer.receive(16, 30) or []:
                found.append(message)
                consumer.ack(message)
        return found

    # --- Scenarios ---

    def normal(self) -> None:
        producer, consumer = self.producer(), self.consumer()
        sent = set()
        for number in range(10):
            message = self.message(b"body-%d" % number, tag="created", keys=f"k{number}")
            message.add_property("colour", "red")
            sent.add(producer.send(message).message_id)
        found = self.take(consumer, 10)
        assert {message.message_id for message in found} == sent
        assert {message.tag for message in found} == {"created"}
        assert all(message.properties["colour"] == "red" for message in found)
        assert {message.body for message in found} == {b"body-%d" % number for number in range(10)}
        producer.shutdown()
        consumer.shutdown()

    def fifo(self) -> None:
        producer, consumer = self.producer(), self.consumer()
        for number in range(8):
            producer.send(self.message(b"%d" % number, message_group="one"))
        assert [message.body for message in self.take(consumer, 8)] == [b"%d" % number for number in range(8)]

    def delay(self) -> None:
        producer, consumer = self.producer(), self.consumer()
        due = int(time.time()) + 3
        producer.send(self.message(b"later", delivery_timestamp=due))
        self.take(consumer, 1)
        assert time.time() >= due - 1, f"came {due - time.time()} s early"

    def transaction(self) -> None:
        checker = Resolving()
        producer, consumer = self.producer(checker), self.consumer()
        committed, rolled_back = producer.begin_transaction(), None
        producer.send(self.message(b"committed"), committed)
        committed.commit()
        rolled_back = producer.begin_transaction()
        producer.send(self.message(b"rolled back"), rolled_back)
        rolled_back.rollback()
        producer.send(self.message(b"checked"), producer.begin_transaction())
        found: set[bytes] = set()  # a broker may ask for what was just committed, too: it comes twice
        while len(found) < 2:
            found |= {message.body for message in self.take(consumer, 1)}
        assert found == {b"committed", b"checked"}, found
        assert b"checked" in checker.checked, checker.checked

    def push(self) -> None:
        listener = Collecting(fails_first=b"body-3")
        topics = {self.topic: FilterExpression()}
        consumer = PushConsumer(self.configuration, self.group, listener, topics, **self.tls)
        consumer.startup()
        producer = self.producer()
        for number in range(10):
            producer.send(self.message(b"body-%d" % number))
        until(lambda: len(listener.seen) >= 10, f"saw {listener.seen}")
        assert sorted(listener.seen) == [b"body-%d" % number for number in range(10)], listener.seen

    def filter(self) -> None:
        producer, consumer = self.producer(), self.consumer(FilterExpression("b || c"))
        for tag in "abcd":
            producer.send(self.message(tag.encode(), tag=tag))
        assert {message.body for message in self.take(consumer, 2)} == {b"b", b"c"}

    def invisible(self) -> None:
        producer, consumer = self.producer(), self.consumer()
        producer.send(self.message(b"again"))
        found: list[Any] = []
        end = time.monotonic() + WAIT_S
        while not found:
            assert time.monotonic() < end, "no message"
            found += consumer.receive(1, 60) or []
        consumer.change_invisible_duration(found[0], 1)
        (again,) = self.take(consumer, 1)
        assert again.message_id == found[0].message_id
        assert again.delivery_attempt == 2, again.delivery_attempt

    def refused(self) -> None:
        try:
            self.producer().send(self.message(b"never"))
        except Exception as error:  # noqa: BLE001 (the class depends on where it is refused)
            # Of the reason why it has no route, the client says nothing.
            assert any(word in str(error).lower() for word in ("40100", "signature", "auth", "route")), error
            return
        raise AssertionError("was let in")


def main(words: list[str]) -> int:
    try:
        getattr(Driver(words), words[1].replace("-", "_"))()
    except BaseException as error:  # noqa: BLE001 (reported)
        traceback.print_exc()
        print(f"FAIL {type(error).__name__}: {error}", flush=True)  # noqa: T201
        return 1
    print("PASS", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
