"""The fast path of pulls: a consumer asks the same again and again, and only its offset moves on.

What the checks of a pull came to is kept as a plan, for a moment and as long as nothing changes that they
looked at. A pull that has one is answered with a run of the newest messages, or by the general path after
all; the bytes are the same, and a property test holds them so.
"""

from __future__ import annotations

from typing import NamedTuple

from skylark.broker.filters import Subscription
from skylark.broker.state import BrokerState
from skylark.protocol.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import TypedCommand, prefix
from skylark.protocol.replies import pull_reply_template
from skylark.protocol.requests.pull import PULL_COMMIT_OFFSET, PullMessage
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.reading import GetStatus

PLAN_S = 1.0
"""How long a plan is believed in. What the general path does now and then, such as to note that a group is
there, it does that often."""
PLANS_MAX = 4096

# Topic, queue id, group, system flag, subscription, its type and version, code: what the checks go by.
Asked = tuple[str, int, str, int, str | None, str | None, int, int]


class Grounds(NamedTuple):
    """What the checks of all pulls looked at: as long as it is the same, they come to the same."""

    settings: BrokerSettings
    topics: DataVersion
    groups: DataVersion
    consumers: int


class PullPlan(NamedTuple):
    """How to answer pulls that ask for the same."""

    until: float
    queue: ConsumeQueue
    count_max: int
    bytes_max: int
    header: bytes


class PullPlans:
    """The plans of one broker. Loop thread."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker
        self._read = broker.store.reader.recent.read
        self._plans: dict[Asked, PullPlan] = {}
        self._grounds = self._look()

    def answer(self, peer: Peer, command: TypedCommand[PullMessage], *, commits: bool) -> bool:
        """Answer a pull if there is a plan for it and messages are at hand; False if there is more to it.

        `commits`: the offset that came along is to be taken. Raises what reading does.
        """
        request, broker = command.request, self._broker
        plan = self._plans.get(_asked(command))
        if plan is None or command.flag or request.bulk_bytes or broker.offsets.has_resets:
            return False
        until, queue, count_max, bytes_max, header = plan
        if broker.clock.monotonic() >= until or not self._holds():
            return False
        topic, group, queue_id, queue_offset = (
            request.topic, request.consumer_group, request.queue_id, request.queue_offset,
        )  # fmt: skip
        if broker.store.queues.get((topic, queue_id)) is not queue:
            return False
        run = self._read(queue, queue_offset, max(min(request.max_msg_nums, count_max), 1), bytes_max)
        if run is None:
            return False
        low, high, count, size, parts = run
        next_offset = queue_offset + count
        broker.offsets.note_pull(topic, group, queue_id, next_offset)
        if commits and request.sys_flag & PULL_COMMIT_OFFSET:
            broker.commit_offset(topic, group, queue_id, request.commit_offset)
        head = header % (next_offset, high, low, command.opaque)
        peer.write_parts((prefix(len(head), size), head, *parts), 8 + len(head) + size)
        broker.stats.count_gets(topic, group, count, size)
        return True

    def make(
        self,
        command: TypedCommand[PullMessage],
        subscription: Subscription,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
    ) -> None:
        """Keep what the checks of a pull have just come to, if others may rely on it."""
        broker, request = self._broker, command.request
        if (
            subscription.tags_filter is not None
            or subscription.selector is not None
            or broker.role.is_slave
            or broker.live.current.reject_pull_consumers
        ):
            return
        if not self._holds() or len(self._plans) >= PLANS_MAX:
            self._plans.clear()
            self._grounds = self._look()
        settings = broker.live.current
        self._plans[_asked(command)] = PullPlan(
            broker.clock.monotonic() + PLAN_S,
            broker.store.queue(request.topic, request.queue_id),
            settings.store.transfer_count_in_memory,
            settings.store.transfer_bytes_in_memory,
            pull_reply_template(
                code=ResponseCode.SUCCESS,
                remark=GetStatus.FOUND.name,
                # Who reads the newest messages is not too slow for the master.
                suggest_which_broker_id=group.broker_id if settings.slave_read else 0,
                topic_sys_flag=topic.topic_sys_flag,
                group_sys_flag=group.group_sys_flag,
            ),
        )

    def _look(self) -> Grounds:
        broker = self._broker
        return Grounds(
            broker.live.current,
            broker.topics.data_version,
            broker.groups.data_version,
            broker.consumers.changes,
        )

    def _holds(self) -> bool:
        settings, topics, groups, consumers = self._grounds
        broker = self._broker
        return (
            settings is broker.live.current
            and topics is broker.topics.data_version
            and groups is broker.groups.data_version
            and consumers == broker.consumers.changes
        )


def _asked(command: TypedCommand[PullMessage]) -> Asked:
    request = command.request
    return (
        request.topic, request.queue_id, request.consumer_group, request.sys_flag, request.subscription,
        request.expression_type, request.sub_version, command.code,
    )  # fmt: skip
