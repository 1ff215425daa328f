"""Pure. Replies to request messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skylark.client.received_message import ReceivedMessage
from skylark.errors import BadMessage
from skylark.model.message import (
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_REPLY_TO,
    PROPERTY_TTL,
    Message,
)

REPLY_TYPE = "reply"
REPLY_TOPIC = "{cluster}_REPLY_TOPIC"


class Reply(Message, frozen=True, gc=False, kw_only=True):
    """The reply to a request message, made by `reply`. It is sent like any message, but goes to who asked.

    `broker_name` is the broker that had the request: who asked is connected to it.
    """

    broker_name: str
    correlation_id: str
    reply_to: str
    ttl: str | None

    def system_properties(self) -> list[tuple[str, str]]:
        """What tells brokers and the asker what this is."""
        pairs = [
            (PROPERTY_MESSAGE_TYPE, REPLY_TYPE),
            (PROPERTY_CORRELATION_ID, self.correlation_id),
            (PROPERTY_REPLY_TO, self.reply_to),
        ]
        return pairs if self.ttl is None else [*pairs, (PROPERTY_TTL, self.ttl)]


def reply(
    request: ReceivedMessage,
    body: bytes,
    *,
    tags: str | None = None,
    keys: Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Reply:
    """Return the reply to a request message; any producer sends it.

    >>> @consumer.subscribe("questions")
    ... def answer(messages):
    ...     for message in messages:
    ...         producer.send(reply(message, b"42"))

    `send` then raises SendFailed, with code 1, if nobody waits any more: do not try again. Raises BadMessage
    for a message that wants no reply (`message.wants_reply` tells).
    """
    found = request.properties
    for name in (PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO):
        if name not in found:
            raise BadMessage(
                request.topic, f"it is no request, as it has no property {name}: see wants_reply"
            )
    cluster = found.get(PROPERTY_CLUSTER)
    if cluster is None:
        reason = "create reply message fail, requestMessage error, property[CLUSTER] is null."
        raise BadMessage(request.topic, reason)
    return Reply(
        topic=REPLY_TOPIC.format(cluster=cluster),
        body=body,
        tags=tags,
        keys=keys,
        properties=properties or {},
        broker_name=request.broker_name,
        correlation_id=found[PROPERTY_CORRELATION_ID],
        reply_to=found[PROPERTY_REPLY_TO],
        ttl=found.get(PROPERTY_TTL),
    )
