"""However the bytes are cut, the same commands come out, and the same failure."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.protocol.command import Encoding, RemotingCommand, encode
from skylark.protocol.connection import Command, Connection, Limits
from tests.unit.protocol.golden_frames import captured

LIMITS = Limits(frame_bytes_max=40_000)
FRAMES = [frame.frame for frame in captured() if len(frame.frame) < 4_000]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
commands = st.builds(
    RemotingCommand,
    code=st.integers(-(1 << 15), (1 << 15) - 1),
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
    flag=st.integers(0, 3),
    version=st.integers(0, 999),
    language=st.sampled_from(["JAVA", "PYTHON", "OTHER"]),
    remark=st.none() | texts.filter(bool),
    fields=st.dictionaries(texts, texts.filter(bool), max_size=8),
    body=st.binary(max_size=200),
)


def receive(pieces: list[bytes], *, typed: bool) -> tuple[list[Command], type, int]:
    connection: Connection[None] = Connection(LIMITS, typed=typed)
    received: list[Command] = []
    for piece in pieces:
        received += connection.receive(piece)
    return received, type(connection.failure), connection.buffered_bytes


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from(FRAMES), min_size=1, max_size=6),
    st.binary(max_size=30),
    st.lists(st.integers(0, 30_000), max_size=30),
    st.booleans(),
)
def test_any_chunking_of_captured_frames_and_rubbish(
    frames: list[bytes], rubbish: bytes, places: list[int], typed: bool
) -> None:
    data = b"".join(frames) + rubbish
    whole = receive([data], typed=typed)
    assert len(whole[0]) >= len(frames)
    assert receive(cut(data, places), typed=typed) == whole


@settings(max_examples=30)
@given(st.sampled_from(FRAMES), st.booleans())
def test_byte_by_byte(frame: bytes, typed: bool) -> None:
    single = [bytes([byte]) for byte in frame]
    assert receive(single, typed=typed) == receive([frame], typed=typed)


@settings(max_examples=100)
@given(commands, st.sampled_from(Encoding), st.lists(st.integers(0, 2_000), max_size=10))
def test_every_command_survives_both_encodings(
    command: RemotingCommand, encoding: Encoding, places: list[int]
) -> None:
    data = b"".join(encode(command, encoding))
    [again], failure, buffered = receive(cut(data, places), typed=False)
    assert (failure, buffered) == (type(None), 0)
    assert again == command


@settings(max_examples=200)
@given(st.binary(max_size=200), st.booleans())
def test_rubbish_never_raises_and_never_grows(data: bytes, typed: bool) -> None:
    _, _, buffered = receive([data], typed=typed)
    assert buffered <= len(data)
