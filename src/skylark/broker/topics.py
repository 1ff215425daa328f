"""Pure. TopicTable: the topics of a broker, the built-in ones, and which topics are created automatically.

Attributes of topics and groups are here too, with their changes: `+name=value` sets, `-name` deletes.
"""

import random
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from skylark.broker.error_replies import (
    FAQ,
    full,
    invalid_parameter,
    no_permission,
    system_error,
    topic_not_exist,
)
from skylark.broker.metadata_json import Encode, decode_metadata, encode_metadata, next_version
from skylark.errors import SettingsError
from skylark.model import names
from skylark.model.archived_topics import LAKE_RULES, ArchivedTopics
from skylark.model.lite_topic import (
    BIND_TOPIC,
    CLIENT_EVENTS,
    CLIENT_QUOTA,
    EXCLUSIVE,
    EXPIRATION,
    LITE,
    RESET_EXCLUDED,
    RESET_UNSUBSCRIBED,
    SHARED,
    SUB_MODEL,
    WILDCARD,
)
from skylark.model.message import RETRY_TOPIC_PREFIX, SCHEDULE_TOPIC
from skylark.protocol.bodies import (
    PERM_INHERIT,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    UNIT_FLAG,
    UNIT_SUB_FLAG,
    DataVersion,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
)
from skylark.settings import BrokerSettings, parse_delay_levels
from skylark.settings.live import LiveSettings
from skylark.store.queue_table import BATCH_TYPE, QUEUE_TYPE, is_batch_type

ADD, DELETE = "+", "-"
MESSAGE_TYPE = "message.type"
MIXED = "MIXED"
PRIORITY = "PRIORITY"
PRIORITY_FACTOR = "priority.factor"
"""Percentage of the pops of a group that visit the queues of a PRIORITY topic by their priority."""
PRIORITY_FACTOR_DEFAULT = 100
EXPIRATION_MAX = 30 * 24 * 60
LONG_MAX = (1 << 63) - 1
BOOLEANS = frozenset({"true", "false"})
ANY_TEXT = re.compile(r".+")


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that can be set to one of its values, and changed later only if it is changeable.

    Values are listed, described by a pattern, numbers, or what a parser accepts.
    """

    values: frozenset[str] | re.Pattern[str] | range | Callable[[str], object]
    changeable: bool = False

    def check(self, value: str) -> None:
        """Raises BrokerError."""
        if isinstance(self.values, re.Pattern):
            if self.values.fullmatch(value) is None:
                raise system_error(f"invalid value: {value}; it must match {self.values.pattern}")
        elif isinstance(self.values, range):
            if re.fullmatch(r"-?\d{1,19}", value, re.ASCII) is None or int(value) not in self.values:
                raise system_error(f"value is not in range({self.values[0]}, {self.values[-1]})")
        elif callable(self.values):
            try:
                self.values(value)
            except SettingsError as error:
                raise system_error(str(error)) from None
        elif value not in self.values:
            raise system_error(f"value is not in set: [{', '.join(sorted(self.values))}]")


TOPIC_ATTRIBUTES = {
    QUEUE_TYPE: Attribute(frozenset({"SimpleCQ", BATCH_TYPE})),
    "cleanup.policy": Attribute(frozenset({"DELETE", "COMPACTION"})),
    MESSAGE_TYPE: Attribute(
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED, PRIORITY, LITE}),
        changeable=True,
    ),
    EXPIRATION: Attribute(range(-1, EXPIRATION_MAX + 1), changeable=True),
    # Ours: Apache's brokers keep it in their files and in replication, but do not let it be set.
    names.LAKE_TABLE: Attribute(re.compile(r"[A-Za-z0-9._-]{1,100}"), changeable=True),
}
GROUP_ATTRIBUTES = {
    PRIORITY_FACTOR: Attribute(range(101), changeable=True),
    BIND_TOPIC: Attribute(ANY_TEXT, changeable=True),
    SUB_MODEL: Attribute(frozenset({SHARED, EXCLUSIVE}), changeable=True),
    RESET_EXCLUDED: Attribute(BOOLEANS, changeable=True),
    RESET_UNSUBSCRIBED: Attribute(BOOLEANS, changeable=True),
    CLIENT_QUOTA: Attribute(range(-1, LONG_MAX + 1), changeable=True),
    CLIENT_EVENTS: Attribute(range(10, LONG_MAX + 1), changeable=True),
    WILDCARD: Attribute(ANY_TEXT, changeable=True),
    LAKE_RULES: Attribute(ArchivedTopics.decode, changeable=True),  # ours
}
_RESERVE_TIME = "reserve.time"  # of a tiered store, which there is none of


def parse_changes(text: str | None) -> dict[str, str]:
    """Read changes such as `+message.type=FIFO,-queue.type`, signs kept. Raises BrokerError."""
    changes: dict[str, str] = {}
    for piece in text.split(",") if text else ():
        name, equals, value = piece.partition("=")
        if equals and (ADD not in name or not value):
            raise system_error(f"add/alter attribute format is wrong: {name}")
        if not equals and DELETE not in name:
            raise system_error(f"delete attribute format is wrong: {name}")
        if name in changes:
            raise system_error(f"key duplication: {name}")
        changes[name] = value
    return changes


def refuse_mixed(changes: Mapping[str, str]) -> None:
    """Raise BrokerError for a topic of type MIXED."""
    if changes.get(ADD + MESSAGE_TYPE) == MIXED:
        raise invalid_parameter("MIXED message type is not supported.")


def altered(
    current: Mapping[str, str] | None, changes: Mapping[str, str], known: Mapping[str, Attribute]
) -> dict[str, str]:
    """Return the attributes after the changes. Raises BrokerError.

    `current` is None for what is being created.
    """
    attributes = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if not name or ADD in name or DELETE in name:
            raise system_error("kv string format wrong.")
        if name in seen:
            raise system_error(f"alter duplication key. key: {name}")
        seen.add(name)
        if current is None and sign != ADD:
            raise system_error(f"only add attribute is supported while creating topic. key: {name}")
        if sign == DELETE and name not in attributes:
            raise system_error(f"attempt to delete a nonexistent key: {name}")
        if sign not in (ADD, DELETE):
            raise system_error(f"wrong format key: {name}")
        _check(name, value if sign == ADD else None, known, creating=current is None)
        if sign == ADD:
            attributes[name] = value
        else:
            del attributes[name]
    return attributes


def _check(name: str, value: str | None, known: Mapping[str, Attribute], *, creating: bool) -> None:
    if name == _RESERVE_TIME and known:
        raise system_error("Update topic reserveTime not supported")
    attribute = known.get(name)
    if attribute is None:
        raise system_error(f"unsupported key: {name}")
    if not creating and not attribute.changeable:
        raise system_error(f"attempt to update an unchangeable attribute. key: {name}")
    if value is not None:
        attribute.check(value)


BENCHMARK_QUEUES = 1024
CLUSTER_QUEUES = 16
SCHEDULE_QUEUES_MIN = 18
PERM_MAX = 7
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


def describe(config: TopicConfig) -> str:
    """Return a topic as RocketMQ's remarks show it."""
    letters = zip("RWX", (PERM_READ, PERM_WRITE, PERM_INHERIT), strict=True)
    perm = "".join(letter if config.perm & bit else "-" for letter, bit in letters)
    attributes = ", ".join(f"{name}={value}" for name, value in sorted(config.attributes.items()))
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, topicFilterType={config.topic_filter_type}, "
        f"topicSysFlag={config.topic_sys_flag}, order={str(config.order).lower()}, "
        f"attributes={{{attributes}}}]"
    )


def built_in_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """Return the topics that a broker has from its first start."""
    inheritable = PERM_READ_WRITE | PERM_INHERIT
    levels = len(parse_delay_levels(settings.store.delay_levels))
    topics = [
        _topic(names.SELF_TEST_TOPIC, 1),
        _topic(names.BENCHMARK_TOPIC, BENCHMARK_QUEUES),
        _topic(settings.cluster, CLUSTER_QUEUES, inheritable if settings.cluster_topic else PERM_INHERIT),
        _topic(settings.name, 1, inheritable if settings.broker_topic else PERM_INHERIT),
        _topic(names.OFFSET_MOVED_TOPIC, 1),
        _topic(SCHEDULE_TOPIC, max(SCHEDULE_QUEUES_MIN, levels)),
        _topic(names.reply_topic(settings.cluster), 1),
        _topic(names.revive_topic(settings.cluster), settings.revive_queues),
        _topic(f"{names.SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{settings.name}", 1, PERM_INHERIT),
        _topic(names.HALF_TOPIC, 1),
        _topic(names.HALF_OP_TOPIC, 1),
        _topic(names.TIMER_TOPIC, 1),
    ]
    if settings.auto_create_topics:
        topics.append(_topic(names.AUTO_CREATE_TOPIC, settings.default_topic_queues, inheritable))
    if settings.trace_topic:
        topics.append(_topic(settings.trace_topic_name, 1))
    return topics


def random_queue(queues: int) -> int:
    return random.randrange(queues) if queues > 0 else 0  # noqa: S311 - it only spreads messages over queues


class TopicTable:
    """All topics by name. Configs are values: a change puts a new one in place of the old.

    New and changed topics are kept for `take_unregistered`.
    """

    def __init__(self, live: LiveSettings[BrokerSettings], *, now_ms: int) -> None:
        self.data_version = DataVersion(timestamp=now_ms)
        self._live = live
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change, for the file to be written."""
        self.on_new: Callable[[TopicConfig], None] = lambda config: None
        """Called with a topic that a send has created."""
        self._topics: dict[str, TopicConfig] = {}
        self._sendable: dict[str, TopicConfig] = {}
        self.plain: dict[str, int] = {}
        """Write queues of topics that need no further checks on a send."""
        self.edition = object()
        """Replaced after every change that affects sends: checks made under the same edition still hold."""
        self._unregistered: dict[str, TopicConfig] = {}
        self._queues = 0
        built_in = built_in_topics(live.current)
        self._system_topics = names.SYSTEM_TOPICS | {config.topic_name for config in built_in}
        for config in built_in:
            self._put(config)

    # --- Questions ---

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def all(self) -> list[TopicConfig]:
        return list(self._topics.values())

    def is_ordered(self, topic: str) -> bool:
        config = self._topics.get(topic)
        return config is not None and config.order

    def is_batched(self, topic: str) -> bool:
        """Return whether a topic's batches are stored as one record each. Any thread."""
        config = self._topics.get(topic)
        return config is not None and is_batch_type(config.attributes)

    def takes_batches(self, topic: str) -> bool:
        """As `is_batched`, of a topic whose batches need no further checks."""
        config = self._sendable.get(topic)
        return (
            config is not None
            and is_batch_type(config.attributes)
            and len(config.attributes) == 1
            and not config.order
            and config.topic_filter_type != "MULTI_TAG"
        )

    def is_system(self, topic: str) -> bool:
        return topic in self._system_topics or topic.startswith(names.SYSTEM_TOPIC_PREFIX)

    def system_topics(self) -> list[str]:
        """Return the built-in topics, including those that are created on demand."""
        return sorted(self._system_topics)

    def table(self, configs: Iterable[TopicConfig] | None = None) -> TopicConfigTable:
        """Return some topics, or all, with the version of the whole table."""
        chosen = self._topics.values() if configs is None else configs
        return TopicConfigTable(
            topic_config_table={config.topic_name: config for config in chosen},
            data_version=self.data_version,
        )

    def registered_table(self, configs: Iterable[TopicConfig] | None = None) -> TopicConfigTable:
        """As `table`, for name servers: without permissions that the broker lacks."""
        mask = self._live.current.permission
        table = self.table(configs)
        if mask & PERM_READ_WRITE != PERM_READ_WRITE:
            table.topic_config_table = {
                name: msgspec.structs.replace(config, perm=config.perm & mask)
                for name, config in table.topic_config_table.items()
            }
        return table

    def take_unregistered(self) -> list[TopicConfig]:
        """Return the topics created or changed since the last call, for the name servers."""
        taken = list(self._unregistered.values())
        self._unregistered.clear()
        return taken

    # --- Automatic creation ---

    def for_send(
        self, topic: str, default_topic: str, queues: int, *, unit_mode: bool = False, now_ms: int
    ) -> TopicConfig:
        """Return the topic that a client sends to, created after the default topic if missing.

        Raises BrokerError 16 for the broker's own topics, 17 where none can be made, 29 for a bad name.
        """
        config = self._sendable.get(topic)
        if config is not None:
            return config
        fault = names.topic_name_error(topic)
        if fault is not None:
            raise invalid_parameter(fault)
        if topic in names.UNSENDABLE_TOPICS:
            raise no_permission(f"Sending message to topic[{topic}] is forbidden.")
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        flag = (UNIT_SUB_FLAG if is_retry else UNIT_FLAG) if unit_mode else 0
        model = self._model(default_topic)
        if model is not None:
            count = max(0, min(queues, model.write_queue_nums))
            config = msgspec.structs.replace(
                _topic(topic, count, model.perm & ~PERM_INHERIT),
                topic_filter_type=model.topic_filter_type,
                topic_sys_flag=flag,
            )
            made = self._change(config, now_ms)
            self.on_new(made)
            return made
        if is_retry:
            config = msgspec.structs.replace(_topic(topic, 1), topic_sys_flag=flag)
            return self._change(config, now_ms)
        raise topic_not_exist(f"topic[{topic}] not exist, apply first please!{FAQ}")

    def _model(self, default_topic: str) -> TopicConfig | None:
        """Return the template for new topics, if it may be inherited."""
        if default_topic == names.AUTO_CREATE_TOPIC and not self._live.current.auto_create_topics:
            return None
        config = self._topics.get(default_topic)
        return config if config is not None and config.perm & PERM_INHERIT else None

    def ensure_retry_topic(
        self,
        group: SubscriptionGroupConfig,
        *,
        ordered: bool | None = None,
        unit_mode: bool = False,
        now_ms: int,
    ) -> TopicConfig:
        """Return a group's retry topic, made if it is not there; `ordered` is what it becomes, None: stays.

        Raises BrokerError 29 for a group whose name makes no topic.
        """
        topic = names.retry_topic(group.group_name)
        config = self._topics.get(topic)
        if config is None:
            flag = UNIT_SUB_FLAG if unit_mode else 0
            made = _topic(topic, max(0, group.retry_queue_nums))
            return self._change(
                msgspec.structs.replace(made, order=bool(ordered), topic_sys_flag=flag), now_ms
            )
        if ordered is None or ordered == config.order:
            return config
        return self._change(msgspec.structs.replace(config, order=ordered), now_ms)

    def ensure_topic(self, topic: str, queues: int = 1, *, now_ms: int) -> TopicConfig:
        """Return a topic that the broker itself needs, readable and writable, made if it is not there.

        Raises BrokerError 29 for a bad name.
        """
        config = self._topics.get(topic)
        return config if config is not None else self._change(_topic(topic, queues), now_ms)

    # --- Changes by administrators ---

    def update(self, *wanted: TopicConfig, now_ms: int) -> list[TopicConfig]:
        """Make or change topics, all of them or none, and return them as they are now.

        Their attributes are changes: `+name`, `-name`. Raises BrokerError 29 or 1; nothing is changed then.
        """
        configs = [self._updated(config) for config in wanted]
        self._check_room(configs)
        return [
            config if self._topics.get(config.topic_name) == config else self._change(config, now_ms)
            for config in configs
        ]

    def delete(self, topic: str, *, now_ms: int) -> bool:
        """Delete a topic; False if it did not exist. Raises BrokerError 29 for built-in ones."""
        if not topic.strip():
            raise invalid_parameter("The specified topic is blank.")
        self._refuse_system(topic)
        config = self._topics.get(topic)
        if config is None:
            return False
        self._remove(config)
        self._unregistered.pop(topic, None)
        self._bump(now_ms)
        return True

    def touch(self, *, now_ms: int) -> None:
        """Give the table a new version: the broker's permission, which applies to its topics, has changed."""
        self._bump(now_ms)

    def set_epoch(self, epoch: int, *, now_ms: int) -> None:
        """Name servers compare the epochs of brokers that say they are the master of one name."""
        self.data_version = msgspec.structs.replace(self.data_version, state_version=epoch)
        self._bump(now_ms)

    def mark_ordered(self, topics: Iterable[str], *, now_ms: int) -> None:
        """Mark topics that name servers list as ordered."""
        known = (self._topics.get(topic) for topic in topics)
        unordered = [config for config in known if config is not None and not config.order]
        for config in unordered:
            self._put(msgspec.structs.replace(config, order=True))
        if unordered:
            self._bump(now_ms)

    def adopt(
        self, queues_by_topic: Iterable[tuple[str, int]], batch_topics: Container[str], *, now_ms: int
    ) -> list[str]:
        """Add topics that the store has queues of but the table lacks; return them.

        The file is written shortly after a topic is created: a broker killed in between keeps its messages.
        """
        missing = [(topic, queues) for topic, queues in queues_by_topic if topic not in self._topics]
        adopted = [
            (topic, queues) for topic, queues in missing if names.stored_topic_name_error(topic) is None
        ]
        for topic, queues in adopted:
            attributes = {QUEUE_TYPE: BATCH_TYPE} if topic in batch_topics else {}
            self._change(msgspec.structs.replace(_topic(topic, queues), attributes=attributes), now_ms)
        return [topic for topic, _ in adopted]

    def follow(self, master: TopicConfigTable) -> list[str]:
        """Copy the master's table; return the topics that were removed."""
        gone = [config for topic, config in self._topics.items() if topic not in master.topic_config_table]
        for config in gone:
            self._remove(config)
            self._unregistered.pop(config.topic_name, None)
        for config in master.topic_config_table.values():
            if config != self._topics.get(config.topic_name):
                self._put(config)
                self._unregistered[config.topic_name] = config
        self.data_version = master.data_version
        self.on_change()
        return [config.topic_name for config in gone]

    # --- The file ---

    def snapshot(self) -> Encode:
        """Return an encoder of the current table."""
        topics, version = dict(self._topics), self.data_version
        return lambda: encode_metadata({"dataVersion": version, "topicConfigTable": topics})

    def load(self, data: bytes) -> None:
        """Load topics.json over the built-in topics. Raises ValueError."""
        table = decode_metadata(data, TopicConfigTable)
        for config in table.topic_config_table.values():
            # An old file may still allow automatic creation that is switched off now.
            if config.topic_name != names.AUTO_CREATE_TOPIC or self._live.current.auto_create_topics:
                self._put(config)
        self.data_version = table.data_version

    # --- Inside ---

    def _change(self, config: TopicConfig, now_ms: int) -> TopicConfig:
        if config.topic_name not in self._topics:
            fault = names.stored_topic_name_error(config.topic_name)
            if fault is not None:
                raise invalid_parameter(fault)
        self._check_room([config])
        self._put(config)
        self._unregistered[config.topic_name] = config
        self._bump(now_ms)
        return config

    def _put(self, config: TopicConfig) -> None:
        topic = config.topic_name
        self._queues += _queue_count(config) - _queue_count(self._topics.get(topic))
        self._topics[topic] = config
        if topic not in names.UNSENDABLE_TOPICS and names.topic_name_error(topic) is None:
            self._sendable[topic] = config
            self.plain.pop(topic, None)
            self.edition = object()
            if not (config.order or config.attributes or config.topic_filter_type == "MULTI_TAG"):
                self.plain[topic] = config.write_queue_nums

    def _remove(self, config: TopicConfig) -> None:
        self._queues -= _queue_count(config)
        del self._topics[config.topic_name]
        self._sendable.pop(config.topic_name, None)
        self.plain.pop(config.topic_name, None)
        self.edition = object()

    def _bump(self, now_ms: int) -> None:
        self.data_version = next_version(self.data_version, now_ms)
        self.on_change()

    def _updated(self, wanted: TopicConfig) -> TopicConfig:
        """Return a topic with an administrator's changes applied."""
        topic = wanted.topic_name
        fault = names.topic_name_error(topic)
        if fault is not None:
            raise invalid_parameter(fault)
        self._refuse_system(topic)
        if not self._live.current.mixed_message_type:
            refuse_mixed(wanted.attributes)
        if not 0 <= wanted.perm <= PERM_MAX:
            raise invalid_parameter(f"topicPermission value: {wanted.perm} is invalid.")
        if wanted.topic_filter_type not in FILTER_TYPES:
            raise system_error(f"topicFilterType = [{wanted.topic_filter_type}] value invalid")
        current = self._topics.get(topic)
        attributes = altered(
            current.attributes if current is not None else None, wanted.attributes, TOPIC_ATTRIBUTES
        )
        return msgspec.structs.replace(wanted, attributes=attributes)

    def _refuse_system(self, topic: str) -> None:
        if self._live.current.protect_system_topics and self.is_system(topic):
            raise invalid_parameter(f"The topic[{topic}] is conflict with system topic.")

    def _check_room(self, configs: Iterable[TopicConfig]) -> None:
        """Raise BrokerError unless all of these topics can be made or changed together."""
        settings = self._live.current
        allowed = range(settings.topic_queues_max + 1)
        topics, queues = len(self._topics), self._queues
        for config in configs:
            if config.read_queue_nums not in allowed or config.write_queue_nums not in allowed:
                raise invalid_parameter(
                    f"topic[{config.topic_name}] cannot have {config.read_queue_nums} queues to read and "
                    f"{config.write_queue_nums} to write, allowed is 0 to {settings.topic_queues_max}"
                )
            current = self._topics.get(config.topic_name)
            topics += current is None
            queues += _queue_count(config) - _queue_count(current)
        if topics > max(settings.topics_max, len(self._topics)):
            raise full("topics", settings.topics_max)
        if queues > max(settings.queues_max, self._queues):
            raise full("queues", settings.queues_max)


def _topic(topic: str, queues: int, perm: int = PERM_READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=int(perm))


def _queue_count(config: TopicConfig | None) -> int:
    return max(config.read_queue_nums, config.write_queue_nums) if config is not None else 0
