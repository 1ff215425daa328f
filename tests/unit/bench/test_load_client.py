"""The thin client in Python without a socket: frames that a broker understands, windows, latencies."""

from __future__ import annotations

import json
from dataclasses import replace

from skylark.bench.load import STAMP, Load, LoadKind, frames_of
from skylark.bench.thin_python import PREFIX, PythonLoadClient, Template
from skylark.bench.transaction import OpenLoopSchedule
from skylark.model.message import decode_properties
from skylark.model.record import split_batch
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.connection import Connection

LOAD = Load(address="127.0.0.1:10911", topic="orders", queues=2, body_bytes=16)
NOW_NS = 1_700_000_000_000_000_000


def templates_of(load: Load) -> list[Template]:
    data, templates = frames_of(load, NOW_NS), []
    while data:
        length = 4 + PREFIX.unpack_from(data)[0]
        templates.append(Template(data[:length]))
        data = data[length:]
    return templates


def commands_in(data: bytes) -> list[RemotingCommand]:
    found = Connection[object]().receive(data)
    assert all(isinstance(command, RemotingCommand) for command in found)
    return [command for command in found if isinstance(command, RemotingCommand)]


def answer(opaque: int, code: int = 0, body: bytes = b"", **fields: object) -> bytes:
    header = json.dumps(
        {"code": code, "flag": 1, "opaque": opaque, "extFields": {k: str(v) for k, v in fields.items()}}
    ).encode()
    return PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body


def started(load: Load, *, rate: float = 0.0, frames_max: int = 0) -> PythonLoadClient:
    client = PythonLoadClient(templates_of(load), load.in_flight, OpenLoopSchedule(100.0, rate), frames_max)
    client.began = 100.0
    return client


def test_sends_are_commands_with_their_own_keys() -> None:
    client = started(replace(LOAD, in_flight=4, properties={"TAGS": "a", "KEYS": "key-@NUMBER@"}))
    sent = commands_in(client.next_frames(100.0))
    assert [command.code for command in sent] == [RequestCode.SEND_MESSAGE_V2] * 4
    assert [command.fields["e"] for command in sent] == ["0", "1", "0", "1"]
    assert len({command.opaque for command in sent}) == 4
    properties = [decode_properties(str(command.fields["i"]).encode()) for command in sent]
    assert len({each["UNIQ_KEY"] for each in properties}) == 4
    assert len({each["KEYS"] for each in properties}) == 4
    assert {each["TAGS"] for each in properties} == {"a"}
    assert all(len(bytes(command.body)) == 16 for command in sent)


def test_a_batch_holds_its_messages() -> None:
    (command,) = commands_in(started(replace(LOAD, in_flight=1, batch=3)).next_frames(100.0))
    assert command.code == RequestCode.SEND_BATCH_MESSAGE
    elements = list(split_batch(bytes(command.body)))
    assert len(elements) == 3
    keys = {decode_properties(element.properties)["UNIQ_KEY"] for element in elements}
    assert len(keys) == 3


def test_a_stamp_is_when_the_message_was_due() -> None:
    client = started(replace(LOAD, in_flight=8, is_stamped=True), rate=4.0)
    sent = commands_in(client.next_frames(100.6))
    assert [STAMP.unpack_from(bytes(command.body))[0] for command in sent] == [
        100_000_000_000,
        100_250_000_000,
        100_500_000_000,
    ]


def test_a_closed_loop_keeps_its_window_and_no_more() -> None:
    client = started(replace(LOAD, in_flight=2))
    assert len(commands_in(client.next_frames(100.0))) == 2
    assert client.next_frames(100.1) == b""
    client.receive(answer(1), 100.1)
    assert [command.opaque for command in commands_in(client.next_frames(100.2))] == [3]
    assert (client.sent, client.acknowledged, client.answers) == (3, 1, 1)


def test_an_open_loop_counts_the_waiting_before_the_send() -> None:
    """A broker that stalls for a second makes ten messages late, not one."""
    client = started(replace(LOAD, in_flight=1), rate=10.0)
    client.next_frames(100.0)
    now = 101.0
    for opaque in range(1, 11):
        client.receive(answer(opaque), now)
        client.next_frames(now)
    late = sorted(client.latencies_ns.elements())
    assert len(late) == 10
    assert late[-1] >= 0.99e9
    assert late[4] >= 0.39e9


def test_what_was_due_and_could_not_be_sent_is_counted() -> None:
    client = started(replace(LOAD, in_flight=2), rate=10.0)
    client.next_frames(100.5)
    client.ended = 101.0
    assert (client.sent, client.unsent, client.is_wanted) == (2, 8, True)


def test_what_was_due_before_the_end_is_sent_after_it() -> None:
    client = started(replace(LOAD, in_flight=100), rate=10.0)
    client.next_frames(100.5)
    client.ended = 101.0
    assert len(commands_in(client.next_frames(105.0))) == 4
    assert (client.sent, client.unsent, client.is_wanted) == (10, 0, False)


def test_a_closed_loop_sends_nothing_after_its_end() -> None:
    client = started(replace(LOAD, in_flight=2))
    client.ended = 101.0
    assert client.next_frames(101.0) == b""


def test_refusals_and_strangers_are_counted() -> None:
    client = started(replace(LOAD, in_flight=2))
    client.next_frames(100.0)
    client.receive(answer(1, code=2) + answer(77), 100.1)
    assert (client.refused, client.refusal_code, client.unexpected, client.acknowledged) == (1, 2, 1, 0)


def test_nobody_answers_one_way_sends() -> None:
    client = started(replace(LOAD, kind=LoadKind.ONEWAY, in_flight=1), frames_max=5)
    sent = commands_in(client.next_frames(100.0))
    assert len(sent) == 5
    assert all(command.is_oneway for command in sent)
    assert (client.acknowledged, client.is_waiting, client.is_done) == (5, False, True)


def test_pulls_go_on_where_the_answer_ended() -> None:
    client = started(replace(LOAD, kind=LoadKind.PULL, queues=1, batch=2))
    (first,) = commands_in(client.next_frames(100.0))
    assert (first.code, first.fields["queueOffset"]) == (RequestCode.PULL_MESSAGE, "0")
    records = b"".join((28).to_bytes(4, "big") + bytes(16) + number.to_bytes(8, "big") for number in range(2))
    client.receive(answer(1, body=records, nextBeginOffset=2, maxOffset=3), 100.1)
    assert client.records == 2
    (second,) = commands_in(client.next_frames(100.1))
    assert second.fields["queueOffset"] == "2"
    client.receive(answer(2, body=records, nextBeginOffset=4, maxOffset=4), 100.1)
    assert client.unexpected == 1


def test_pulls_follow_a_queue_whose_first_messages_are_gone() -> None:
    client = started(replace(LOAD, kind=LoadKind.PULL, queues=1, batch=2))
    client.next_frames(100.0)
    client.receive(answer(1, code=21, nextBeginOffset=7, maxOffset=8, minOffset=7), 100.1)
    assert (client.refused, client.records, client.acknowledged) == (0, 0, 1)
    (second,) = commands_in(client.next_frames(100.1))
    assert second.fields["queueOffset"] == "7"
    record = (28).to_bytes(4, "big") + bytes(16) + (7).to_bytes(8, "big")
    client.receive(answer(2, body=record, nextBeginOffset=8, maxOffset=8, minOffset=7), 100.1)
    (third,) = commands_in(client.next_frames(100.1))
    assert third.fields["queueOffset"] == "7", "after the end it begins where the queue does"
    client.receive(answer(3, code=21, nextBeginOffset=7, maxOffset=8, minOffset=7), 100.2)
    assert client.refused == 1, "who is sent in circles is refused"


def test_questions_for_routes_name_their_topics() -> None:
    client = started(replace(LOAD, kind=LoadKind.ROUTE, topics=3, in_flight=3))
    asked = commands_in(client.next_frames(100.0))
    assert {command.code for command in asked} == {RequestCode.GET_ROUTEINFO_BY_TOPIC}
    assert [command.fields["topic"] for command in asked] == ["orders-0", "orders-1", "orders-2"]
