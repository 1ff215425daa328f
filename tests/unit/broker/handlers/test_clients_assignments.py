"""Queues that the broker divides among the members of a group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from skylark.broker.clients import ConnectedClient as Member
from skylark.protocol.bodies import (
    AssignmentRequest,
    Assignments,
    MessageQueue,
    QueueData,
    TopicRouteData,
    decode_body,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.requests.client import QueryAssignment
from tests.support.broker import consumer
from tests.unit.broker.handlers.rig import Rig, rigged
from tests.unit.broker.tables import answers, golden_config

ROUTE = TopicRouteData(
    queue_datas=[
        QueueData(broker_name="broker-b", read_queue_nums=2, write_queue_nums=9, perm=6),
        QueueData(broker_name="broker-a", read_queue_nums=3, write_queue_nums=3, perm=4),
        QueueData(broker_name="broker-c", read_queue_nums=4, write_queue_nums=4, perm=2),
    ]
)
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(3)]
QUEUES += [MessageQueue("T", "broker-b", number) for number in range(2)]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with rigged() as made:
        made.broker.registration.routes = {"T": ROUTE}
        yield made


def join(rig: Rig, *client_ids: str, group: str = "CG") -> None:
    for client_id in client_ids:
        member = Member(rig.connect().peer, client_id, "JAVA", 479)
        rig.broker.consumers.register(member, consumer(group), notify=False, now=0.0)


async def ask(
    rig: Rig, client_id: str = "a", topic: str = "T", *, model: str = "CLUSTERING", strategy: str = "AVG"
) -> list[MessageQueue] | None:
    request = AssignmentRequest(
        client_id=client_id, consumer_group="CG", topic=topic, message_model=model, strategy_name=strategy
    )
    answer = await rig.ask(QueryAssignment(request))
    assert answer.code == 0
    found = decode_body(answer.body, Assignments).message_queue_assignments
    if found is None:
        return None
    assert {each.mode for each in found} <= {"PULL"}
    return [each.message_queue for each in found]


async def test_members_get_their_shares_of_what_can_be_read(rig: Rig) -> None:
    join(rig, "b", "a")
    assert await ask(rig, "a") == QUEUES[:3]
    assert await ask(rig, "b") == QUEUES[3:]
    assert await ask(rig, "a", strategy="AVG_BY_CIRCLE") == QUEUES[::2]
    assert await ask(rig, "b", strategy="AVG_BY_CIRCLE") == QUEUES[1::2]


async def test_who_is_alone_or_broadcasts_gets_all(rig: Rig) -> None:
    assert await ask(rig, "a", model="BROADCASTING") == QUEUES
    join(rig, "a")
    assert await ask(rig, "a") == QUEUES


async def test_without_dividing_everybody_gets_all(rig: Rig) -> None:
    rig.broker.live.current = replace(rig.broker.live.current, divide_queues=False)
    join(rig, "a", "b")
    assert await ask(rig, "a") == await ask(rig, "b") == QUEUES


async def test_who_is_no_member_gives_up_all(rig: Rig) -> None:
    join(rig, "a")
    assert await ask(rig, "stranger") == []


async def test_members_keep_what_they_have_when_nobody_can_say(rig: Rig) -> None:
    assert await ask(rig) is None  # nobody is online
    join(rig, "a")
    assert await ask(rig, strategy="CONSISTENT_HASH") is None
    assert await ask(rig, topic="Unknown") is None
    rig.broker.registration.routes = {"T": TopicRouteData()}
    assert await ask(rig) is None


async def test_members_are_told_to_pop_all_queues_of_each_broker(rig: Rig) -> None:
    rig.broker.request_modes.load(golden_config("messageRequestMode.json"))
    assert rig.broker.request_modes.table().message_request_mode_map["TopicPop"]["CG_pop"].mode == "POP"
    rig.broker.registration.routes = {"TopicPop": ROUTE}
    join(rig, "a", group="CG_pop")
    request = AssignmentRequest(client_id="a", consumer_group="CG_pop", topic="TopicPop")
    answer = await rig.ask(QueryAssignment(request))
    found = decode_body(answer.body, Assignments).message_queue_assignments
    assert found is not None
    assert [(each.message_queue.broker_name, each.message_queue.queue_id, each.mode) for each in found] == [
        ("broker-a", -1, "POP"),
        ("broker-b", -1, "POP"),
    ]


async def test_pulls_are_told_as_apaches_broker_tells_them(rig: Rig) -> None:
    """Of the captured questions, those for the retry topic are answered with PULL there, too."""
    count = 0
    for asked, captured in answers("pop", RequestCode.QUERY_ASSIGNMENT):
        question = decode_body(asked.body, AssignmentRequest)
        if not question.topic.startswith("%RETRY%"):
            continue
        count += 1
        data = QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)
        rig.broker.registration.routes = {question.topic: TopicRouteData(queue_datas=[data])}
        join(rig, question.client_id, group=question.consumer_group)
        answer = await rig.ask(QueryAssignment(question))
        assert bytes(answer.body) == captured.body
    assert count > 0
