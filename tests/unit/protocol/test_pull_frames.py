"""Pulls are written by a template: the bytes are those that the general way writes."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.protocol.command import encode
from skylark.protocol.requests.pull import LitePullMessage, PullMessage

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["100%", "%d%b%%", '"queueOffset":"0"', '\\"maxMsgNums\\":\\"0\\"', '"opaque":0', "a b || c"]
)
numbers = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
pulls = st.builds(
    lambda kind, *members, bulk_bytes: kind(*members, bulk_bytes=bulk_bytes),
    st.sampled_from([PullMessage, LitePullMessage]),
    texts, texts, numbers, longs, numbers, numbers, longs, longs, longs, st.none() | texts, st.none() | texts,
    bulk_bytes=st.none() | numbers,
)  # fmt: skip


@given(pulls, numbers)
def test_the_frame_is_that_of_the_command(pull: PullMessage, opaque: int) -> None:
    command = pull.to_command()
    command.opaque = opaque
    assert b"".join(pull.frame(opaque)) == b"".join(encode(command))
