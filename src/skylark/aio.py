"""The asyncio clients: the same names as in `skylark`, with `await`.

>>> async with aio.Producer("orders", namesrv="127.0.0.1:9876") as producer:
...     await producer.send(Message("orders", b"hello"))
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skylark.admin.admin import AsyncAdmin as Admin
    from skylark.client.consumer.pull_consumer import AsyncPullConsumer as PullConsumer
    from skylark.client.consumer.push_consumer import AsyncPushConsumer as PushConsumer
    from skylark.client.consumer.simple_consumer import AsyncSimpleConsumer as SimpleConsumer
    from skylark.client.producer.producer import AsyncProducer as Producer
    from skylark.client.producer.request_reply import reply
    from skylark.client.producer.transaction_producer import AsyncTransactionProducer as TransactionProducer

_PUBLIC = {
    "Admin": ("admin.admin", "AsyncAdmin"),
    "Producer": ("client.producer.producer", "AsyncProducer"),
    "PullConsumer": ("client.consumer.pull_consumer", "AsyncPullConsumer"),
    "PushConsumer": ("client.consumer.push_consumer", "AsyncPushConsumer"),
    "SimpleConsumer": ("client.consumer.simple_consumer", "AsyncSimpleConsumer"),
    "TransactionProducer": ("client.producer.transaction_producer", "AsyncTransactionProducer"),
    "reply": ("client.producer.request_reply", "reply"),
}

__all__ = [
    "Admin",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
    "reply",
]


if not TYPE_CHECKING:  # a type checker must see no `__getattr__`: it would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module 'skylark.aio' has no attribute {name!r}")
        module, its_name = _PUBLIC[name]
        value = getattr(importlib.import_module(f"skylark.{module}"), its_name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
