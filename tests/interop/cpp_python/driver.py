"""Drives the stock C++ client, through its Python package, each scenario checking what came of it.

    driver.py NAMESRV NAME [SCENARIO...]     topics "Round-NAME", "Tags-NAME", ... exist already

With ACCESS_KEY and SECRET_KEY in the environment all requests are signed.
A line "RESULT scenario ok" or "RESULT scenario failed: reason" for each; the last line is PASS or FAIL.
Run by the interpreter of a virtual environment that holds that package and nothing of ours.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PushConsumer,
    SendStatus,
)
from rocketmq.exceptions import ProducerException  # type: ignore[import-not-found]
from rocketmq.ffi import MessageModel  # type: ignore[import-not-found]

WAIT_S = 60
LATE_S = 30
COUNT = 20
QUEUES = 4
NAME_SERVER, NAME, *WANTED = sys.argv[1:]
RESULTS: dict[str, str] = {}
CLIENTS: list[Any] = []
"""Kept to the end: a client that is collected is shut down."""


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def equal(actual: object, expected: object, what: str) -> None:
    check(actual == expected, f"{what}: {actual!r} instead of {expected!r}")


def until(what: Callable[[], str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        check(time.monotonic() < deadline, f"waited in vain for {what()}")
        time.sleep(0.02)


def message(topic: str, tag: str, body: str) -> Any:
    made = Message(topic)
    made.set_keys(f"key-{body}")
    made.set_tags(tag)
    made.set_body(body)
    return made


class Received:
    """What a consumer was given; each as a plain value, for the handles die with the callback."""

    def __init__(self, fail: Callable[[dict[str, Any]], bool] = lambda each: False) -> None:
        self.messages: list[dict[str, Any]] = []
        self._fail = fail

    def __call__(self, each: Any) -> None:
        copy = {
            "body": each.body.decode(),
            "topic": each.topic,
            "tags": each.tags.decode(),
            "keys": each.keys.decode(),
            "queue_id": each.queue_id,
            "queue_offset": each.queue_offset,
            "reconsume_times": each.reconsume_times,
            "number": (each.get_property("number") or b"").decode(),
            "arrived": time.time(),
        }
        self.messages.append(copy)
        if self._fail(copy):
            raise RuntimeError("to be delivered again")

    def bodies(self, without: str = "") -> list[str]:
        return [each["body"] for each in self.messages if each["body"] != without]

    def exactly(self, expected: list[str], without: str = "") -> None:
        until(
            lambda: f"{len(expected)} messages, have {len(self.bodies(without))}",
            lambda: len(self.bodies(without)) >= len(expected),
        )
        equal(sorted(self.bodies(without)), sorted(expected), "received")


def sign(client: Any) -> None:
    if "ACCESS_KEY" in os.environ:
        client.set_session_credentials(os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"], "channel")


def producer() -> Any:
    made = Producer(f"PID-{NAME}-{time.monotonic_ns()}", timeout=10000)
    made.set_namesrv_addr(NAME_SERVER)
    sign(made)
    made.start()
    CLIENTS.append(made)
    return made


def when_routed(send: Callable[[], Any]) -> Any:
    """The client waits three seconds for a route: where all start at once on a busy machine, ask again."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            result = send()
        except ProducerException as error:
            if "No route info" not in str(error) or time.monotonic() > deadline:
                raise
        else:
            return result


def send_sync(source: Any, made: Any) -> None:
    equal(when_routed(lambda: source.send_sync(made)).status, SendStatus.OK, "status")


def consumer(what: str, received: Received, expression: str = "*", instance: str = "", **options: Any) -> Any:
    made = PushConsumer(f"GID-{what}-{NAME}", **options)
    made.set_namesrv_addr(NAME_SERVER)
    made.set_instance_name(f"{what}{instance}")
    sign(made)
    made.subscribe(f"{what}-{NAME}", received, expression)
    made.start()
    CLIENTS.append(made)
    return made


def send(source: Any, what: str, prefix: str) -> list[str]:
    bodies = []
    for i in range(COUNT):
        made = message(f"{what}-{NAME}", f"Tag{i % 3}", f"{prefix}{i}")
        made.set_property("number", f"value {i}")
        send_sync(source, made)
        bodies.append(f"{prefix}{i}")
    return bodies


def round_trip() -> None:
    received = Received()
    consumer("Round", received)
    bodies = send(producer(), "Round", "round ü 消息 ")
    received.exactly(bodies)
    queues: dict[int, list[int]] = {}
    for each in received.messages:
        number = int(each["body"].split()[-1])
        equal(each["topic"], f"Round-{NAME}", "topic")
        equal(each["tags"], f"Tag{number % 3}", "tag")
        equal(each["keys"], f"key-{each['body']}", "keys")
        equal(each["number"], f"value {number}", "property")
        equal(each["reconsume_times"], 0, "reconsume times")
        queues.setdefault(each["queue_id"], []).append(each["queue_offset"])
    for queue_id, offsets in queues.items():
        equal(sorted(offsets), list(range(len(offsets))), f"offsets of queue {queue_id}")


def send_async() -> None:
    received = Received()
    consumer("Async", received)
    source = producer()
    outcomes: list[Any] = []
    kept: list[Any] = []  # the client reads the message after the call has returned
    for i in range(COUNT):
        kept.append(message(f"Async-{NAME}", "A", f"async-{i}"))
        source.send_async(kept[-1], lambda result: outcomes.append(result.status), outcomes.append)
    until(lambda: f"answers, have {len(outcomes)}", lambda: len(outcomes) == COUNT)
    equal(set(outcomes), {SendStatus.OK}, "outcomes")
    received.exactly([f"async-{i}" for i in range(COUNT)])


def send_oneway() -> None:
    received = Received()
    consumer("Oneway", received)
    source = producer()
    # A one-way send is tried once: it fails if the connection takes its time, so one comes before that waits.
    send_sync(source, message(f"Oneway-{NAME}", "A", "first"))
    for i in range(COUNT):
        source.send_oneway(message(f"Oneway-{NAME}", "A", f"oneway-{i}"))
    received.exactly(["first", *(f"oneway-{i}" for i in range(COUNT))])


def orderly() -> None:
    received = Received()
    consumer("Orderly", received, orderly=True)
    source = producer()
    bodies = []
    for i in range(COUNT):
        bodies.append(f"{i % 3}/{i}")
        made = message(f"Orderly-{NAME}", "A", bodies[-1])
        when_routed(partial(source.send_orderly, made, i % 3))
    received.exactly(bodies)
    for key in range(3):
        own = [each for each in received.messages if each["body"].startswith(f"{key}/")]
        numbers = [int(each["body"].split("/")[1]) for each in own]
        equal(numbers, sorted(numbers), f"order of key {key}")
        equal(len({each["queue_id"] for each in own}), 1, f"queues of key {key}")


def tag_filter() -> None:
    received = Received()
    consumer("Tags", received, "Tag0 || Tag2")
    bodies = send(producer(), "Tags", "tag-")
    received.exactly([body for body in bodies if int(body[4:]) % 3 != 1])


def retry() -> None:
    received = Received(lambda each: each["body"] == "again" and each["reconsume_times"] < 2)
    consumer("Retry", received)
    source = producer()
    for body in ("again", "once"):
        send_sync(source, message(f"Retry-{NAME}", "A", body))
    until(lambda: f"the second retry, have {received.bodies()}", lambda: len(received.messages) >= 4)
    times = [each["reconsume_times"] for each in received.messages if each["body"] == "again"]
    equal(times, [0, 1, 2], "reconsume times")
    equal(received.bodies().count("once"), 1, "deliveries of the other")


def delay_level() -> None:
    received = Received()
    consumer("Delay", received)
    source = producer()
    due = {}
    for level in (1, 2):
        made = message(f"Delay-{NAME}", "A", f"level {level}")
        made.set_delay_time_level(level)
        due[f"level {level}"] = time.time() + level
        send_sync(source, made)
    received.exactly(list(due))
    for each in received.messages:
        late = each["arrived"] - due[each["body"]]
        check(-0.001 <= late < LATE_S, f"{each['body']} came {late:.3f} s after its time")


def broadcasting() -> None:
    both = [Received(), Received()]
    for number, received in enumerate(both):
        consumer("Broadcast", received, instance=str(number), message_model=MessageModel.BROADCASTING)
    source = producer()

    def all_take_part() -> bool:
        """A member begins behind what was sent before it took a queue: it has taken those it got one of."""
        for _ in range(QUEUES):
            send_sync(source, message(f"Broadcast-{NAME}", "A", "early"))
        return all(len({each["queue_id"] for each in received.messages}) == QUEUES for received in both)

    until(lambda: "both members to take all queues", all_take_part)
    bodies = send(source, "Broadcast", "broadcast-")
    for received in both:
        received.exactly(bodies, without="early")


def resume() -> None:
    source = producer()
    for prefix in ("first-", "second-"):
        bodies = send(source, "Resume", prefix)
        received = Received()
        reader = consumer("Resume", received, instance=prefix)
        received.exactly(bodies)
        reader.shutdown()


def batch() -> None:
    """The field that marks a batch is "1", which a broker of RocketMQ does not take for true: one message."""
    received = Received()
    consumer("Batch", received)
    parts = [message(f"Batch-{NAME}", "A", f"batch-{i}") for i in range(5)]
    source = producer()
    equal(when_routed(lambda: source.send_batch(parts)).status, SendStatus.OK, "status")
    until(lambda: "the batch", lambda: bool(received.messages))


SCENARIOS = (
    round_trip, send_async, send_oneway, orderly, tag_filter, retry, delay_level, broadcasting, resume, batch,
)  # fmt: skip


def run(scenario: Callable[[], None]) -> None:
    try:
        scenario()
        outcome = "ok"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the scenario's result
        traceback.print_exc()
        outcome = f"failed: {error!r}".replace("\n", " ")
    RESULTS[scenario.__name__] = outcome
    say(f"RESULT {scenario.__name__} {outcome}")


wanted = [scenario for scenario in SCENARIOS if not WANTED or scenario.__name__ in WANTED]
threads = [threading.Thread(target=run, args=(scenario,), daemon=True) for scenario in wanted]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(2 * WAIT_S)
passed = list(RESULTS.values()) == ["ok"] * len(wanted)
say("PASS" if passed else "FAIL")
# The client's own threads would keep the process alive.
os._exit(0 if passed else 1)
