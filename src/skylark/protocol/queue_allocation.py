"""Pure. Readable queues of a topic and the strategies that divide them among the members of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from skylark.protocol.bodies import PERM_READ, MessageQueue, QueueData, TopicRouteData

ALL_QUEUES = -1


def read_queues(topic: str, data: TopicRouteData) -> Iterator[MessageQueue]:
    """Yield the readable queues. A broker with only a slave left stays readable."""
    for queues in sorted(data.queue_datas, key=_broker_name):
        if queues.perm & PERM_READ:
            for queue_id in range(queues.read_queue_nums):
                yield MessageQueue(topic, queues.broker_name, queue_id)


def averagely(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Consecutive ranges; the first members get one queue more. 8 queues, 3 members: 0-2, 3-5, 6-7."""
    share, extra = divmod(len(queues), len(members))
    index = members.index(me)
    start = index * share + min(index, extra)
    return list(queues[start : start + share + (index < extra)])


def averagely_by_circle(
    me: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Round robin. 8 queues, 3 members: 0 3 6, 1 4 7, 2 5."""
    return list(queues[members.index(me) :: len(members)])


Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]


def shared_queues(
    me: str, queues: Sequence[MessageQueue], members: Sequence[str], strategy: Allocate, share: int
) -> list[MessageQueue]:
    """Return the queues that a member pops: its own and those of the next `share` members.

    Without a share, or one that covers all members, that is every queue of each broker, written as -1.
    """
    if share <= 0 or share >= len(members) - 1:
        brokers = dict.fromkeys(queue.broker_name for queue in queues)
        return [MessageQueue(queues[0].topic, broker, ALL_QUEUES) for broker in brokers]
    index = members.index(me)
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    sharers = [members[(index + step) % len(members)] for step in range(share + 1)]
    return [queue for member in sharers for queue in strategy(member, queues, members)]


def _broker_name(entry: QueueData) -> str:
    return entry.broker_name
