"""OpenTelemetry's part that needs no servers: names, missing packages, and what hooks may add to a send."""

from __future__ import annotations

import contextvars
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import messaging_attributes

from skylark.client import telemetry
from skylark.client.producer.message_encoder import MessageEncoder
from skylark.client.producer.send_hooks import SendContext, SendHook
from skylark.client.producer.send_policy import PendingSend, SendPolicy
from skylark.model.message import PROPERTIES_BYTES_MAX, Message, decode_properties
from skylark.model.record import split_batch
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ProducerSettings
from tests.unit.client.keys import GivenKeys

SETTINGS = ProducerSettings()
QUEUE = MessageQueue("orders", "broker-a", 0)
number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)


def test_attributes_are_known_to_the_conventions() -> None:
    ours = {
        value
        for name, value in vars(telemetry).items()
        if name.isupper() and isinstance(value, str) and value.startswith("messaging.")
    }
    known = {value for value in vars(messaging_attributes).values() if isinstance(value, str)}
    assert len(ours) > 10
    assert ours <= known


def test_without_opentelemetry_the_error_says_what_to_install() -> None:
    code = textwrap.dedent(
        """
        import sys
        sys.modules["opentelemetry"] = None
        import skylark
        for use in (skylark.TelemetryHook, skylark.telemetry_middleware):
            try:
                use()
            except skylark.errors.SettingsError as error:
                print(error)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.count("pip install 'skylarkmq[otel]'") == 2


class Adds(SendHook):
    """Adds what it is told, and notes in whose context it was called."""

    def __init__(self, *values: str) -> None:
        self.values = list(values)
        self.seen: list[int] = []

    def before(self, context: SendContext) -> None:
        self.seen.append(number.get())
        context.add_property("colour", self.values.pop(0))


def attempts(hook: SendHook, *messages: Message, times: int = 1, is_batch: bool = False) -> PendingSend:
    """Begin a send as often as told, each attempt in another context than that of who sends."""
    policy = SendPolicy("PG", "client", "", SETTINGS)
    policy.hooks.add(hook)
    encoder = MessageEncoder(SETTINGS, "", "PG", GivenKeys(["0A"] * len(messages) + ["0B"], 2))
    encoded = encoder.encode_batch(messages) if is_batch else encoder.encode(messages[0])
    send = PendingSend(encoded, SETTINGS, 0.0)
    token = number.set(7)
    send.caller = contextvars.copy_context()
    number.reset(token)
    for _ in range(times):
        policy.begin(send, QUEUE, "127.0.0.1:10911", 0.0)
        assert send.context is not None
        send.context = None
    return send


def test_hooks_add_properties_and_see_the_context_of_who_sends() -> None:
    hook = Adds("red", "blue")
    message = Message("orders", b"hello", properties={"colour": "grey", "size": "1"})
    send = attempts(hook, message, times=2)
    found = decode_properties(send.properties.encode())
    assert (found["colour"], found["size"], found["UNIQ_KEY"]) == ("blue", "1", "0A")
    assert "red" not in send.properties
    assert hook.seen == [7, 7]


def test_hooks_add_properties_to_all_of_a_batch() -> None:
    send = attempts(
        Adds("red", "green"), Message("orders", b"1"), Message("orders", b"2"), times=2, is_batch=True
    )
    elements = split_batch(memoryview(send.body))
    assert [bytes(element.body) for element in elements] == [b"1", b"2"]
    assert [decode_properties(element.properties)["colour"] for element in elements] == ["green", "green"]
    assert decode_properties(send.properties.encode())["UNIQ_KEY"] == "0B"


@pytest.mark.parametrize("value", ["", "a\x01b", "x" * PROPERTIES_BYTES_MAX])
def test_what_cannot_be_added_does_not_hinder_the_send(value: str, caplog: pytest.LogCaptureFixture) -> None:
    send = attempts(Adds(value), Message("orders", b"hello"))
    assert send.properties == send.encoded.properties
    assert caplog.records


def test_names_of_the_system_are_refused() -> None:
    context = SendContext("PG", "client", [], [], QUEUE, "127.0.0.1:10911", 1)
    with pytest.raises(ValueError, match="reserved by the system"):
        context.add_property("UNIQ_KEY", "mine")


def test_a_refused_send_has_no_end() -> None:
    class Refuses(Adds):
        def check(self, context: SendContext) -> None:
            raise PermissionError

        def after(self, context: SendContext) -> Any:
            raise AssertionError("it did not begin")

    policy = SendPolicy("PG", "client", "", SETTINGS)
    policy.hooks.add(Refuses())
    encoded = MessageEncoder(SETTINGS, "", "PG", GivenKeys(["0A"], 2)).encode(Message("orders", b"x"))
    send = PendingSend(encoded, SETTINGS, 0.0)
    with pytest.raises(PermissionError):
        policy.begin(send, QUEUE, "127.0.0.1:10911", 0.0)
    assert send.context is None
