"""Messages by key and by offset, and the entries of queues. Records are passed on byte for byte."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from skylark.broker.clients import ConnectedClient as Member
from skylark.broker.handlers import message_queries
from skylark.broker.handlers.message_queries import record_at
from skylark.model.record import decode_all
from skylark.protocol.bodies import ConsumeQueueUnit, ConsumeQueueUnits, decode_body
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.pull import QueryConsumeQueue, QueryMessage, ViewMessageById
from tests.support.broker import consumer, subscription
from tests.unit.broker.handlers.rig import Rig, rigged

END_MS = (1 << 63) - 1


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with rigged(store={"query_messages_max": 4, "index_items": 1000}) as made:
        yield made


def by_key(key: str, topic: str = "T", maximum: int = 64, **members: Any) -> QueryMessage:
    times = {"begin_timestamp": 0, "end_timestamp": END_MS, **members}
    return QueryMessage(topic=topic, key=key, max_num=maximum, **times)


async def found(rig: Rig, request: QueryMessage) -> tuple[list[bytes], RemotingCommand]:
    rig.broker.store.build_index()
    answer = await rig.ask(request)
    return [message.body for message in decode_all(answer.body)], answer


# --- By key ---


async def test_a_key_finds_its_messages_oldest_first(rig: Rig) -> None:
    for body, keys in ((b"1", "a b"), (b"2", "b"), (b"3", "c"), (b"4", "ab")):
        rig.put(body=body, keys=keys)
    bodies, answer = await found(rig, by_key("b"))
    assert bodies == [b"1", b"2"]
    last = rig.broker.store.index
    assert last is not None
    assert answer.fields == {
        "indexLastUpdateTimestamp": str(rig.clock.now_ms()),
        "indexLastUpdatePhyoffset": str(last.end_physical_offset),
    }


async def test_the_records_are_those_of_the_log(rig: Rig) -> None:
    place = rig.put(keys="k", body=b"x" * 100)
    _, answer = await found(rig, by_key("k"))
    assert bytes(answer.body) == rig.broker.store.read_log(place.physical_offset, place.size)


async def test_a_unique_key_finds_its_message_whatever_number_is_asked_for(rig: Rig) -> None:
    rig.put(unique_key="0A0B", body=b"mine")
    rig.put(unique_key="0A0C")
    assert (await found(rig, by_key("0A0B", maximum=0, unique_key=True)))[0] == [b"mine"]
    assert (await found(rig, by_key("0A0B", maximum=0)))[0] == []


@pytest.mark.parametrize("maximum", [2, 4, 1000])
async def test_no_more_than_are_asked_for_and_allowed(rig: Rig, maximum: int) -> None:
    for number in range(10):
        rig.put(keys="k", body=b"%d" % number)
    bodies, _ = await found(rig, by_key("k", maximum=maximum))
    assert bodies == [b"%d" % number for number in range(10)][-min(maximum, 4) :], "the newest"


async def test_an_answer_has_an_end(rig: Rig) -> None:
    rig.broker.live.current = replace(rig.broker.live.current, frame_bytes_max=4096)
    for number in range(4):
        rig.put(keys="k", body=b"%d" % number * 1500)
    bodies, _ = await found(rig, by_key("k"))
    assert [body[:1] for body in bodies] == [b"0"], "at least one, and not more than half a frame"


async def test_nothing_found_is_22(rig: Rig) -> None:
    rig.put(keys="k")
    for request in (by_key("nope"), by_key("k", topic="U"), by_key("k", end_timestamp=1)):
        bodies, answer = await found(rig, request)
        assert (answer.code, answer.remark) == (22, "can not find message, maybe time range not correct")
        assert bodies == []
        assert answer.fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


async def test_keys_with_the_same_hash_are_told_apart(rig: Rig) -> None:
    rig.put(keys="Aa", body=b"right")
    rig.put(keys="BB", body=b"wrong")  # Java's hashes of both are the same
    assert (await found(rig, by_key("Aa")))[0] == [b"right"]


async def test_sf_077_without_an_index_keys_find_nothing() -> None:
    with rigged(store={"index_enabled": False}) as rig:
        rig.put(keys="k")
        assert (await rig.ask(by_key("k"))).code == 22
        assert [message.body for message in rig.stored("T")] == [b"body"], "and queues are as ever"


# --- By offset ---


async def test_a_message_is_viewed_by_its_physical_offset(rig: Rig) -> None:
    rig.put(body=b"first")
    place = rig.put(body=b"second")
    answer = await rig.ask(ViewMessageById(place.physical_offset))
    assert (answer.code, answer.remark, answer.fields) == (0, None, {})
    assert bytes(answer.body) == rig.broker.store.read_log(place.physical_offset, place.size)


@pytest.mark.parametrize("physical_offset", [-1, 1, 99_999_999, (1 << 63) - 1])
async def test_where_no_record_starts_there_is_no_message(rig: Rig, physical_offset: int) -> None:
    rig.put()
    answer = await rig.ask(ViewMessageById(physical_offset))
    assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {physical_offset}")


async def test_a_body_that_looks_like_a_record_is_none(rig: Rig) -> None:
    first = rig.put(body=b"copied")
    copied = rig.broker.store.read_log(first.physical_offset, first.size)
    place = rig.put(body=copied)
    record = rig.broker.store.read_log(place.physical_offset, place.size)
    inside = place.physical_offset + record.index(copied)
    assert rig.broker.store.reader.record_at(inside) == copied
    assert record_at(rig.broker.store, inside) is None


# --- Entries of queues ---


async def units(rig: Rig, index: int = 0, count: int = 100, **members: Any) -> ConsumeQueueUnits:
    answer = await rig.ask(QueryConsumeQueue("T", 0, index, count, **members))
    assert (answer.code, answer.remark) == (0, "not set any response code")
    return decode_body(answer.body, ConsumeQueueUnits)


async def test_entries_are_shown_across_files(rig: Rig) -> None:
    places = [rig.put(tags=f"t{number}") for number in range(25)]  # ten entries to a file
    rig.broker.store.housekeeper.flush()
    shown = await units(rig)
    assert shown.queue_data == [
        ConsumeQueueUnit(physic_offset=at.physical_offset, physic_size=at.size, tags_code=at.tags_code)
        for at in places
    ]
    assert (shown.min_queue_index, shown.max_queue_index) == (0, 25)
    assert len((await units(rig, 8, 5)).queue_data) == 5
    assert (await units(rig, 24)).queue_data == shown.queue_data[24:]
    assert (await units(rig, 0, -1)).queue_data == []


async def test_one_answer_holds_so_many_entries(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_queries, "UNITS_MAX", 3)
    for _ in range(5):
        rig.put()
    assert len((await units(rig)).queue_data) == 3


async def test_a_group_that_is_named_is_shown_too(rig: Rig) -> None:
    rig.put()
    assert (await units(rig)).filter_data is None
    offline = await units(rig, consumer_group="CG")
    assert (offline.subscription_data, offline.filter_data) == (None, "CG@T is not online!")
    member = Member(rig.client.peer, "c1", "JAVA", 479)
    rig.broker.consumers.register(member, consumer("CG", [subscription("T", "a")]), notify=False, now=0)
    online = await units(rig, consumer_group="CG")
    assert online.subscription_data is not None
    assert (online.subscription_data.sub_string, online.filter_data) == ("a", "null")


async def test_entries_that_are_not_there(rig: Rig) -> None:
    answer = await rig.ask(QueryConsumeQueue("T", 3, 0, 1))
    assert (answer.code, answer.remark) == (1, "3@T is not exist!")
    assert ("T", 3) not in rig.broker.store.queues, "asking makes no queue"
    rig.put()
    for index in (1, -1):
        answer = await rig.ask(QueryConsumeQueue("T", 0, index, 1))
        assert (answer.code, answer.remark) == (0, f"Index {index} of 0@T is not exist!")
