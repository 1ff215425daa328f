"""The fast path of pulls: a consumer asks the same again and again, and only its offset moves on.

What the checks of a pull came to is kept as a plan, for a moment and as long as nothing changes that they
looked at. A pull that has one is answered with a run of the newest messages, or by the general path after
all; the bytes are the same, and a property test holds them so.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from skylark.broker.filters import Subscription
from skylark.broker.state import BrokerState
from skylark.protocol.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import PREFIX_BYTES, Buffer, TypedCommand, prefix
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

Pull = TypedCommand[PullMessage]

# Topic, queue id, group, system flag, subscription, its type and version, code: what the checks go by.
Asked = tuple[str, int, str, int, str | None, str | None, int, int]
_ASKED = attrgetter(
    "topic", "queue_id", "consumer_group", "sys_flag", "subscription", "expression_type", "sub_version"
)


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
        self._recent = broker.store.reader.recent
        self._plans: dict[Asked, PullPlan] = {}
        self._grounds = self._look()

    def answer(self, peer: Peer, command: Pull, *, commits: bool) -> bool:
        """Answer a pull if there is a plan for it and messages are at hand; False if there is more to it.

        `commits`: the offset that came along is to be taken. Raises what reading does.
        """
        plan, request = self._plan_of(command), command.request
        if plan is None:
            return False
        count = max(min(request.max_msg_nums, plan.count_max), 1)
        run = self._recent.read(plan.queue, request.queue_offset, count, plan.bytes_max)
        if run is None:
            return False
        low, high, count, size, parts = run
        next_offset = request.queue_offset + count
        self._note([request], next_offset, count, size, commits=commits)
        head = plan.header % (next_offset, high, low, command.opaque)
        head = prefix(len(head), size) + head
        peer.write_parts((head, *parts), len(head) + size)
        return True

    def answer_run(self, peer: Peer, commands: Sequence[Pull]) -> int:
        """Answer pulls that came together if each goes on where the last one ends; return how many it were.

        What they ask for is read at once, and their answers leave together. Raises what reading does.
        """
        first = commands[0].request
        if commands[1].request.queue_offset != first.queue_offset + first.max_msg_nums:
            return 0
        plan = self._plan_of(commands[0])
        if plan is None:
            return 0
        counts = _counts(commands, plan.count_max)
        runs = self._recent.read_each(plan.queue, first.queue_offset, counts, plan.bytes_max)
        if not runs:
            return 0
        header, next_offset = plan.header, first.queue_offset
        answers: list[Buffer] = []
        heads_bytes = records_bytes = 0
        for command, (low, high, count, size, parts) in zip(commands, runs, strict=False):
            next_offset += count
            head = header % (next_offset, high, low, command.opaque)
            answers.append(prefix(len(head), size) + head)
            answers += parts
            heads_bytes += PREFIX_BYTES + len(head)
            records_bytes += size
        requests = [command.request for command in commands[: len(runs)]]
        self._note(requests, next_offset, next_offset - first.queue_offset, records_bytes, commits=True)
        peer.write_parts(answers, heads_bytes + records_bytes)
        return len(runs)

    def _plan_of(self, command: Pull) -> PullPlan | None:
        """The plan for a pull, if it can be relied on."""
        request, broker = command.request, self._broker
        plan = self._plans.get(_asked(command))
        if plan is None or command.flag or request.bulk_bytes:
            return None
        if broker.offsets.has_reset(request.topic, request.consumer_group):
            return None
        if broker.clock.monotonic() >= plan.until or not self._holds():
            return None
        return plan if broker.store.queues.get((request.topic, request.queue_id)) is plan.queue else None

    def _note(
        self, requests: Sequence[PullMessage], next_offset: int, count: int, size: int, *, commits: bool
    ) -> None:
        """Note what pulls that ask the same take together, and where they end."""
        first, broker = requests[0], self._broker
        topic, group, queue_id = first.topic, first.consumer_group, first.queue_id
        broker.offsets.note_pull(topic, group, queue_id, next_offset)
        if commits and first.sys_flag & PULL_COMMIT_OFFSET:
            for request in requests:
                broker.commit_offset(topic, group, queue_id, request.commit_offset)
        broker.stats.count_gets(topic, group, count, size, pulls=len(requests))

    def make(
        self,
        command: Pull,
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


def _counts(commands: Sequence[Pull], count_max: int) -> list[int]:
    """How many messages each pull asks for, as long as they go on one behind the other and ask the same."""
    code, asked = commands[0].code, _ASKED(commands[0].request)
    counts, place = list[int](), commands[0].request.queue_offset
    for command in commands:
        request = command.request
        count = request.max_msg_nums
        if (
            request.queue_offset != place
            or not 0 < count <= count_max
            or command.flag
            or command.code != code
            or request.bulk_bytes
            or _ASKED(request) != asked
        ):
            break
        counts.append(count)
        place += count
    return counts


def _asked(command: Pull) -> Asked:
    return (*_ASKED(command.request), command.code)
