"""Pure. Lite topics: many small topics of one parent topic, each with a light queue of its own.

A message of a lite topic is a record of its parent. Its properties name the light queue, whose only queue
has id 0, and the offset there; the entry of the light queue points to the same record.
"""

from __future__ import annotations

import re

from skylark.model.message import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_LIGHT_OFFSETS,
    PROPERTY_LIGHT_QUEUES,
    PROPERTY_SEPARATOR,
    decode_properties,
)

SEPARATOR = "$"
LIGHT_PREFIX = "%LMQ%"
"""Prefix of all light queues, also of those that are no lite topics."""
LITE_PREFIX = LIGHT_PREFIX + SEPARATOR
LIGHT_QUEUE_ID = 0
LIGHT_OFFSETS_NAME = f"{PROPERTY_LIGHT_OFFSETS}{NAME_VALUE_SEPARATOR}".encode()
_LITE_NAME = re.compile(r"[A-Za-z0-9_-]+")


def light_queue_of(parent: str, lite_topic: str) -> str:
    """Return the name of a lite topic's light queue."""
    return f"{LITE_PREFIX}{parent}{SEPARATOR}{lite_topic}"


def parse_light_queue(name: str) -> tuple[str, str] | None:
    """Return parent and lite topic of a light queue; None if it is not of a lite topic."""
    if not name.startswith(LITE_PREFIX):
        return None
    parts = name[len(LITE_PREFIX) :].split(SEPARATOR)
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else None


def lite_name_error(lite_topic: str, bytes_max: int) -> str | None:
    """Return why a lite topic cannot have this name, or None."""
    if not lite_topic.strip():
        return "lite topic cannot be the char sequence of whitespace"
    if len(lite_topic.encode()) > bytes_max:
        return f"lite topic exceed the max size {bytes_max}"
    if _LITE_NAME.fullmatch(lite_topic) is None:
        return "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"
    return None


def light_properties(queue: str, queue_offset: int) -> bytes:
    """Return the properties by which a record is in a light queue, too."""
    text = f"{PROPERTY_LIGHT_QUEUES}{NAME_VALUE_SEPARATOR}{queue}{PROPERTY_SEPARATOR}"
    return text.encode() + b"%b%d\x02" % (LIGHT_OFFSETS_NAME, queue_offset)


def light_place(topic: str, properties: bytes) -> tuple[str, int] | None:
    """Return the light queue of a record and its offset there; None if it is in none of its own topic.

    Clients may set these properties, too: a queue of another topic never counts.
    """
    if LIGHT_OFFSETS_NAME not in properties:
        return None
    known = decode_properties(properties)
    name, text = known.get(PROPERTY_LIGHT_QUEUES, ""), known.get(PROPERTY_LIGHT_OFFSETS, "")
    place = parse_light_queue(name)
    if place is None or place[0] != topic or not (text.isascii() and text.isdecimal()):
        return None
    return name, int(text)


LITE = "LITE"
"""Value of a parent topic's attribute `message.type`."""
EXPIRATION = "lite.topic.expiration"
"""Attribute of a parent topic: minutes without a message after which a lite topic is deleted; -1 never."""
BIND_TOPIC = "lite.bind.topic"
"""Attribute of a group: the parent topic whose lite topics it consumes."""
SUB_MODEL = "lite.sub.model"
EXCLUSIVE, SHARED = "Exclusive", "Shared"
RESET_EXCLUDED = "lite.sub.reset.offset.exclusive"
"""Attribute of a group: a client that takes a lite topic from another one begins at its first message."""
RESET_UNSUBSCRIBED = "lite.sub.reset.offset.unsubscribe"
"""Attribute of a group: a lite topic that a client has unsubscribed begins at its first message again."""
CLIENT_QUOTA = "lite.sub.client.quota"
CLIENT_QUOTA_DEFAULT = 2000
CLIENT_EVENTS = "lite.sub.client.max.event.cnt"
WILDCARD = "lite.sub.wildcard"
"""Attribute of a group whose clients get the messages of all lite topics of its parent."""
