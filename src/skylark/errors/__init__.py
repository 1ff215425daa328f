"""The whole error tree. Every error carries its facts as attributes and reads as one sentence.

    RocketMQError                    retriable = False, refresh_route = False
    ├─ SettingsError                 a setting that cannot be used; BadSettingsFile
    ├─ BadJson                       text outside Java's JSON dialect (also a ValueError)
    ├─ BadBody                       a body that cannot be decompressed (also a ValueError)
    ├─ ProtocolError
    │  ├─ LocalProtocolError         our side broke the rules
    │  └─ RemoteProtocolError        the peer broke the rules
    │     ├─ MalformedFrame
    │     └─ FrameTooLarge
    ├─ RemotingError (retriable)     ConnectFailed, ConnectionLost, RequestTimeout
    ├─ BrokerError(code, remark)     `BrokerError.for_code` gives the class of a response code
    ├─ StoreError
    │  ├─ CorruptRecord, OffsetOutOfRange, MissingFile, BadStoreFile
    │  └─ DiskFull, StoreClosed, StoreFailed, StoreLocked
    ├─ ReplicationError              CannotFollow, LogsDiverged, MasterExists
    └─ ClientError
       ├─ NoRoute, BrokerUnknown                  where to send or read is not known
       ├─ BadMessage, MessageTooLarge, BadName    refused before the network
       ├─ ClientClosed, AlreadyStarted, GroupInUse, ForkedClient
       └─ SendFailed, SendUnknown, NoReply, SomeServersFailed

Retry policy is data: `retriable` says that another attempt (on another broker) may succeed,
`refresh_route` that the route known to the client is out of date.
"""

from skylark.errors.broker import (
    BrokerError,
    BrokerSystemError,
    GoAway,
    MessageIllegal,
    NoBuyerId,
    NoPermission,
    NotInCurrentUnit,
    NotLeaderForQueue,
    ServiceNotAvailable,
    SubscriptionGroupNotExist,
    SystemBusy,
    TopicNotExist,
)
from skylark.errors.client import (
    AlreadyStarted,
    BadMessage,
    BadName,
    BrokerUnknown,
    ClientClosed,
    ClientError,
    ForkedClient,
    GroupInUse,
    MessageTooLarge,
    NoReply,
    NoRoute,
    SendFailed,
    SendUnknown,
    SomeServersFailed,
)
from skylark.errors.network import (
    ConnectFailed,
    ConnectionLost,
    FrameTooLarge,
    LocalProtocolError,
    MalformedFrame,
    ProtocolError,
    RemoteProtocolError,
    RemotingError,
    RequestTimeout,
)
from skylark.errors.root import (
    BadBody,
    BadJson,
    BadSettingsFile,
    RocketMQError,
    SettingsError,
)
from skylark.errors.store import (
    BadStoreFile,
    CannotFollow,
    CorruptRecord,
    DiskFull,
    LogsDiverged,
    MasterExists,
    MissingFile,
    OffsetOutOfRange,
    ReplicationError,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreLocked,
)

__all__ = [
    "AlreadyStarted",
    "BadBody",
    "BadJson",
    "BadMessage",
    "BadName",
    "BadSettingsFile",
    "BadStoreFile",
    "BrokerError",
    "BrokerSystemError",
    "BrokerUnknown",
    "CannotFollow",
    "ClientClosed",
    "ClientError",
    "ConnectFailed",
    "ConnectionLost",
    "CorruptRecord",
    "DiskFull",
    "ForkedClient",
    "FrameTooLarge",
    "GoAway",
    "GroupInUse",
    "LocalProtocolError",
    "LogsDiverged",
    "MalformedFrame",
    "MasterExists",
    "MessageIllegal",
    "MessageTooLarge",
    "MissingFile",
    "NoBuyerId",
    "NoPermission",
    "NoReply",
    "NoRoute",
    "NotInCurrentUnit",
    "NotLeaderForQueue",
    "OffsetOutOfRange",
    "ProtocolError",
    "RemoteProtocolError",
    "RemotingError",
    "ReplicationError",
    "RequestTimeout",
    "RocketMQError",
    "SendFailed",
    "SendUnknown",
    "ServiceNotAvailable",
    "SettingsError",
    "SomeServersFailed",
    "StoreClosed",
    "StoreError",
    "StoreFailed",
    "StoreLocked",
    "SubscriptionGroupNotExist",
    "SystemBusy",
    "TopicNotExist",
]
