"""The asyncio clients: the same names as in `skylark`, with `await`.

>>> async with aio.Producer("orders", namesrv="127.0.0.1:9876") as producer:
...     await producer.send(Message("orders", b"hello"))
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skylark.admin.admin import Admin
    from skylark.client.producer import Producer
    from skylark.client.pull_consumer import PullConsumer
    from skylark.client.push_consumer import PushConsumer
    from skylark.client.replying import reply
    from skylark.client.transaction_producer import TransactionProducer

_PUBLIC = {
    "Admin": "admin.admin",
    "Producer": "client.producer",
    "PullConsumer": "client.pull_consumer",
    "PushConsumer": "client.push_consumer",
    "TransactionProducer": "client.transaction_producer",
    "reply": "client.replying",
}

__all__ = ["Admin", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer", "reply"]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'skylark.aio' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"skylark.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
