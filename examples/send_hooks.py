"""Observe every send attempt, for metrics or tracing, and reject forbidden messages.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os

from skylark import Message, Producer, SendContext, SendHook

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-hooks"


class Metrics(SendHook):
    """Counts attempts and their durations."""

    def __init__(self) -> None:
        self.attempts = 0
        self.failures = 0
        self.slowest_ms = 0.0

    def after(self, context: SendContext) -> None:
        self.attempts += 1
        self.failures += context.error is not None
        self.slowest_ms = max(self.slowest_ms, context.elapsed_ms)


class NoSecrets(SendHook):
    """Rejects messages that are marked as secret."""

    def check(self, context: SendContext) -> None:
        if any(message.properties.get("secret") == "yes" for message in context.messages):
            raise PermissionError("secrets stay here")


metrics = Metrics()
with Producer("example-producers", namesrv=NAMESRV) as producer:
    producer.add_hook(NoSecrets())
    producer.add_hook(metrics)
    for number in range(10):
        producer.send(Message(TOPIC, b"order %d" % number))
    try:
        producer.send(Message(TOPIC, b"1234", properties={"secret": "yes"}))
    except PermissionError as error:
        print("stopped:", error)

print(metrics.attempts, "attempts,", metrics.failures, "failed, slowest", round(metrics.slowest_ms), "ms")
