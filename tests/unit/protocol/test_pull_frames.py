"""Pulls are written by a template: the bytes are those that the general way writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import RemoteProtocolError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, LitePullMessage, PullMessage

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["100%", "%d%b%%", '"queueOffset":"0"', '\\"maxMsgNums\\":\\"0\\"', '"opaque":0', "a b || c"]
)
numbers = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
pulls = st.builds(
    lambda kind, *members, **ours: kind(*members, **ours),
    st.sampled_from([PullMessage, LitePullMessage]),
    texts, texts, numbers, longs, numbers, numbers, longs, longs, longs, st.none() | texts, st.none() | texts,
    bulk_bytes=st.none() | numbers,
    bulk_units=st.none() | st.booleans(),
)  # fmt: skip


@given(pulls, numbers)
def test_the_frame_is_that_of_the_command(pull: PullMessage, opaque: int) -> None:
    command = pull.to_command()
    command.opaque = opaque
    assert b"".join(pull.frame(opaque)) == b"".join(encode(command))


@pytest.mark.parametrize("count", [-1, 3, 1 << 30])
def test_units_that_are_not_there_are_refused(count: int) -> None:
    where = {"suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3"}
    reply = RemotingCommand(code=0, body=bytes(59), fields={**where, "bulkUnits": str(count)})
    pull = PullMessage("g", "t", 0, 0, 32, 4, 0, 0, 0)
    with pytest.raises(RemoteProtocolError, match=f"{count} units in a body of 59 bytes"):
        pull.result(reply)
    reply.fields["bulkUnits"] = "2"
    assert tuple(map(len, (pull.result(reply).units, pull.result(reply).records))) == (40, 19)


def test_a_plain_pull_neither_waits_nor_commits() -> None:
    pull = PullMessage.plain(MessageQueue("orders", "broker-a", 3), 7, expression="paid")
    assert (pull.topic, pull.queue_id, pull.queue_offset, pull.max_msg_nums) == ("orders", 3, 7, 32)
    assert pull.sys_flag == PULL_SUBSCRIPTION
    assert (pull.suspend_timeout_ms, pull.commit_offset) == (0, 0)
    assert (pull.consumer_group, pull.subscription, pull.expression_type) == ("TOOLS_CONSUMER", "paid", "TAG")
