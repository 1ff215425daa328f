"""Pure. Names of topics and groups: validation, system names, retry and dead-letter topics."""

import re

from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SCHEDULE_TOPIC

TOPIC_CHARS_MAX = 127
GROUP_CHARS_MAX = 120  # with the prefix of its retry topic it must be a valid topic name
DERIVED_TOPIC_CHARS_MAX = 255
"""Limit of retry and dead-letter topics: they contain a group name, those of pop also a topic name."""

CLIENT_ID_CHARS_MAX = 1024
EXPRESSION_CHARS_MAX = 64 << 10  # subscription expressions
WRITTEN_NAME_CHARS_MAX = 255  # names that are only kept while a client is connected

AUTO_CREATE_TOPIC = "TBW102"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HALF_CHECKED_OUT_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        HALF_OP_TOPIC,
        HALF_CHECKED_OUT_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
"""Exist on every broker."""
UNSENDABLE_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        HALF_OP_TOPIC,
        HALF_CHECKED_OUT_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
    }
)
"""Written by the broker alone."""
LAKE_TABLE = "lake.table"
"""The attribute of a topic that names the table of a lake which archives it."""
NO_LAKE_TABLE = "none"
"""Its value for a topic that is not archived."""
LAKE_NAMESPACE = "SKYLARK_LAKE"
"""Of the name servers' key-value table: a topic and the address of the table that archives it."""
TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group of tools that read. It exists on every broker: reading with it creates no group."""
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Its offset in the half topic: all half messages before it are decided."""
SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED_DERIVED = re.compile(r"[%|a-zA-Z0-9_+-]+")
_ILLEGAL = "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"


def is_system_group(group: str) -> bool:
    """Return whether a group is a system group or has the prefix of one."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def topic_name_error(topic: str) -> str | None:
    """Return RocketMQ's error text for an invalid topic name, or None."""
    return _fault("topic", topic, TOPIC_CHARS_MAX)


def group_name_error(group: str) -> str | None:
    """Return RocketMQ's error text for an invalid group name, or None."""
    return _fault("group", group, GROUP_CHARS_MAX)


def stored_topic_name_error(topic: str) -> str | None:
    """As `topic_name_error`, but retry and dead-letter topics created by a broker may be longer."""
    if topic.startswith((RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)):
        return _fault("topic", topic, DERIVED_TOPIC_CHARS_MAX, _ALLOWED_DERIVED)
    return topic_name_error(topic)


def _fault(what: str, name: str, chars_max: int, allowed: re.Pattern[str] = _ALLOWED) -> str | None:
    if not name.strip():
        return f"The specified {what} is blank."
    if not allowed.fullmatch(name):
        return f"The specified {what} {_ILLEGAL}"
    if len(name) > chars_max:
        return f"The specified {what} is longer than {what} max length."
    return None


def retry_topic(group: str) -> str:
    return RETRY_TOPIC_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_TOPIC_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic of replies to request messages."""
    return f"{cluster}_REPLY_TOPIC"


NO_RETRY, RETRY_V1, RETRY_V2 = "0", "1", "2"
"""Flags in handles: the topic itself, its retry topic of the old naming, of the new naming."""


def pop_retry_topics(topic: str, group: str) -> tuple[str, str]:
    """Return the retry topics of a pop consumer group: old and new naming."""
    return f"{retry_topic(group)}_{topic}", f"{retry_topic(group)}+{topic}"


def pop_retry_flag(topic: str) -> str:
    """Return the flag of a topic's name in handles."""
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        return NO_RETRY
    return RETRY_V2 if "+" in topic else RETRY_V1


def popped_topic(topic: str, group: str, flag: str) -> str:
    """Return the topic from which a group popped a message of `topic`. Raises ValueError for another flag."""
    if flag == NO_RETRY:
        return topic
    if flag not in (RETRY_V1, RETRY_V2):
        raise ValueError(f"retry flag {flag[:8]!r}, allowed are 0, 1 and 2")
    return pop_retry_topics(topic, group)[flag == RETRY_V2]


def normal_topic(topic: str, group: str) -> str:
    """Return the topic of a group's retry topic, another name unchanged."""
    for separator in "_+":
        normal = topic.removeprefix(retry_topic(group) + separator)
        if normal != topic:
            return normal
    return topic


REVIVE_GROUP = f"{SYSTEM_GROUP_PREFIX}REVIVE_GROUP"
"""Whose offsets say up to where the records of pops were dealt with."""


def revive_topic(cluster: str) -> str:
    """Return the topic of the records of pops: check points and acknowledgements."""
    return f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}"
