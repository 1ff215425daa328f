"""What a producer refuses at the call, before it asks any server."""

from collections.abc import Callable
from typing import Any

import pytest

from skylark import Message, Producer, ProducerSettings, TransactionProducer, TransactionState, aio
from skylark.errors import BadMessage

NOBODY = "127.0.0.1:1"
NO_MESSAGE: Any = {"topic": "orders", "id": 42}
REASON = r"^expected a skylark.Message, not dict .*; Message\(topic, body\) .* Message.json\(topic, value\)"
CALLS: dict[str, Callable[[Any], Any]] = {
    "send": lambda producer: producer.send(NO_MESSAGE),
    "submit": lambda producer: producer.submit(NO_MESSAGE),
    "send_oneway": lambda producer: producer.send_oneway(NO_MESSAGE),
    "send_batch": lambda producer: producer.send_batch([Message("orders", b"x"), NO_MESSAGE]),
    "request": lambda producer: producer.request(NO_MESSAGE),
    "send_in_transaction": lambda producer: producer.send_in_transaction(NO_MESSAGE),
}


def commit(*_: object) -> TransactionState:
    return TransactionState.COMMIT


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_message_is_refused(call: str, batching: bool) -> None:
    settings = ProducerSettings(batching=batching)
    with (
        TransactionProducer(
            "PG", namesrv=NOBODY, settings=settings, execute=commit, check=commit
        ) as producer,
        pytest.raises(BadMessage, match=REASON),
    ):
        CALLS[call](producer)


@pytest.mark.parametrize("call", CALLS)
async def test_what_is_no_message_is_refused_with_await(call: str) -> None:
    async with aio.TransactionProducer("PG", namesrv=NOBODY, execute=commit, check=commit) as producer:
        with pytest.raises(BadMessage, match=REASON):
            await CALLS[call](producer)


def test_a_subclass_of_message_is_a_message() -> None:
    class Order(Message, frozen=True):
        pass

    with Producer("PG", namesrv=NOBODY) as producer, pytest.raises(BadMessage, match="length is zero"):
        producer.send(Order("orders", b""))
