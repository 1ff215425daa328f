"""Laws of the Java-isms: the fast hash is the plain one, and what is written is read back."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import BadJson
from skylark.model import java
from skylark.model.java import ObjectKey

# Every code point, halves of surrogate pairs too: Java's strings may hold them.
any_text = st.text(st.characters(exclude_categories=()))


def plain_hash(text: str) -> int:
    """Java's definition, one code unit at a time."""
    units = text.encode("utf-16-be", "surrogatepass")
    number = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + 256 * high + low) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


@given(any_text | st.text(st.characters(max_codepoint=127), max_size=100))
def test_the_fast_hash_is_the_plain_hash(text: str) -> None:
    assert java.java_hash(text) == plain_hash(text)


@given(st.text(min_size=1), st.integers(200, 1100))
def test_texts_hashed_in_pieces(text: str, length: int) -> None:
    long = (text * length)[:length]
    assert java.java_hash(long) == plain_hash(long)


@given(any_text, any_text)
def test_a_hash_continues_where_the_prefix_ended(prefix: str, text: str) -> None:
    # Also where the two halves of a surrogate pair are split between them.
    assert java.java_hash_from(java.java_hash(prefix), text) == plain_hash(prefix + text)


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_an_index_key_hash_fits_a_positive_int(text_hash: int) -> None:
    assert 0 <= java.index_key_hash(text_hash) < 1 << 31


scalars = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
object_keys = st.dictionaries(st.text(), scalars, max_size=3).map(ObjectKey)
keys = st.text() | st.integers(-(1 << 63), (1 << 63) - 1) | object_keys
documents = st.recursive(
    scalars,
    lambda children: st.lists(children | st.none(), max_size=5) | st.dictionaries(keys, children, max_size=5),
    max_leaves=30,
)


@given(documents, st.booleans())
def test_what_is_written_is_read_back(document: Any, indent: bool) -> None:
    assert java.loads(java.dumps(document, indent=indent)) == document


@given(documents)
def test_both_readers_agree_on_standard_json(document: Any) -> None:
    text = java.dumps(document)
    try:
        expected = json.loads(text)
    except json.JSONDecodeError:
        return
    assert java.loads(text) == expected
    # A bare number as key sends the same text through the second reader, a bare name through the third.
    assert java.loads(b"[{0:1}," + text + b"]")[1] == expected
    assert java.loads(b"[{a:1}," + text + b"]")[1] == expected


@given(documents.map(java.dumps) | st.text('{}[]:,"\\u0d8 ea-.1\t', max_size=40).map(str.encode))
def test_readers_of_other_keys_agree(text: bytes) -> None:
    assert _read(b"[{0:1}," + text + b"]") == _read(b"[{a:1}," + text + b"]")


def _read(text: bytes) -> Any:
    try:
        return java.loads(text)[1:]
    except BadJson:
        return None


@given(st.binary(max_size=60) | st.text("{}[]:,'\"\\u0d8 ea-.1", max_size=40).map(str.encode))
def test_any_bytes_are_a_document_or_bad_json(data: bytes) -> None:
    try:
        document = java.loads(data)
    except BadJson as error:
        assert 0 <= error.position <= len(data)
    else:
        assert java.loads(java.dumps([document])) is not None


HASHES = st.integers(-(1 << 31), (1 << 31) - 1)
ASCII = st.characters(max_codepoint=127)


@given(
    st.lists(st.tuples(HASHES, st.text(max_size=300)), max_size=10)
    | st.lists(st.tuples(HASHES, st.text(ASCII, max_size=32)), max_size=130)
    | st.lists(st.tuples(HASHES, st.text(ASCII, max_size=70)), max_size=5)
)
def test_many_texts_hash_as_one_by_one(pairs: list[tuple[int, str]]) -> None:
    prefixes = [prefix for prefix, _ in pairs]
    texts = [text.encode(errors="replace") for _, text in pairs]
    expected = [
        java.java_hash_from(prefix, text.decode()) for prefix, text in zip(prefixes, texts, strict=True)
    ]
    assert java.java_hashes_from(prefixes, texts) == expected
