"""Skylark: a RocketMQ-compatible message queue in Python. Blocking clients; see `skylark.aio` for asyncio.

>>> with skylark.Producer("orders", namesrv="127.0.0.1:9876") as producer:
...     producer.send(skylark.Message("orders", b"hello"))

Names are imported on first use, so that `import skylark` is cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

from skylark._version import __version__

if TYPE_CHECKING:
    from skylark import aio, errors, testing
    from skylark.admin.admin import Admin
    from skylark.client.consumer.listeners import (
        ConsumeConcurrentlyStatus,
        ConsumeContext,
        ConsumeOrderlyStatus,
        ConsumeResult,
        MessageListenerConcurrently,
        MessageListenerOrderly,
    )
    from skylark.client.consumer.pull_consumer import PullConsumer
    from skylark.client.consumer.pull_policy import PullStatus
    from skylark.client.consumer.push_consumer import PushConsumer
    from skylark.client.consumer.simple_consumer import SimpleConsumer
    from skylark.client.producer.batches import split_into_batches
    from skylark.client.producer.producer import Producer
    from skylark.client.producer.queue_selectors import by_hash, by_random
    from skylark.client.producer.request_reply import Reply, reply
    from skylark.client.producer.send_hooks import SendContext, SendHook
    from skylark.client.producer.send_receipt import SendReceipt, SendStatus
    from skylark.client.producer.sent_rows import SentRange, SentRows
    from skylark.client.producer.transaction_producer import (
        TransactionProducer,
        TransactionReceipt,
        TransactionState,
    )
    from skylark.client.received_message import ReceivedMessage
    from skylark.client.telemetry import TelemetryHook, telemetry_middleware
    from skylark.errors import (
        AlreadyStarted,
        BadBody,
        BadMessage,
        BadName,
        BrokerError,
        BrokerUnknown,
        ClientClosed,
        ClientError,
        ConnectFailed,
        ConnectionLost,
        CorruptRecord,
        ForkedClient,
        GroupInUse,
        MessageTooLarge,
        NoPermission,
        NoReply,
        NoRoute,
        NotANameServer,
        NotWritable,
        RemotingError,
        RequestTimeout,
        RocketMQError,
        RowsFailed,
        SendFailed,
        SendUnknown,
        ServiceNotAvailable,
        SettingsError,
        SomeServersFailed,
        SystemBusy,
        TopicNotExist,
    )
    from skylark.model.message import Message
    from skylark.protocol.bodies import MessageQueue
    from skylark.settings.client import (
        ClientSettings,
        Compression,
        ConsumeFrom,
        MessageModel,
        ProducerSettings,
        PullConsumerSettings,
        PushConsumerSettings,
        SimpleConsumerSettings,
    )

_MODULES = {
    "admin.admin": "Admin",
    "client.consumer.listeners": """
        ConsumeConcurrentlyStatus ConsumeContext ConsumeOrderlyStatus ConsumeResult
        MessageListenerConcurrently MessageListenerOrderly""",
    "client.consumer.pull_consumer": "PullConsumer",
    "client.consumer.pull_policy": "PullStatus",
    "client.consumer.push_consumer": "PushConsumer",
    "client.consumer.simple_consumer": "SimpleConsumer",
    "client.producer.batches": "split_into_batches",
    "client.producer.producer": "Producer",
    "client.producer.queue_selectors": "by_hash by_random",
    "client.producer.request_reply": "Reply reply",
    "client.producer.send_hooks": "SendContext SendHook",
    "client.producer.send_receipt": "SendReceipt SendStatus",
    "client.producer.sent_rows": "SentRange SentRows",
    "client.producer.transaction_producer": "TransactionProducer TransactionReceipt TransactionState",
    "client.received_message": "ReceivedMessage",
    "client.telemetry": "TelemetryHook telemetry_middleware",
    "errors": """
        AlreadyStarted BadBody BadMessage BadName BrokerError BrokerUnknown ClientClosed ClientError
        ConnectFailed ConnectionLost CorruptRecord ForkedClient GroupInUse MessageTooLarge
        NoPermission NoReply NoRoute NotANameServer NotWritable RemotingError RequestTimeout
        RocketMQError RowsFailed SendFailed SendUnknown ServiceNotAvailable SettingsError
        SomeServersFailed SystemBusy TopicNotExist""",
    "model.message": "Message",
    "protocol.bodies": "MessageQueue",
    "settings.client": """
        ClientSettings Compression ConsumeFrom MessageModel ProducerSettings PullConsumerSettings
        PushConsumerSettings SimpleConsumerSettings""",
}
_PACKAGES = ("aio", "errors", "testing")
"""Available after `import skylark`: `skylark.errors.SendFailed`, `skylark.testing.broker()`."""
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Admin",
    "AlreadyStarted",
    "BadBody",
    "BadMessage",
    "BadName",
    "BrokerError",
    "BrokerUnknown",
    "ClientClosed",
    "ClientError",
    "ClientSettings",
    "Compression",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumeConcurrentlyStatus",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeOrderlyStatus",
    "ConsumeResult",
    "CorruptRecord",
    "ForkedClient",
    "GroupInUse",
    "Message",
    "MessageListenerConcurrently",
    "MessageListenerOrderly",
    "MessageModel",
    "MessageQueue",
    "MessageTooLarge",
    "NoPermission",
    "NoReply",
    "NoRoute",
    "NotANameServer",
    "NotWritable",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullConsumerSettings",
    "PullStatus",
    "PushConsumer",
    "PushConsumerSettings",
    "ReceivedMessage",
    "RemotingError",
    "Reply",
    "RequestTimeout",
    "RocketMQError",
    "RowsFailed",
    "SendContext",
    "SendFailed",
    "SendHook",
    "SendReceipt",
    "SendStatus",
    "SendUnknown",
    "SentRange",
    "SentRows",
    "ServiceNotAvailable",
    "SettingsError",
    "SimpleConsumer",
    "SimpleConsumerSettings",
    "SomeServersFailed",
    "SystemBusy",
    "TelemetryHook",
    "TopicNotExist",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "__version__",
    "aio",
    "by_hash",
    "by_random",
    "errors",
    "reply",
    "split_into_batches",
    "telemetry_middleware",
    "testing",
]


if not TYPE_CHECKING:  # a type checker must see no `__getattr__`: it would accept every name

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
