"""LiteSubscriptions: which client of which group wants which lite topics, and which may have messages for it.

A light queue that gets a message becomes an event of every client that subscribes it; one client of each
group is woken. An event stays until the group has consumed the queue, so that none is lost with a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from skylark.broker.error_replies import illegal_operation
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.offsets import ConsumerOffsets
from skylark.clock import Clock
from skylark.errors import BrokerError
from skylark.model.lite_topic import (
    BIND_TOPIC,
    EXCLUSIVE,
    LIGHT_QUEUE_ID,
    RESET_EXCLUDED,
    RESET_UNSUBSCRIBED,
    SUB_MODEL,
    WILDCARD,
    light_queue_of,
    parse_light_queue,
)
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.lite import (
    COMPLETE_ADD,
    COMPLETE_REMOVE,
    OFFSET,
    PARTIAL_ADD,
    PARTIAL_REMOVE,
    POLICY,
    POLICY_MAX,
    POLICY_MIN,
    TAIL_N,
    LiteSubscriber,
    LiteSubscriptionChange,
    NotifyUnsubscribeLite,
    OffsetOption,
)
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import AppendedBatch, AppendedRecord, ReadRecords
from skylark.store.message_store import MessageStore

FROM_FIRST = OffsetOption(POLICY, POLICY_MIN)
EVERYBODY = "*"
"""Client id that stands for all clients of a group with the wildcard."""


class LiteClient:
    """A client of a group, with the light queues that it subscribes."""

    def __init__(self, client_id: str, group: str, topic: str, now: float) -> None:
        self.client_id = client_id
        self.group = group
        self.topic = topic
        self.queues: set[str] = set()
        self.events: dict[str, None] = {}
        """Light queues that may have messages for it, in the order in which they are visited."""
        self.peer: Peer | None = None
        self.changed_at = now
        self.accessed_ms = -1


class LiteSubscriptions:
    """Loop thread."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        store: MessageStore,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
    ) -> None:
        self._live = live
        self._clock = clock
        self._store = store
        self._groups = groups
        self._offsets = offsets
        self.clients: dict[str, LiteClient] = {}
        self._by_queue: dict[str, dict[LiteClient, None]] = {}
        self._wildcards: dict[str, dict[LiteClient, None]] = {}
        """Clients of groups with the wildcard, by parent topic."""
        self.wake: Callable[[LiteClient], bool] = lambda client: False
        """Resumes a held pop of a client; False if it has none."""
        self.count = 0
        """Pairs of a client and a light queue."""
        self.was_used = False
        """Whether any client has ever subscribed."""

    # --- Changes by clients ---

    def change(self, change: LiteSubscriptionChange, peer: Peer) -> None:
        """Raises BrokerError."""
        if not (change.client_id.strip() and change.group.strip() and change.topic.strip()):
            return
        names = [light_queue_of(change.topic, each) for each in change.lite_topic_set or ()]
        if change.action == COMPLETE_REMOVE:
            client = self.clients.get(change.client_id)
            if client is not None and client.group == change.group:
                self.remove(change.client_id)
        elif change.action == PARTIAL_REMOVE:
            self._remove_some(self._client(change, peer), names)
        elif change.action in (PARTIAL_ADD, COMPLETE_ADD):
            config = self._groups.get(change.group)
            if config is None or not config.consume_enable:
                raise illegal_operation("Consumer group is not allowed to consume.")
            is_wildcard = WILDCARD in config.attributes
            if change.action == PARTIAL_ADD:
                self._check_room(self.count)
                if is_wildcard:
                    raise illegal_operation("subscribe lite operation is not supported for this group")
                self._add_some(self._client(change, peer), names, change.offset_option)
            else:
                self._replace(self._client(change, peer), names, is_wildcard=is_wildcard)
        else:
            raise illegal_operation(f"unknown action {change.action!r}")

    def _check_room(self, count: int) -> None:
        most = self._live.current.lite.subscriptions_max
        if count >= most:
            raise BrokerError.for_code(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded {most}"
            )

    def _client(self, change: LiteSubscriptionChange, peer: Peer) -> LiteClient:
        now = self._clock.monotonic()
        client = self.clients.get(change.client_id)
        if client is None or (client.group, client.topic) != (change.group, change.topic):
            self.remove(change.client_id)
            self._check_room(len(self.clients))
            client = LiteClient(change.client_id, change.group, change.topic, now)
            self.was_used = True
            self.clients[change.client_id] = client
        client.peer = peer
        client.changed_at = now
        return client

    def _add_some(self, client: LiteClient, names: Iterable[str], option: OffsetOption | None) -> None:
        is_exclusive = self._attribute(client.group, SUB_MODEL) == EXCLUSIVE
        for name in names:
            if is_exclusive:
                self._exclude_others(client, name)
            if option is not None:
                self._reset(name, client.group, option)
            self._add(client, name)

    def _replace(self, client: LiteClient, names: list[str], *, is_wildcard: bool) -> None:
        if is_wildcard:
            of_topic = self._wildcards.setdefault(client.topic, {})
            if client not in of_topic:
                of_topic[client] = None
                self.count += 1
                self.look_again(client)
            return
        for name in client.queues.difference(names):
            self._drop(client, name)
        for name in names:
            self._check_room(self.count)
            self._add(client, name)

    def _add(self, client: LiteClient, name: str) -> None:
        if name in client.queues:
            return
        client.queues.add(name)
        self._by_queue.setdefault(name, {})[client] = None
        self.count += 1
        self._note(client, name)

    def _remove_some(self, client: LiteClient, names: Iterable[str]) -> None:
        resets = self._attribute(client.group, RESET_UNSUBSCRIBED) == "true"
        for name in names:
            if name in client.queues:
                self._drop(client, name)
                if resets:
                    self._reset(name, client.group, FROM_FIRST)

    def _exclude_others(self, client: LiteClient, name: str) -> None:
        """Take a lite topic from the other clients of a group, and tell them."""
        resets = self._attribute(client.group, RESET_EXCLUDED) == "true"
        for other in [each for each in self._by_queue.get(name, ()) if each.group == client.group]:
            if other is client:
                continue
            self._drop(other, name)
            place = parse_light_queue(name)
            if other.peer is not None and not other.peer.is_closed and place is not None:
                other.peer.notify(NotifyUnsubscribeLite(place[1], other.group, other.client_id))
            if resets:
                self._reset(name, client.group, FROM_FIRST)

    def remove(self, client_id: str) -> None:
        """Forget a client. What it was to consume is left to the others of its group."""
        client = self.clients.pop(client_id, None)
        if client is None:
            return
        events = list(client.events)
        for name in list(client.queues):
            self._drop(client, name)
        of_topic = self._wildcards.get(client.topic, {})
        if client in of_topic:
            del of_topic[client]
            self.count -= 1
            if not of_topic:
                del self._wildcards[client.topic]
        for name in events:
            self.arrived(name, client.group)

    def _drop(self, client: LiteClient, name: str) -> None:
        client.queues.discard(name)
        client.events.pop(name, None)
        self.count -= 1
        subscribers = self._by_queue[name]
        del subscribers[client]
        if not subscribers:
            del self._by_queue[name]

    def forget(self, name: str) -> None:
        """Drop the subscriptions of a light queue that is deleted."""
        for client in list(self._by_queue.get(name, ())):
            self._drop(client, name)

    def expire(self) -> None:
        """Forget clients that have not said for long which lite topics they want."""
        oldest = self._clock.monotonic() - self._live.current.lite.subscription_expiry_ms / 1000
        for client in [each for each in self.clients.values() if each.changed_at < oldest]:
            self.remove(client.client_id)

    def _attribute(self, group: str, name: str) -> str | None:
        config = self._groups.get(group)
        return None if config is None else config.attributes.get(name)

    def _reset(self, name: str, group: str, option: OffsetOption) -> None:
        """Let a group begin elsewhere in a light queue. A timestamp changes nothing, as in RocketMQ."""
        current = self._offsets.query(name, group, LIGHT_QUEUE_ID)
        target: int | None = None
        if option.type == POLICY and option.value == POLICY_MIN:
            target = 0
        elif option.type == POLICY and option.value == POLICY_MAX:
            target = self._store.max_offset(name, LIGHT_QUEUE_ID)
        elif option.type == OFFSET:
            target = option.value
        elif option.type == TAIL_N and current is not None:
            target = max(current - option.value, 0)
        if target is not None and target != current:
            self._offsets.reset(name, group, {LIGHT_QUEUE_ID: target})

    # --- Events ---

    def arrived_in(self, batch: Iterable[AppendedRecord]) -> None:
        """Note the light queues of new messages."""
        if isinstance(batch, AppendedBatch | ReadRecords):
            return
        for placed in batch:
            if placed.light is not None:
                self.arrived(placed.light.queue.topic)

    def arrived(self, name: str, group: str | None = None) -> None:
        """Note that a light queue may have messages, for all groups or this one, and wake one client each."""
        woken: set[str] = set()
        for client in self.subscribers(name):
            if group is None or client.group == group:
                client.events[name] = None
                if client.group not in woken and self.wake(client):
                    woken.add(client.group)

    def subscribers(self, name: str) -> list[LiteClient]:
        """Return the clients that get messages of a light queue."""
        place = parse_light_queue(name)
        wildcards = self._wildcards.get(place[0], ()) if place is not None else ()
        return [*self._by_queue.get(name, ()), *wildcards]

    def look_again(self, client: LiteClient) -> None:
        """Note every light queue of a client that may have messages."""
        names: Iterable[str] = client.queues
        if client in self._wildcards.get(client.topic, ()):
            names = self._store.queues.light_queues(client.topic)
        for name in list(names):
            self._note(client, name)

    def _note(self, client: LiteClient, name: str) -> None:
        if self._store.max_offset(name, LIGHT_QUEUE_ID) > 0:
            client.events[name] = None
            self.wake(client)

    # --- Questions ---

    def parents(self) -> dict[str, list[str]]:
        """Return the groups of each parent topic."""
        found: dict[str, list[str]] = {}
        for config in self._groups.all():
            topic = config.attributes.get(BIND_TOPIC)
            if topic:
                found.setdefault(topic, []).append(config.group_name)
        return found

    def subscriber_infos(self, name: str) -> list[LiteSubscriber]:
        """Return the subscribers of a light queue; a group with the wildcard once."""
        by_name = [LiteSubscriber(each.client_id, each.group) for each in self._by_queue.get(name, ())]
        place = parse_light_queue(name)
        wildcards = {each.group for each in self._wildcards.get(place[0], ())} if place is not None else set()
        return by_name + [LiteSubscriber(EVERYBODY, group) for group in sorted(wildcards)]
