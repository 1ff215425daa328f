"""SQL92 selectors under any input: read or refused, and the same of a mapping as of a record's text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skylark.model.message import decode_properties, encode_properties
from skylark.model.sql92 import BadSelector, EvaluationError, Selector

WORDS = st.sampled_from(
    "a b NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH = <> > >= < <= ( ) , + - "
    "1 -5 0.5 9223372036854775807 'x' '1' '' /*c*/ -- # ; 'it''s' 5L 1e3 $b".split()
)
VALUES = st.sampled_from(["1", "5", "-5", "0.5", "x", "it's", "true", "NaN", "2147483648", "5f", "中"])
OPERANDS = st.sampled_from(["a", "b", "1", "-5", "0.5", "'x'", "'1'", "TRUE", "$b"])


@st.composite
def conditions(draw: st.DrawFn, depth: int = 0) -> str:
    kind = draw(st.integers(0, 8 if depth < 4 else 4))
    one, other = draw(OPERANDS), draw(OPERANDS)
    match kind:
        case 0 | 1:
            return f"{one} {draw(st.sampled_from(['=', '<>']))} {other}"
        case 2:
            number = draw(st.sampled_from(["b", "1", "0.5", "-5"]))
            return f"a {draw(st.sampled_from(['>', '>=', '<', '<=']))} {number}"
        case 3:
            return f"a {draw(st.sampled_from(['', 'NOT ']))}IN ('1', 'x')"
        case 4:
            return f"{one} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
        case 5:
            return f"NOT ({draw(conditions(depth + 1))})"
        case _:
            joint = draw(st.sampled_from(["AND", "OR"]))
            return f"({draw(conditions(depth + 1))}) {joint} ({draw(conditions(depth + 1))})"


def compiled(expression: str) -> Selector | None:
    try:
        return Selector(expression)
    except BadSelector as error:
        assert 0 <= error.position <= len(expression)
        return None


def said(selector: Selector, properties: dict[str, str]) -> object:
    try:
        return selector.evaluate(properties)
    except EvaluationError:
        return "error"


@given(st.text(max_size=60) | st.lists(WORDS, max_size=15).map(" ".join))
def test_any_text_is_read_or_refused_with_a_place(expression: str) -> None:
    selector = compiled(expression)
    if selector is not None:
        said(selector, {"a": "1", "b": "x"})


@given(conditions(), st.dictionaries(st.sampled_from(["a", "b", "$b"]), VALUES))
def test_a_mapping_and_a_record_s_text_give_the_same(expression: str, properties: dict[str, str]) -> None:
    selector = compiled(expression)
    if selector is not None:
        assert selector.matches_text(encode_properties(properties)) is selector.matches(properties)


PIECES = st.sampled_from(["a", "b", "ab", "\x01", "\x01", "\x02", "\x02", "1", "9", "x", "\n", ""])


@given(conditions(), st.lists(PIECES, max_size=24).map("".join), st.sampled_from([b"", b"a\x012\x02"]))
def test_any_text_at_any_place_is_read_as_its_properties(expression: str, text: str, around: bytes) -> None:
    selector = compiled(expression)
    if selector is not None:
        raw = text.encode()
        expected = selector.matches(decode_properties(raw))
        file = memoryview(around + raw + around)
        assert selector.matches_text(file, len(around), len(around) + len(raw)) is expected


@given(conditions(), conditions(), st.dictionaries(st.sampled_from(["a", "b"]), VALUES))
def test_the_laws_of_three_values(one: str, other: str, properties: dict[str, str]) -> None:
    first, second = compiled(one), compiled(other)
    if first is None or second is None:
        return
    left, right = said(first, properties), said(second, properties)
    both = said(Selector(f"({one}) AND ({other})"), properties)
    either = said(Selector(f"({one}) OR ({other})"), properties)
    inverted = said(Selector(f"NOT ({one})"), properties)
    if left == "error":
        assert (both, either, inverted) == ("error", "error", "error")
        return
    assert inverted is (None if left is None else not left)
    if left is False:
        assert both is False
    if left is True:
        assert either is True
    if "error" not in (left, right):
        values = (left, right)
        assert both is (False if False in values else None if None in values else True)
        assert either is (True if True in values else None if None in values else False)
