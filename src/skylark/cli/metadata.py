"""Topics and groups as a file, in the format of `mqadmin exportMetadata`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import field

from skylark.admin.admin import Admin
from skylark.admin.results import Group, Topic
from skylark.cli.errors import UsageError
from skylark.cli.options import in_parallel
from skylark.errors import RemoteProtocolError
from skylark.protocol.bodies import Body, SubscriptionGroupConfig, TopicConfig, decode_body

BATCH_MAX = 1000
"""Topics or groups in one request."""
ATTRIBUTE_ADDED = "+"


class Metadata(Body):
    """Topics and groups by their names."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)


def gather(admin: Admin, *, cluster: str | None, broker: str | None) -> Metadata:
    """The topics and groups of all masters, a cluster, or one broker, without built-in ones.

    If settings of a topic differ between brokers, those with the most queues count. Raises RemotingError or
    BrokerError if any broker fails.
    """
    nodes = admin.brokers.nodes(cluster=cluster)
    brokers = [broker] if broker else [node.address for node in nodes if node.is_master]
    topics, groups = set(admin.overview.topic_names()), set(admin.overview.group_names())
    found = Metadata()
    for table in in_parallel(admin.topics.on_broker, brokers):
        for topic in table:
            known = found.topic_config_table.get(topic.name)
            if topic.name in topics and (known is None or known.read_queue_nums < topic.read_queues):
                found.topic_config_table[topic.name] = topic.to_config()
    for members in in_parallel(admin.groups.on_broker, brokers):
        for group in members:
            if group.name in groups:
                found.subscription_group_table.setdefault(group.name, group.to_config())
    return found


def to_text(found: Metadata) -> str:
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def parse(data: bytes, name: str) -> tuple[list[Topic], list[Group]]:
    """From a file of `to_text` or `mqadmin exportMetadata`, or a list for `mqadmin updateTopicList` or
    `updateSubGroupList`. Raises UsageError.
    """
    try:
        if data.lstrip()[:1] == b"[":
            found = Metadata()
            for item in decode_body(data, list[dict[str, Any]]):
                if "groupName" in item:
                    group = msgspec.convert(item, SubscriptionGroupConfig, strict=False)
                    found.subscription_group_table[group.group_name] = group
                else:
                    topic = msgspec.convert(item, TopicConfig, strict=False)
                    found.topic_config_table[topic.topic_name] = topic
        else:
            found = decode_body(data, Metadata)
    except (RemoteProtocolError, msgspec.ValidationError) as error:
        raise UsageError(f"{name} is not a file of `skylark cluster export`: {error}") from None
    topics = [_plain(Topic.read(config)) for config in found.topic_config_table.values()]
    return topics, [Group.read(config) for config in found.subscription_group_table.values()]


def _plain(topic: Topic) -> Topic:
    """Lists for `mqadmin updateTopicList` write attributes as changes: `+name`."""
    names = {name.removeprefix(ATTRIBUTE_ADDED): value for name, value in topic.attributes.items()}
    return replace(topic, attributes=names)


def create_in_batches(create: Callable[..., None], items: Iterable[Any], **where: str | None) -> None:
    """Create topics or groups, BATCH_MAX per request. Raises BadName, SomeServersFailed."""
    left = list(items)
    while left:
        create(left[:BATCH_MAX], **where)
        left = left[BATCH_MAX:]
