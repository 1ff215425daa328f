"""Pure. SubscriptionGroups: consumer groups, their permissions and their request modes."""

from collections.abc import Callable

import msgspec

from skylark.broker.error_replies import full, invalid_parameter, system_error
from skylark.broker.metadata_json import Encode, decode_metadata, encode_metadata, next_version
from skylark.broker.topics import GROUP_ATTRIBUTES, altered
from skylark.model import names
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import (
    DataVersion,
    RequestMode,
    RequestModeTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from skylark.settings import BrokerSettings
from skylark.settings.broker import RequestKind
from skylark.settings.live import LiveSettings

# Administrators may give groups any name, as in RocketMQ. Not all make a topic, and consume.
GROUP_CHARS_MAX = 255
READ_FORBIDDEN = 1 << 2


class SubscriptionGroups:
    """All groups by name. Configs are values: a change puts a new one in place of the old."""

    def __init__(self, live: LiveSettings[BrokerSettings], *, now_ms: int) -> None:
        self.data_version = DataVersion(timestamp=now_ms)
        self._live = live
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change, for the file to be written."""
        self._forbidden: dict[str, dict[str, int]] = {}
        self._groups = {group: SubscriptionGroupConfig(group_name=group) for group in names.SYSTEM_GROUPS}

    # --- Questions ---

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        return self._groups.get(group)

    def all(self) -> list[SubscriptionGroupConfig]:
        return list(self._groups.values())

    def is_readable(self, group: str, topic: str) -> bool:
        """Return whether administrators allow a group to read a topic."""
        return not self._forbidden.get(group, {}).get(topic, 0) & READ_FORBIDDEN

    def table(self) -> SubscriptionGroupTable:
        return SubscriptionGroupTable(
            subscription_group_table=dict(self._groups),
            forbidden_table={group: dict(topics) for group, topics in self._forbidden.items()},
            data_version=self.data_version,
        )

    # --- Changes ---

    def find(self, group: str, *, now_ms: int) -> SubscriptionGroupConfig | None:
        """Return a group, created if missing and if the settings allow automatic creation."""
        config = self._groups.get(group)
        if config is not None:
            return config
        settings = self._live.current
        is_system = group.startswith(names.SYSTEM_GROUP_PREFIX) and settings.create_system_groups
        if not (settings.auto_create_groups or is_system):
            return None
        if names.group_name_error(group) is not None or len(self._groups) >= settings.groups_max:
            return None
        config = SubscriptionGroupConfig(group_name=group)
        self._groups[group] = config
        self._bump(now_ms)
        return config

    def update(self, *wanted: SubscriptionGroupConfig, now_ms: int) -> None:
        """Make or change groups, all of them or none. Their attributes are changes: `+name`, `-name`.

        Raises BrokerError 29 or 1; nothing is changed then.
        """
        configs = {config.group_name: self._updated(config) for config in wanted}
        groups_max = self._live.current.groups_max
        if len(configs.keys() | self._groups.keys()) > max(groups_max, len(self._groups)):
            raise full("consumer groups", groups_max)
        for group, config in configs.items():
            if self._groups.get(group) != config:
                self._groups[group] = config
                self._bump(now_ms)

    def delete(self, group: str, *, now_ms: int) -> bool:
        """Delete a group and its forbidden topics; False if it did not exist."""
        forbade = self._forbidden.pop(group, None) is not None
        removed = self._groups.pop(group, None) is not None
        if forbade or removed:
            self._bump(now_ms)
        return removed

    def set_readable(self, group: str, topic: str, readable: bool, *, now_ms: int) -> None:
        """Forbid a group to read a topic, or allow it again. Raises BrokerError if too much is forbidden."""
        if self.is_readable(group, topic) == readable:
            return
        if not readable:
            self._check_forbidden_room()
        topics = self._forbidden.setdefault(group, {})
        topics[topic] = topics.get(topic, 0) ^ READ_FORBIDDEN
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._forbidden[group]
        self._bump(now_ms)

    def follow(self, master: SubscriptionGroupTable) -> None:
        """Copy the master's table."""
        self._groups = dict(master.subscription_group_table)
        self._forbidden = master.forbidden_table
        self.data_version = master.data_version
        self.on_change()

    # --- The file ---

    def snapshot(self) -> Encode:
        """Return an encoder of the current table."""
        members = {
            "dataVersion": self.data_version,
            "forbiddenTable": {group: dict(topics) for group, topics in self._forbidden.items()},
            "subscriptionGroupTable": dict(self._groups),
        }
        return lambda: encode_metadata(members).replace(b'"subscriptionDataSet":null,', b"")

    def load(self, data: bytes) -> None:
        """Load subscriptionGroup.json over the built-in groups. Raises ValueError."""
        table = decode_metadata(data, SubscriptionGroupTable)
        self._groups.update(table.subscription_group_table)
        self._forbidden = table.forbidden_table
        self.data_version = table.data_version

    # --- Inside ---

    def _bump(self, now_ms: int) -> None:
        self.data_version = next_version(self.data_version, now_ms)
        self.on_change()

    def _updated(self, wanted: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        if not wanted.group_name.strip():
            raise invalid_parameter("The specified group is blank.")
        if len(wanted.group_name) > GROUP_CHARS_MAX:
            raise invalid_parameter("The specified group is longer than group max length.")
        queues_max = self._live.current.topic_queues_max
        if wanted.retry_queue_nums > queues_max:
            raise invalid_parameter(
                f"retryQueueNums is {wanted.retry_queue_nums}, allowed is up to {queues_max}"
            )
        current = self._groups.get(wanted.group_name)
        attributes = altered(
            current.attributes if current is not None else None, wanted.attributes, GROUP_ATTRIBUTES
        )
        return msgspec.structs.replace(wanted, attributes=attributes)

    def _check_forbidden_room(self) -> None:
        limit = self._live.current.groups_max
        if sum(map(len, self._forbidden.values())) >= limit:
            raise full("forbidden pairs of a group and a topic", limit)


PULL, POP = RequestKind.PULL.value, RequestKind.POP.value


class RequestModes:
    """Modes by topic and group; without one, the settings decide."""

    def __init__(self, live: LiveSettings[BrokerSettings]) -> None:
        self._live = live
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change, for the file to be written."""
        self._modes: dict[str, dict[str, RequestMode]] = {}

    def set(self, mode: RequestMode) -> None:
        """Raises BrokerError 1 for an unknown mode, or at the limit of modes."""
        if mode.mode not in (PULL, POP):
            raise system_error(f"mode {mode.mode} is not known, allowed are {PULL} and {POP}")
        limit = self._live.current.groups_max
        if mode.consumer_group not in self._modes.get(mode.topic, {}) and len(self) >= limit:
            raise full("pairs of a topic and a group with a mode", limit)
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self.on_change()

    def get(self, topic: str, group: str) -> RequestMode:
        """Return how a group gets the messages of a topic; retry topics are always pulled."""
        if topic.startswith(RETRY_TOPIC_PREFIX):
            return RequestMode(topic=topic, consumer_group=group)
        settings = self._live.current.pop
        return self._modes.get(topic, {}).get(group) or RequestMode(
            topic=topic,
            consumer_group=group,
            mode=settings.default_mode.value,
            pop_share_queue_num=settings.default_share_queues,
        )

    def __len__(self) -> int:
        return sum(map(len, self._modes.values()))

    def table(self) -> RequestModeTable:
        return RequestModeTable(
            message_request_mode_map={topic: dict(groups) for topic, groups in self._modes.items()}
        )

    def follow(self, master: RequestModeTable) -> None:
        """Copy the master's table."""
        if self._modes != master.message_request_mode_map:
            self._modes = master.message_request_mode_map
            self.on_change()

    def snapshot(self) -> Encode:
        """Return an encoder of the current modes."""
        table = self.table()
        return lambda: encode_metadata(table)

    def load(self, data: bytes) -> None:
        """Load messageRequestMode.json. Raises ValueError."""
        self._modes = decode_metadata(data, RequestModeTable).message_request_mode_map
