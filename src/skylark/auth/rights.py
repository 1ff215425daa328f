"""Pure. The rights that each request code needs: a table, and the accesses of a request by it.

Where RocketMQ 5.3.3 lets every authenticated user through, the rights here are stricter. A code without a row
is refused to all but super users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from skylark.auth import model
from skylark.auth.model import Action, NeededAccess, ResourceKind
from skylark.errors import RemoteProtocolError
from skylark.model.names import AUTO_CREATE_TOPIC, normal_topic
from skylark.protocol.bodies import (
    AssignmentRequest,
    ClientConfig,
    LockRequest,
    RequestMode,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigList,
    decode_body,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import Buffer, RemotingCommand
from skylark.protocol.requests.client import Heartbeat
from skylark.protocol.requests.lite import LiteSubscriptionChanges
from skylark.protocol.requests.pop import BatchAckBody

PUB, SUB, CREATE, UPDATE = Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE
DELETE, GET = Action.DELETE, Action.GET

BodyAccesses = Callable[[Buffer], Iterable[NeededAccess]]


@dataclass(frozen=True)
class Right:
    """Actions on the resources that an ext field names; an absent field names none.

    A cluster without a field is that of the server. `separator` splits a field with several names.
    """

    kind: ResourceKind
    field: str
    actions: frozenset[Action]
    separator: str = ""


Row = tuple[Right | BodyAccesses, ...]


def _topic(field: str, *actions: Action, separator: str = "") -> Right:
    return Right(ResourceKind.TOPIC, field, frozenset(actions), separator)


def _group(field: str, *actions: Action, separator: str = "") -> Right:
    return Right(ResourceKind.GROUP, field, frozenset(actions), separator)


def _cluster(action: Action, field: str = "") -> Right:
    return Right(ResourceKind.CLUSTER, field, frozenset({action}))


# --- Resources in bodies ---


def _of(
    names: Iterable[str | None], make: Callable[[str], model.Resource], *actions: Action
) -> list[NeededAccess]:
    return [NeededAccess(make(name), frozenset(actions)) for name in names if name]


def _created_topics(body: Buffer) -> list[NeededAccess]:
    configs = decode_body(body, TopicConfigList).topic_config_list
    return _of((config.topic_name for config in configs), model.topic, CREATE)


def _changed_group(body: Buffer) -> list[NeededAccess]:
    return _of([decode_body(body, SubscriptionGroupConfig).group_name], model.group, CREATE, UPDATE)


def _changed_groups(body: Buffer) -> list[NeededAccess]:
    configs = decode_body(body, SubscriptionGroupList).group_config_list
    return _of((config.group_name for config in configs), model.group, CREATE, UPDATE)


def _heartbeat(body: Buffer) -> Iterator[NeededAccess]:
    command = RemotingCommand(code=RequestCode.HEART_BEAT, body=body)
    for consumer in Heartbeat.from_command(command).body.consumer_data_set:  # as the handler reads it
        yield from _of([consumer.group_name], model.group, SUB)
        yield from _of((each.topic for each in consumer.subscription_data_set), model.topic, SUB)


def _locked_queues(body: Buffer) -> Iterator[NeededAccess]:
    request = decode_body(body, LockRequest)
    yield from _of([request.consumer_group], model.group, SUB)
    yield from _of((queue.topic for queue in request.mq_set), model.topic, SUB)


def _client_config(body: Buffer) -> Iterator[NeededAccess]:
    config = decode_body(body, ClientConfig)
    yield from _of([config.group], model.group, SUB)
    if config.subscription_data is not None:
        yield from _of([config.subscription_data.topic], model.topic, SUB)


def _assignment(body: Buffer) -> Iterator[NeededAccess]:
    request = decode_body(body, AssignmentRequest)
    yield from _of([request.topic], model.topic, SUB)
    yield from _of([request.consumer_group], model.group, SUB)


def _request_mode(body: Buffer) -> list[NeededAccess]:
    return _of([decode_body(body, RequestMode).consumer_group], model.group, UPDATE)


def _acknowledged(body: Buffer) -> Iterator[NeededAccess]:
    for ack in BatchAckBody.decode(body).acks:
        yield from _of([ack.topic], model.topic, SUB)
        yield from _of([ack.group], model.group, SUB)


def _lite_subscriptions(body: Buffer) -> Iterator[NeededAccess]:
    for change in decode_body(body, LiteSubscriptionChanges).subscription_set if body else ():
        yield from _of([change.topic], model.topic, SUB)
        yield from _of([change.group], model.group, SUB)


# --- The table ---

_SEND_V2: Row = (_topic("b", PUB),)
_PULL: Row = (_topic("topic", SUB), _group("consumerGroup", SUB))
_POP: Row = (_group("consumerGroup", SUB), _topic("topic", SUB))
_WHERE: Row = (_topic("topic", SUB, GET),)
_CLUSTER_GET: Row = (_cluster(GET),)
_CLUSTER_UPDATE: Row = (_cluster(UPDATE),)
AUTHENTICATION: Row = ()
"""Every user may."""

_CODE = RequestCode
RIGHTS: Mapping[int, Row] = {
    # Messages. Retry topics stand for their groups, everywhere.
    _CODE.SEND_MESSAGE: (_topic("topic", PUB),),
    _CODE.SEND_MESSAGE_V2: _SEND_V2,
    _CODE.SEND_BATCH_MESSAGE: _SEND_V2,
    _CODE.SEND_REPLY_MESSAGE: AUTHENTICATION,
    _CODE.SEND_REPLY_MESSAGE_V2: AUTHENTICATION,
    _CODE.PULL_MESSAGE: _PULL,
    _CODE.LITE_PULL_MESSAGE: _PULL,
    _CODE.QUERY_MESSAGE: _WHERE,
    _CODE.VIEW_MESSAGE_BY_ID: AUTHENTICATION,  # and RECORD_RIGHTS
    _CODE.CONSUMER_SEND_MSG_BACK: (_group("group", SUB),),  # and RECORD_RIGHTS
    _CODE.END_TRANSACTION: (_topic("topic", PUB),),  # and RECORD_RIGHTS
    _CODE.RECALL_MESSAGE: (_topic("topic", PUB),),
    _CODE.RESUME_CHECK_HALF_MESSAGE: (_topic("topic", UPDATE),),
    _CODE.QUERY_CONSUME_QUEUE: (_topic("topic", GET), _group("consumerGroup", GET)),
    # Pop consumption.
    _CODE.POP_MESSAGE: _POP,
    _CODE.ACK_MESSAGE: _POP,
    _CODE.BATCH_ACK_MESSAGE: (_acknowledged,),
    _CODE.PEEK_MESSAGE: _POP,
    _CODE.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    _CODE.NOTIFICATION: _POP,
    _CODE.POP_LITE_MESSAGE: _POP,
    _CODE.LITE_SUBSCRIPTION_CTL: (_lite_subscriptions,),
    _CODE.GET_BROKER_LITE_INFO: _CLUSTER_GET,
    _CODE.GET_PARENT_TOPIC_INFO: (_topic("topic", GET),),
    _CODE.GET_LITE_TOPIC_INFO: (_topic("parentTopic", GET),),
    _CODE.GET_LITE_CLIENT_INFO: (_topic("parentTopic", GET), _group("group", GET)),
    _CODE.GET_LITE_GROUP_INFO: (_group("group", GET),),
    _CODE.TRIGGER_LITE_DISPATCH: (_group("group", UPDATE),),
    _CODE.POP_ROLLBACK: _CLUSTER_UPDATE,
    _CODE.POLLING_INFO: (_group("consumerGroup", GET), _topic("topic", GET)),
    # Offsets. Who may read may ask where.
    _CODE.QUERY_CONSUMER_OFFSET: (_topic("topic", SUB, GET), _group("consumerGroup", SUB, GET)),
    _CODE.UPDATE_CONSUMER_OFFSET: (_topic("topic", SUB, UPDATE), _group("consumerGroup", SUB, UPDATE)),
    _CODE.SEARCH_OFFSET_BY_TIMESTAMP: _WHERE,
    _CODE.GET_MAX_OFFSET: _WHERE,
    _CODE.GET_MIN_OFFSET: _WHERE,
    _CODE.GET_EARLIEST_MSG_STORETIME: _WHERE,
    _CODE.GET_ALL_CONSUMER_OFFSET: _CLUSTER_GET,
    _CODE.GET_ALL_DELAY_OFFSET: _CLUSTER_GET,
    _CODE.INVOKE_BROKER_TO_RESET_OFFSET: (_group("group", UPDATE), _topic("topic", UPDATE)),
    _CODE.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (_topic("topic", GET), _group("group", GET)),
    _CODE.QUERY_CONSUME_TIME_SPAN: (_topic("topic", GET), _group("group", GET)),
    _CODE.QUERY_CORRECTION_OFFSET: (
        _group("filterGroups", GET, separator=","),
        _group("compareGroup", GET),
        _topic("topic", GET),
    ),
    _CODE.CLONE_GROUP_OFFSET: (_group("srcGroup", GET), _group("destGroup", UPDATE), _topic("topic", UPDATE)),
    # Clients.
    _CODE.HEART_BEAT: (_heartbeat,),
    _CODE.UNREGISTER_CLIENT: (_group("consumerGroup", SUB),),
    _CODE.GET_CONSUMER_LIST_BY_GROUP: (_group("consumerGroup", SUB, GET),),
    _CODE.LOCK_BATCH_MQ: (_locked_queues,),
    _CODE.UNLOCK_BATCH_MQ: (_locked_queues,),
    _CODE.CHECK_CLIENT_CONFIG: (_client_config,),
    _CODE.QUERY_ASSIGNMENT: (_assignment,),
    _CODE.SET_MESSAGE_REQUEST_MODE: (_request_mode,),
    _CODE.GET_ALL_MESSAGE_REQUEST_MODE: _CLUSTER_GET,
    _CODE.GET_CONSUMER_CONNECTION_LIST: (_group("consumerGroup", GET),),
    _CODE.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    _CODE.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    _CODE.GET_CONSUMER_RUNNING_INFO: (_group("consumerGroup", GET),),
    _CODE.CONSUME_MESSAGE_DIRECTLY: (_group("consumerGroup", SUB), _topic("topic", SUB)),
    # Topics.
    _CODE.UPDATE_AND_CREATE_TOPIC: (_topic("topic", CREATE),),
    _CODE.UPDATE_AND_CREATE_TOPIC_LIST: (_created_topics,),
    _CODE.UPDATE_AND_CREATE_STATIC_TOPIC: (_topic("topic", CREATE),),
    _CODE.DELETE_TOPIC_IN_BROKER: (_topic("topic", DELETE),),
    _CODE.GET_ALL_TOPIC_CONFIG: _CLUSTER_GET,
    _CODE.GET_TOPIC_CONFIG_LIST: _CLUSTER_GET,
    _CODE.GET_TOPIC_NAME_LIST: _CLUSTER_GET,
    _CODE.GET_TOPIC_CONFIG: (_topic("topic", GET),),
    _CODE.GET_TOPIC_STATS_INFO: (_topic("topic", GET),),
    _CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: AUTHENTICATION,
    _CODE.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    # Groups.
    _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (_changed_group,),
    _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (_changed_groups,),
    _CODE.DELETE_SUBSCRIPTIONGROUP: (_group("groupName", DELETE),),
    _CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _CLUSTER_GET,
    _CODE.GET_SUBSCRIPTIONGROUP_CONFIG: (_group("group", GET),),
    _CODE.UPDATE_AND_GET_GROUP_FORBIDDEN: (_group("group", UPDATE), _topic("topic", UPDATE)),
    _CODE.GET_CONSUME_STATS: (
        _group("consumerGroup", GET),
        _topic("topic", GET),
        _topic("topicList", GET, separator=";"),
    ),
    _CODE.QUERY_TOPIC_CONSUME_BY_WHO: (_topic("topic", GET),),
    _CODE.QUERY_TOPICS_BY_CONSUMER: (_group("group", GET),),
    _CODE.QUERY_SUBSCRIPTION_BY_CONSUMER: (_group("group", GET), _topic("topic", GET)),
    # The broker.
    _CODE.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    _CODE.GET_BROKER_CONFIG: _CLUSTER_GET,
    _CODE.TRIGGER_DELETE_FILES: _CLUSTER_UPDATE,
    _CODE.GET_BROKER_RUNTIME_INFO: _CLUSTER_GET,
    _CODE.GET_TIMER_CHECK_POINT: _CLUSTER_GET,
    _CODE.GET_TIMER_METRICS: _CLUSTER_GET,
    _CODE.SWITCH_TIMER_ENGINE: _CLUSTER_UPDATE,
    _CODE.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    _CODE.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
    _CODE.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    _CODE.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    _CODE.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: (_topic("topic", GET),),
    _CODE.EXPORT_ROCKSDB_CONFIG_TO_JSON: _CLUSTER_GET,
    _CODE.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CLUSTER_UPDATE,
    _CODE.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CLUSTER_UPDATE,
    _CODE.GET_COLD_DATA_FLOW_CTR_INFO: _CLUSTER_GET,
    _CODE.SET_COMMITLOG_READ_MODE: _CLUSTER_UPDATE,
    # Name servers. The route of the template topic holds no names of others.
    _CODE.PUT_KV_CONFIG: _CLUSTER_UPDATE,
    _CODE.GET_KV_CONFIG: _CLUSTER_GET,
    _CODE.DELETE_KV_CONFIG: _CLUSTER_UPDATE,
    _CODE.GET_KVLIST_BY_NAMESPACE: _CLUSTER_GET,
    _CODE.REGISTER_BROKER: (_cluster(UPDATE, "clusterName"),),
    _CODE.UNREGISTER_BROKER: (_cluster(UPDATE, "clusterName"),),
    _CODE.GET_ROUTEINFO_BY_TOPIC: (_topic("topic", PUB, SUB, GET),),
    _CODE.GET_BROKER_CLUSTER_INFO: AUTHENTICATION,
    _CODE.WIPE_WRITE_PERM_OF_BROKER: _CLUSTER_UPDATE,
    _CODE.ADD_WRITE_PERM_OF_BROKER: _CLUSTER_UPDATE,
    _CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _CLUSTER_GET,
    _CODE.DELETE_TOPIC_IN_NAMESRV: (_cluster(UPDATE, "clusterName"),),
    _CODE.REGISTER_TOPIC_IN_NAMESRV: _CLUSTER_UPDATE,
    _CODE.GET_TOPICS_BY_CLUSTER: _CLUSTER_GET,
    _CODE.GET_SYSTEM_TOPIC_LIST_FROM_NS: AUTHENTICATION,
    _CODE.GET_UNIT_TOPIC_LIST: _CLUSTER_GET,
    _CODE.GET_HAS_UNIT_SUB_TOPIC_LIST: _CLUSTER_GET,
    _CODE.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _CLUSTER_GET,
    _CODE.UPDATE_NAMESRV_CONFIG: _CLUSTER_UPDATE,
    _CODE.GET_NAMESRV_CONFIG: _CLUSTER_GET,
    _CODE.QUERY_DATA_VERSION: (_cluster(GET, "clusterName"),),
    # Members of a cluster.
    _CODE.GET_BROKER_MEMBER_GROUP: (_cluster(GET, "clusterName"),),
    _CODE.ADD_BROKER: _CLUSTER_UPDATE,
    _CODE.REMOVE_BROKER: (_cluster(UPDATE, "brokerClusterName"),),
    _CODE.BROKER_HEARTBEAT: (_cluster(UPDATE, "clusterName"),),
    _CODE.NOTIFY_MIN_BROKER_ID_CHANGE: _CLUSTER_UPDATE,
    _CODE.EXCHANGE_BROKER_HA_INFO: _CLUSTER_UPDATE,
    _CODE.GET_BROKER_HA_STATUS: _CLUSTER_GET,
    _CODE.RESET_MASTER_FLUSH_OFFSET: _CLUSTER_UPDATE,
    _CODE.CONTROLLER_ALTER_SYNC_STATE_SET: _CLUSTER_UPDATE,
    _CODE.CONTROLLER_ELECT_MASTER: (_cluster(UPDATE, "clusterName"),),
    _CODE.CONTROLLER_REGISTER_BROKER: (_cluster(UPDATE, "clusterName"),),
    _CODE.CONTROLLER_GET_REPLICA_INFO: _CLUSTER_GET,
    _CODE.CONTROLLER_GET_METADATA_INFO: AUTHENTICATION,
    _CODE.CONTROLLER_GET_SYNC_STATE_DATA: _CLUSTER_GET,
    _CODE.GET_BROKER_EPOCH_CACHE: _CLUSTER_GET,
    _CODE.NOTIFY_BROKER_ROLE_CHANGED: _CLUSTER_UPDATE,
    _CODE.UPDATE_CONTROLLER_CONFIG: _CLUSTER_UPDATE,
    _CODE.GET_CONTROLLER_CONFIG: _CLUSTER_GET,
    _CODE.CLEAN_BROKER_DATA: (_cluster(UPDATE, "clusterName"),),
    _CODE.CONTROLLER_GET_NEXT_BROKER_ID: (_cluster(GET, "clusterName"),),
    _CODE.CONTROLLER_APPLY_BROKER_ID: (_cluster(UPDATE, "clusterName"),),
    # Users and ACLs.
    _CODE.AUTH_CREATE_USER: _CLUSTER_UPDATE,
    _CODE.AUTH_UPDATE_USER: _CLUSTER_UPDATE,
    _CODE.AUTH_DELETE_USER: _CLUSTER_UPDATE,
    _CODE.AUTH_GET_USER: _CLUSTER_GET,
    _CODE.AUTH_LIST_USER: _CLUSTER_GET,
    _CODE.AUTH_CREATE_ACL: _CLUSTER_UPDATE,
    _CODE.AUTH_UPDATE_ACL: _CLUSTER_UPDATE,
    _CODE.AUTH_DELETE_ACL: _CLUSTER_UPDATE,
    _CODE.AUTH_GET_ACL: _CLUSTER_GET,
    _CODE.AUTH_LIST_ACL: _CLUSTER_GET,
}
"""Codes without a row are served by clients only (39, 40, 220, 221, 326, 200073), or not at all."""

RECORD_RIGHTS: Mapping[int, frozenset[Action]] = {
    _CODE.VIEW_MESSAGE_BY_ID: frozenset({SUB, GET}),
    _CODE.CONSUMER_SEND_MSG_BACK: frozenset({SUB}),
    _CODE.END_TRANSACTION: frozenset({PUB}),
    _CODE.CONSUME_MESSAGE_DIRECTLY: frozenset({SUB}),
    _CODE.RESUME_CHECK_HALF_MESSAGE: frozenset({UPDATE}),
}
"""Requests that name a stored message by its position: actions on the topic that it really has."""

HOT_FIELDS: Mapping[int, tuple[str, str]] = {
    _CODE.SEND_MESSAGE: ("topic", "topic"),
    _CODE.SEND_MESSAGE_V2: ("b", "b"),
    _CODE.SEND_BATCH_MESSAGE: ("b", "b"),
    _CODE.PULL_MESSAGE: ("topic", "consumerGroup"),
    _CODE.LITE_PULL_MESSAGE: ("topic", "consumerGroup"),
    _CODE.UPDATE_CONSUMER_OFFSET: ("topic", "consumerGroup"),
}
"""The fields that determine the rights of frequent requests."""

_CHANGES_IN_BODY = (_created_topics, _changed_group, _changed_groups, _request_mode)
_ROUTINE = {_CODE.REGISTER_BROKER, _CODE.BROKER_HEARTBEAT, _CODE.EXCHANGE_BROKER_HA_INFO}


def _changes(right: Right | BodyAccesses) -> bool:
    if isinstance(right, Right):
        return right.actions <= {CREATE, UPDATE, DELETE}
    return right in _CHANGES_IN_BODY


ADMINISTRATION = frozenset(code for code, row in RIGHTS.items() if any(map(_changes, row))) - _ROUTINE
"""Requests that change something other than messages and progress; they are always in the audit log."""


def needed_accesses(command: RemotingCommand, own_cluster: str) -> list[NeededAccess] | None:
    """Return what a request needs, all of it; None for a code without a row.

    Raises RemoteProtocolError for a body that cannot be read.
    """
    row = RIGHTS.get(command.code)
    if row is None:
        return None
    accesses: list[NeededAccess] = []
    fields: Mapping[str, str] = command.fields
    if command.code in _OF_POPPED:
        # They name the retry topic that a message was popped from.
        normal = normal_topic(fields.get("topic", ""), fields.get("consumerGroup", ""))
        fields = {**fields, "topic": normal}
    for right in row:
        if isinstance(right, Right):
            accesses += _by_fields(right, fields, own_cluster)
        else:
            try:
                accesses += right(command.body)
            except msgspec.ValidationError as error:
                raise RemoteProtocolError(f"body: {error}") from None
    if command.code == _CODE.GET_ROUTEINFO_BY_TOPIC:
        return [access for access in accesses if access.resource != _TEMPLATE]
    return accesses


_OF_POPPED = (_CODE.ACK_MESSAGE, _CODE.CHANGE_MESSAGE_INVISIBLETIME)
_TEMPLATE = model.topic(AUTO_CREATE_TOPIC)
_MAKE = {
    ResourceKind.TOPIC: model.topic,
    ResourceKind.GROUP: model.group,
    ResourceKind.CLUSTER: model.cluster,
}


def _by_fields(right: Right, fields: Mapping[str, str], own_cluster: str) -> Iterator[NeededAccess]:
    make = _MAKE[right.kind]
    value = fields.get(right.field, "")
    if right.kind is ResourceKind.CLUSTER:
        value = value or own_cluster
    for name in value.split(right.separator) if right.separator else (value,):
        if name.strip():
            yield _access(make(name), right.actions)


def _access(resource: model.Resource, actions: frozenset[Action]) -> NeededAccess:
    """Who consumes as a group may send to its retry topic."""
    if resource.kind is ResourceKind.GROUP and PUB in actions:
        actions = actions - {PUB} | {SUB}
    return NeededAccess(resource, actions)
