"""From a message to what is sent of it."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.client.producer.batches import message_bytes, split_into_batches
from skylark.client.producer.message_encoder import RESERVED_PROPERTIES, MessageEncoder, property_text
from skylark.errors import BadMessage
from skylark.model.body import decompress
from skylark.model.message import PROPERTIES_BYTES_MAX, Message, decode_properties
from skylark.model.record import split_batch
from skylark.model.tag_expression import JAVA_BLANKS
from skylark.settings.client import Compression, ProducerSettings
from tests.unit.client.keys import GivenKeys

TEXT = st.text(st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), min_size=1)
WORD = TEXT.filter(lambda text: bool(text.strip()) and text not in RESERVED_PROPERTIES)
TAG = TEXT.map(lambda text: text.replace("|", "").strip(JAVA_BLANKS)).filter(bool)


def encoder(namespace: str = "", **settings: object) -> MessageEncoder:
    keys = GivenKeys(itertools.repeat("KEY"), 3)
    return MessageEncoder(ProducerSettings(**settings), namespace, "PG", keys)  # type: ignore[arg-type]


def properties_of(message: Message) -> dict[str, str]:
    return decode_properties(encoder().encode(message).properties.encode())


@given(st.dictionaries(WORD, WORD, max_size=5), TAG, st.lists(WORD, max_size=3))
def test_properties_tags_and_keys_come_out_as_they_went_in(
    own: dict[str, str], tags: str, keys: list[str]
) -> None:
    found = properties_of(Message("t", b"x", tags=tags, keys=keys, properties=own))
    expected = {**own, "UNIQ_KEY": "KEY", "WAIT": "true", "TAGS": tags}
    if keys:
        expected["KEYS"] = " ".join(keys)
    assert found == expected


def test_the_property_text_is_java_s() -> None:
    text = encoder().encode(Message("t", b"x", tags="A", keys=["k1", "k2"])).properties
    assert text == "KEYS\x01k1 k2\x02UNIQ_KEY\x01KEY\x02WAIT\x01true\x02TAGS\x01A\x02"


def test_one_key_may_be_given_as_text() -> None:
    assert properties_of(Message("t", b"x", keys="k1 k2"))["KEYS"] == "k1 k2"


def test_waiting_is_said_in_properties() -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    assert properties_of(Message("t", b"x", delay_level=3))["DELAY"] == "3"
    assert properties_of(Message("t", b"x", deliver_at=at))["TIMER_DELIVER_MS"] == str(
        round(at.timestamp() * 1000)
    )
    later = properties_of(Message("t", b"x", deliver_after=timedelta(seconds=1.5)))
    assert later["TIMER_DELAY_MS"] == "1500"
    assert properties_of(Message("t", b"x", wait_for_store=False))["WAIT"] == "false"


@pytest.mark.parametrize(
    ("compression", "flag"),
    [(Compression.ZLIB, 0x301), (Compression.LZ4, 0x101), (Compression.ZSTD, 0x201)],
)
def test_each_codec_sets_its_flag_and_can_be_read(compression: Compression, flag: int) -> None:
    body = b"word " * 1000
    encoded = encoder(compression=compression).encode(Message("t", body))
    assert encoded.sys_flag == flag
    assert decompress(encoded.body, encoded.sys_flag) == body


MESSAGES = st.lists(
    st.builds(
        Message,
        st.just("t"),
        st.binary(min_size=1, max_size=200),
        tags=st.none() | TAG,
        keys=st.lists(WORD, max_size=2),
        properties=st.dictionaries(WORD, WORD, max_size=2),
        sharding_key=st.none() | WORD,
        wait_for_store=st.booleans(),
        flag=st.integers(-(1 << 31), (1 << 31) - 1),
    ),
    min_size=1,
    max_size=5,
)


@given(MESSAGES, st.sampled_from(["", "NS"]), st.dictionaries(WORD, WORD, max_size=2))
def test_a_batch_holds_what_each_message_would_be_by_itself(
    messages: list[Message], namespace: str, added: dict[str, str]
) -> None:
    alone = [encoder(namespace).encode(message) for message in messages]
    batch = encoder(namespace).encode_batch(messages)
    assert (batch.topic, batch.unique_keys) == (alone[0].topic, ["KEY"] * len(messages))
    more = property_text(list(added.items()))
    for body, suffix in ((batch.body, ""), (batch.with_added(more)[0], more)):
        elements = split_batch(memoryview(body))
        assert [(bytes(each.body), each.flag) for each in elements] == [(m.body, m.flag) for m in messages]
        assert [bytes(each.properties).decode() for each in elements] == [
            each.properties + suffix for each in alone
        ]


def test_members_of_a_batch_are_not_compressed() -> None:
    body = b"x" * 10_000
    batch = encoder().encode_batch([Message("t", body)])
    assert batch.sys_flag == 0
    assert body in batch.body


def test_a_batch_of_one_that_goes_alone_is_as_any_other() -> None:
    message = Message("t", b"x", tags="A", keys=["k"], properties={"p": "v"}, flag=7)
    made = encoder()
    assert made.single(message, made.tail(message)) == made.encode(message)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("t", b"x", properties={"p": "\ud800"}), "cannot be encoded as UTF-8"),
        (Message("t", b"x", properties={"p": "v" * PROPERTIES_BYTES_MAX}), "the limit is 32767"),
        (Message("t", b"x", tags="a\x01b"), "must not contain"),
        (Message("t", b""), "length is zero"),
    ],
)
def test_a_bad_member_is_refused_before_its_batch(message: Message, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        encoder().tail(message)


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_the_system_s_names_are_not_for_applications(name: str) -> None:
    with pytest.raises(BadMessage, match="used by system"):
        properties_of(Message("t", b"x", properties={name: "1"}))


@given(st.lists(st.integers(1, 3000), max_size=50), st.integers(100, 5000))
def test_batches_hold_all_messages_in_their_order_and_none_is_too_large(sizes: list[int], limit: int) -> None:
    messages = [Message("t", b"x" * size, keys=[str(number)]) for number, size in enumerate(sizes)]
    batches = list(split_into_batches(messages, limit))
    assert [message for batch in batches for message in batch] == messages
    for batch in batches:
        assert len(batch) == 1 or sum(map(message_bytes, batch)) <= limit
    for one, other in itertools.pairwise(batches):
        assert sum(map(message_bytes, one)) + message_bytes(other[0]) > limit, "no batch is cut short"


@pytest.mark.parametrize("tags", ["created || paid", "a|b", " created", "created\n"])
def test_tags_that_no_subscription_can_match_are_refused(tags: str) -> None:
    with pytest.raises(BadMessage, match=r"a message has one tag|begins or ends with a blank"):
        encoder().encode(Message("t", b"x", tags=tags))
    with pytest.raises(BadMessage):
        encoder().encode_batch([Message("t", b"x", tags=tags)])


@pytest.mark.parametrize("level", [-1, 19, 30])
def test_a_delay_level_that_brokers_would_change_is_refused(level: int) -> None:
    with pytest.raises(BadMessage, match=f"delay_level {level} is out of range: use 1 to 18"):
        encoder().encode(Message("t", b"x", delay_level=level))


def test_brokers_with_other_delay_levels() -> None:
    message = encoder(delay_levels=20).encode(Message("t", b"x", delay_level=20))
    assert decode_properties(message.properties.encode())["DELAY"] == "20"
    with pytest.raises(BadMessage, match="use 1 to 3"):
        encoder(delay_levels=3).encode(Message("t", b"x", delay_level=4))
