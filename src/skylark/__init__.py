"""Skylark: a RocketMQ-compatible message queue in Python. Blocking clients are here, asyncio ones in `aio`.

>>> with skylark.Producer("orders", namesrv="127.0.0.1:9876") as producer:
...     producer.send(skylark.Message("orders", b"hello"))

Names are imported when they are first used, so that `import skylark` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from skylark._version import __version__

if TYPE_CHECKING:
    from skylark.admin.sync import Admin
    from skylark.client.batching import split_into_batches
    from skylark.client.hooks import SendContext, SendHook
    from skylark.client.listeners import (
        ConsumeConcurrentlyStatus,
        ConsumeContext,
        ConsumeOrderlyStatus,
        ConsumeResult,
        MessageListenerConcurrently,
        MessageListenerOrderly,
    )
    from skylark.client.pulling import PullStatus
    from skylark.client.receipt import SendReceipt, SendStatus
    from skylark.client.received import ReceivedMessage
    from skylark.client.replying import Reply, reply
    from skylark.client.selectors import by_hash, by_random
    from skylark.client.sync_producer import Producer
    from skylark.client.sync_pull import PullConsumer
    from skylark.client.sync_push import PushConsumer
    from skylark.client.sync_transaction import TransactionProducer
    from skylark.client.telemetry import TelemetryHook, telemetry_middleware
    from skylark.client.transaction_producer import TransactionReceipt, TransactionState
    from skylark.model.message import Message
    from skylark.protocol.bodies import MessageQueue
    from skylark.settings.client import ClientSettings, Compression, ProducerSettings
    from skylark.settings.consumer import ConsumeFrom, MessageModel, PushConsumerSettings
    from skylark.settings.pull_consumer import PullConsumerSettings

_MODULES = {
    "admin.sync": "Admin",
    "client.batching": "split_into_batches",
    "client.hooks": "SendContext SendHook",
    "client.listeners": """
        ConsumeConcurrentlyStatus ConsumeContext ConsumeOrderlyStatus ConsumeResult
        MessageListenerConcurrently MessageListenerOrderly""",
    "client.pulling": "PullStatus",
    "client.receipt": "SendReceipt SendStatus",
    "client.received": "ReceivedMessage",
    "client.replying": "Reply reply",
    "client.selectors": "by_hash by_random",
    "client.sync_producer": "Producer",
    "client.sync_pull": "PullConsumer",
    "client.sync_push": "PushConsumer",
    "client.sync_transaction": "TransactionProducer",
    "client.telemetry": "TelemetryHook telemetry_middleware",
    "client.transaction_producer": "TransactionReceipt TransactionState",
    "model.message": "Message",
    "protocol.bodies": "MessageQueue",
    "settings.client": "ClientSettings Compression ProducerSettings",
    "settings.consumer": "ConsumeFrom MessageModel PushConsumerSettings",
    "settings.pull_consumer": "PullConsumerSettings",
}
_PACKAGES = ("aio", "errors", "testing")
"""There with `import skylark` alone: `skylark.errors.SendFailed`, `skylark.testing.broker()`."""
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Admin",
    "ClientSettings",
    "Compression",
    "ConsumeConcurrentlyStatus",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeOrderlyStatus",
    "ConsumeResult",
    "Message",
    "MessageListenerConcurrently",
    "MessageListenerOrderly",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullConsumerSettings",
    "PullStatus",
    "PushConsumer",
    "PushConsumerSettings",
    "ReceivedMessage",
    "Reply",
    "SendContext",
    "SendHook",
    "SendReceipt",
    "SendStatus",
    "TelemetryHook",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "__version__",
    "by_hash",
    "by_random",
    "reply",
    "split_into_batches",
    "telemetry_middleware",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"skylark.{name}")
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'skylark' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"skylark.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_PACKAGES})
