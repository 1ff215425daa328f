"""Pure. Messages and enumerations of `apache.rocketmq.v2`, built from a table into a private descriptor pool.

The pool is private because the official Python client registers the same names in the global one, and a table
because generated code works with one major version of protobuf only. `v2.SendMessageRequest` is a class.
"""

from __future__ import annotations

import re
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{PACKAGE}.MessagingService"


class TransactionResolution(IntEnum):
    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2


class TransactionSource(IntEnum):
    SOURCE_UNSPECIFIED = 0
    SOURCE_CLIENT = 1
    SOURCE_SERVER_CHECK = 2


class QueuePermission(IntEnum):
    PERMISSION_UNSPECIFIED = 0
    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class FilterType(IntEnum):
    FILTER_TYPE_UNSPECIFIED = 0
    TAG = 1
    SQL = 2


class AddressScheme(IntEnum):
    ADDRESS_SCHEME_UNSPECIFIED = 0
    IPv4 = 1
    IPv6 = 2
    DOMAIN_NAME = 3


class MessageType(IntEnum):
    MESSAGE_TYPE_UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class DigestType(IntEnum):
    DIGEST_TYPE_UNSPECIFIED = 0
    CRC32 = 1
    MD5 = 2
    SHA1 = 3


class ClientType(IntEnum):
    CLIENT_TYPE_UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6


class BodyEncoding(IntEnum):
    ENCODING_UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2


class ClientLanguage(IntEnum):
    LANGUAGE_UNSPECIFIED = 0
    JAVA = 1
    CPP = 2
    DOT_NET = 3
    GOLANG = 4
    RUST = 5
    PYTHON = 6
    PHP = 7
    NODE_JS = 8
    RUBY = 9
    OBJECTIVE_C = 10
    DART = 11
    KOTLIN = 12


class LiteSubscriptionAction(IntEnum):
    PARTIAL_ADD = 0
    PARTIAL_REMOVE = 1
    COMPLETE_ADD = 2
    COMPLETE_REMOVE = 3


class OffsetPolicy(IntEnum):
    LAST = 0
    MIN = 1
    MAX = 2


class Code(IntEnum):
    """Codes of `Status`, by which a reply tells success or failure; the status of gRPC stays OK."""

    CODE_UNSPECIFIED = 0
    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_ACCESS_POINT = 40001
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    ILLEGAL_LITE_TOPIC = 40020
    INVALID_CLIENT_PROPERTIES = 40021
    UNAUTHORIZED = 40100
    PAYMENT_REQUIRED = 40200
    FORBIDDEN = 40300
    NOT_FOUND = 40400
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    REQUEST_TIMEOUT = 40800
    PAYLOAD_TOO_LARGE = 41300
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    PRECONDITION_FAILED = 42800
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
    REQUEST_HEADER_FIELDS_TOO_LARGE = 43100
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_ERROR = 50000
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500
    VERSION_UNSUPPORTED = 50501
    VERIFY_FIFO_MESSAGE_UNSUPPORTED = 50502
    FAILED_TO_CONSUME_MESSAGE = 60000


ENUMERATIONS: dict[str, type[IntEnum]] = {
    "TransactionResolution": TransactionResolution,
    "TransactionSource": TransactionSource,
    "Permission": QueuePermission,
    "FilterType": FilterType,
    "AddressScheme": AddressScheme,
    "MessageType": MessageType,
    "DigestType": DigestType,
    "ClientType": ClientType,
    "Encoding": BodyEncoding,
    "Language": ClientLanguage,
    "LiteSubscriptionAction": LiteSubscriptionAction,
    "OffsetOption.Policy": OffsetPolicy,
    "Code": Code,
}

TABLE = """
Status: 1 code Code, 2 message string
Resource: 1 resource_namespace string, 2 name string
FilterExpression: 1 type FilterType, 2 expression string
SubscriptionEntry: 1 topic Resource, 2 expression FilterExpression
Address: 1 host string, 2 port int32
Endpoints: 1 scheme AddressScheme, 2 addresses Address[]
Broker: 1 name string, 2 id int32, 3 endpoints Endpoints
MessageQueue: 1 topic Resource, 2 id int32, 3 permission Permission, 4 broker Broker,
    5 accept_message_types MessageType[]
Assignment: 1 message_queue MessageQueue
Digest: 1 type DigestType, 2 checksum string
DeadLetterQueue: 1 topic string, 2 message_id string
SystemProperties: 1 tag string?, 2 keys string[], 3 message_id string, 4 body_digest Digest,
    5 body_encoding Encoding, 6 message_type MessageType, 7 born_timestamp Timestamp, 8 born_host string,
    9 store_timestamp Timestamp?, 10 store_host string, 11 delivery_timestamp Timestamp?,
    12 receipt_handle string?, 13 queue_id int32, 14 queue_offset int64?, 15 invisible_duration Duration?,
    16 delivery_attempt int32?, 17 message_group string?, 18 trace_context string?,
    19 orphaned_transaction_recovery_duration Duration?, 20 dead_letter_queue DeadLetterQueue?,
    21 lite_topic string?, 22 priority int32?
Message: 1 topic Resource, 2 user_properties map, 3 system_properties SystemProperties, 4 body bytes

ExponentialBackoff: 1 initial Duration, 2 max Duration, 3 multiplier float
CustomizedBackoff: 1 next Duration[]
RetryPolicy: 1 max_attempts int32, |strategy 2 exponential_backoff ExponentialBackoff,
    |strategy 3 customized_backoff CustomizedBackoff
Publishing: 1 topics Resource[], 2 max_body_size int32, 3 validate_message_type bool
Subscription: 1 group Resource?, 2 subscriptions SubscriptionEntry[], 3 fifo bool?,
    4 receive_batch_size int32?, 5 long_polling_timeout Duration?, 6 lite_subscription_quota int32?,
    7 max_lite_topic_size int32?
Metric: 1 on bool, 2 endpoints Endpoints?
UA: 1 language Language, 2 version string, 3 platform string, 4 hostname string
Settings: 1 client_type ClientType?, 2 access_point Endpoints?, 3 backoff_policy RetryPolicy?,
    4 request_timeout Duration?, |pub_sub 5 publishing Publishing, |pub_sub 6 subscription Subscription,
    7 user_agent UA, 8 metric Metric

QueryRouteRequest: 1 topic Resource, 2 endpoints Endpoints
QueryRouteResponse: 1 status Status, 2 message_queues MessageQueue[]
QueryAssignmentRequest: 1 topic Resource, 2 group Resource, 3 endpoints Endpoints
QueryAssignmentResponse: 1 status Status, 2 assignments Assignment[]
SendMessageRequest: 1 messages Message[]
SendResultEntry: 1 status Status, 2 message_id string, 3 transaction_id string, 4 offset int64,
    5 recall_handle string
SendMessageResponse: 1 status Status, 2 entries SendResultEntry[]
RecallMessageRequest: 1 topic Resource, 2 recall_handle string
RecallMessageResponse: 1 status Status, 2 message_id string
ReceiveMessageRequest: 1 group Resource, 2 message_queue MessageQueue, 3 filter_expression FilterExpression,
    4 batch_size int32, 5 invisible_duration Duration?, 6 auto_renew bool, 7 long_polling_timeout Duration?,
    8 attempt_id string?
ReceiveMessageResponse: |content 1 status Status, |content 2 message Message,
    |content 3 delivery_timestamp Timestamp
AckMessageEntry: 1 message_id string, 2 receipt_handle string, 3 lite_topic string?
AckMessageRequest: 1 group Resource, 2 topic Resource, 3 entries AckMessageEntry[]
AckMessageResultEntry: 1 message_id string, 2 receipt_handle string, 3 status Status
AckMessageResponse: 1 status Status, 2 entries AckMessageResultEntry[]
ForwardMessageToDeadLetterQueueRequest: 1 group Resource, 2 topic Resource, 3 receipt_handle string,
    4 message_id string, 5 delivery_attempt int32, 6 max_delivery_attempts int32, 7 lite_topic string?
ForwardMessageToDeadLetterQueueResponse: 1 status Status
ChangeInvisibleDurationRequest: 1 group Resource, 2 topic Resource, 3 receipt_handle string,
    4 invisible_duration Duration, 5 message_id string, 6 lite_topic string?, 7 suspend bool?
ChangeInvisibleDurationResponse: 1 status Status, 2 receipt_handle string
HeartbeatRequest: 1 group Resource?, 2 client_type ClientType
HeartbeatResponse: 1 status Status
NotifyClientTerminationRequest: 1 group Resource?
NotifyClientTerminationResponse: 1 status Status
EndTransactionRequest: 1 topic Resource, 2 message_id string, 3 transaction_id string,
    4 resolution TransactionResolution, 5 source TransactionSource, 6 trace_context string
EndTransactionResponse: 1 status Status
OffsetOption: |offset_type 1 policy OffsetOption.Policy, |offset_type 2 offset int64,
    |offset_type 3 tail_n int64, |offset_type 4 timestamp int64
SyncLiteSubscriptionRequest: 1 action LiteSubscriptionAction, 2 topic Resource, 3 group Resource,
    4 lite_topic_set string[], 5 version int64?, 6 offset_option OffsetOption?
SyncLiteSubscriptionResponse: 1 status Status

ThreadStackTrace: 1 nonce string, 2 thread_stack_trace string?
VerifyMessageResult: 1 nonce string
RecoverOrphanedTransactionCommand: 1 message Message, 2 transaction_id string
PrintThreadStackTraceCommand: 1 nonce string
VerifyMessageCommand: 1 nonce string, 2 message Message
ReconnectEndpointsCommand: 1 nonce string
NotifyUnsubscribeLiteCommand: 1 lite_topic string
TelemetryCommand: 1 status Status?, |command 2 settings Settings,
    |command 3 thread_stack_trace ThreadStackTrace,
    |command 4 verify_message_result VerifyMessageResult,
    |command 5 recover_orphaned_transaction_command RecoverOrphanedTransactionCommand,
    |command 6 print_thread_stack_trace_command PrintThreadStackTraceCommand,
    |command 7 verify_message_command VerifyMessageCommand,
    |command 8 reconnect_endpoints_command ReconnectEndpointsCommand,
    |command 9 notify_unsubscribe_lite_command NotifyUnsubscribeLiteCommand
"""
"""One message a line, continued by indented lines: `[|oneof] number name type`. `?` marks explicit presence,
`[]` a repeated field, `map` a map of text to text; an enumeration with a dot is inside its message."""

_FIELD = re.compile(
    r"(?:\|(?P<oneof>\w+) )?(?P<number>\d+) (?P<name>\w+) (?P<type>[\w.]+)(?P<label>\?|\[\])?"
)
_SCALARS = {name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}") for name in (
    "string", "bytes", "int32", "int64", "bool", "float",
)}  # fmt: skip
_WELL_KNOWN = {"Timestamp": ".google.protobuf.Timestamp", "Duration": ".google.protobuf.Duration"}
_FieldProto = descriptor_pb2.FieldDescriptorProto


def _set_type(field: Any, name: str) -> None:
    if name in _SCALARS:
        field.type = _SCALARS[name]
    elif name in ENUMERATIONS:
        field.type, field.type_name = _FieldProto.TYPE_ENUM, f".{PACKAGE}.{name}"
    else:
        field.type = _FieldProto.TYPE_MESSAGE
        field.type_name = _WELL_KNOWN.get(name, f".{PACKAGE}.{name}")


def _add_map_entry(message: Any, field: Any) -> None:
    name = "".join(word.capitalize() for word in field.name.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for number, part in enumerate(("key", "value"), 1):
        entry.field.add(
            name=part, number=number, label=_FieldProto.LABEL_OPTIONAL, type=_FieldProto.TYPE_STRING
        )
    field.label, field.type = _FieldProto.LABEL_REPEATED, _FieldProto.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{message.name}.{name}"


def _add_message(file: Any, name: str, members: str) -> None:
    message = file.message_type.add(name=name)
    for full_name, values in ENUMERATIONS.items():
        if full_name.startswith(f"{name}."):
            _add_enumeration(message, full_name.removeprefix(f"{name}."), values)
    oneofs: list[str] = []
    optional = []
    for text in members.split(","):
        found = _FIELD.fullmatch(text.strip())
        assert found is not None, text
        field = message.field.add(
            name=found["name"], number=int(found["number"]), label=_FieldProto.LABEL_OPTIONAL
        )
        if found["type"] == "map":
            _add_map_entry(message, field)
            continue
        _set_type(field, found["type"])
        if found["label"] == "[]":
            field.label = _FieldProto.LABEL_REPEATED
        elif found["label"] == "?":
            field.proto3_optional = True
            optional.append(field)
        elif found["oneof"]:
            if found["oneof"] not in oneofs:
                oneofs.append(found["oneof"])
            field.oneof_index = oneofs.index(found["oneof"])
    for field in optional:  # each has a oneof of its own, after the real ones
        field.oneof_index = len(oneofs)
        oneofs.append(f"_{field.name}")
    for oneof in oneofs:
        message.oneof_decl.add(name=oneof)


def _add_enumeration(parent: Any, name: str, values: type[IntEnum]) -> None:
    enumeration = parent.enum_type.add(name=name)
    for value in values:
        enumeration.value.add(name=value.name, number=value.value)


def _load() -> dict[str, Any]:
    """Return the message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="skylark/rocketmq_v2.proto", package=PACKAGE, syntax="proto3"
    )
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        file.dependency.append(module.DESCRIPTOR.name)
    for name, values in ENUMERATIONS.items():
        if "." not in name:
            _add_enumeration(file, name, values)
    names = []
    for line in TABLE.replace("\n    ", " ").splitlines():
        name, _, members = line.partition(":")
        if name:
            _add_message(file, name, members)
            names.append(name)
    pool.AddSerializedFile(file.SerializeToString())
    found = [pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in names]
    return {each.name: message_factory.GetMessageClass(each) for each in found}


MESSAGES = _load()
v2: Any = SimpleNamespace(**MESSAGES)
