"""Pure. Request codes that a broker does not serve, each with its reason. They are answered with code 3.

Where Apache's broker would have served a request, the answer also says why this one does not.
"""

from skylark.protocol.codes import RequestCode as Code

_NEVER_SERVED: dict[str, tuple[Code, ...]] = {
    "RocketMQ has reserved the number and never used it": (
        Code.QUERY_BROKER_OFFSET,
        Code.GET_TOPIC_CONFIG_LIST,
        Code.GET_TOPIC_NAME_LIST,
        Code.TRIGGER_DELETE_FILES,
        Code.GET_CLIENT_CONFIG,
        Code.SUSPEND_CONSUMER,
        Code.RESUME_CONSUMER,
        Code.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        Code.RESET_CONSUMER_OFFSET_IN_BROKER,
        Code.ADJUST_CONSUMER_THREAD_POOL,
        Code.WHO_CONSUME_THE_MESSAGE,
    ),
    "filter servers are gone since RocketMQ 5": (
        Code.REGISTER_FILTER_SERVER,
        Code.REGISTER_MESSAGE_FILTER_CLASS,
    ),
    "access control of RocketMQ 4 is gone since 5.3.3": (
        Code.UPDATE_AND_CREATE_ACL_CONFIG,
        Code.DELETE_ACL_CONFIG,
        Code.GET_BROKER_CLUSTER_ACL_INFO,
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        Code.GET_BROKER_CLUSTER_ACL_CONFIG,
    ),
    "a broker sends it to clients": (
        Code.CHECK_TRANSACTION_STATE,
        Code.NOTIFY_CONSUMER_IDS_CHANGED,
        Code.RESET_CONSUMER_CLIENT_OFFSET,
        Code.GET_CONSUMER_STATUS_FROM_CLIENT,
        Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
    ),
    "it is for name servers": (
        Code.PUT_KV_CONFIG,
        Code.GET_KV_CONFIG,
        Code.DELETE_KV_CONFIG,
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.GET_ROUTEINFO_BY_TOPIC,
        Code.GET_BROKER_CLUSTER_INFO,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        Code.GET_UNIT_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        Code.UPDATE_NAMESRV_CONFIG,
        Code.GET_NAMESRV_CONFIG,
        Code.QUERY_DATA_VERSION,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.GET_BROKER_MEMBER_GROUP,
        Code.BROKER_HEARTBEAT,
    ),
    "it is for controllers": (
        Code.CONTROLLER_ALTER_SYNC_STATE_SET,
        Code.CONTROLLER_ELECT_MASTER,
        Code.CONTROLLER_REGISTER_BROKER,
        Code.CONTROLLER_GET_REPLICA_INFO,
        Code.CONTROLLER_GET_METADATA_INFO,
        Code.CONTROLLER_GET_SYNC_STATE_DATA,
        Code.UPDATE_CONTROLLER_CONFIG,
        Code.GET_CONTROLLER_CONFIG,
        Code.CLEAN_BROKER_DATA,
        Code.CONTROLLER_GET_NEXT_BROKER_ID,
        Code.CONTROLLER_APPLY_BROKER_ID,
        Code.BROKER_CLOSE_CHANNEL,
        Code.CHECK_NOT_ACTIVE_BROKER,
        Code.GET_BROKER_LIVE_INFO,
        Code.GET_SYNC_STATE_DATA,
        Code.RAFT_BROKER_HEART_BEAT_EVENT,
    ),
}

_NOT_SERVED_HERE: dict[str, tuple[Code, ...]] = {
    "access control is not served yet": (
        Code.AUTH_CREATE_USER,
        Code.AUTH_UPDATE_USER,
        Code.AUTH_DELETE_USER,
        Code.AUTH_GET_USER,
        Code.AUTH_LIST_USER,
        Code.AUTH_CREATE_ACL,
        Code.AUTH_UPDATE_ACL,
        Code.AUTH_DELETE_ACL,
        Code.AUTH_GET_ACL,
        Code.AUTH_LIST_ACL,
    ),
    "pop consumption is not served yet": (
        Code.POP_MESSAGE,
        Code.ACK_MESSAGE,
        Code.PEEK_MESSAGE,
        Code.CHANGE_MESSAGE_INVISIBLETIME,
        Code.NOTIFICATION,
        Code.POLLING_INFO,
        Code.BATCH_ACK_MESSAGE,
    ),
    "static topics are not served": (Code.UPDATE_AND_CREATE_STATIC_TOPIC,),
    "brokers do not change their role by themselves yet": (
        Code.NOTIFY_MIN_BROKER_ID_CHANGE,
        Code.NOTIFY_BROKER_ROLE_CHANGED,
    ),
    "there is no container of several brokers": (Code.ADD_BROKER, Code.REMOVE_BROKER),
}


def _by_code(codes_by_reason: dict[str, tuple[Code, ...]]) -> dict[Code, str]:
    return {code: reason for reason, codes in codes_by_reason.items() for code in codes}


NOT_SERVED_HERE = _by_code(_NOT_SERVED_HERE)
REASONS = _by_code(_NEVER_SERVED) | NOT_SERVED_HERE
UNSUPPORTED = frozenset(REASONS)
