"""Pure. Compiled selectors: a syntax tree becomes functions that return TRUE, FALSE or NULL (None)."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import AnyStr, Generic, Protocol, TypeVar, cast

from skylark.model.sql92 import nodes
from skylark.model.sql92.nodes import (
    EXPRESSION_CHARS_MAX,
    BadSelector,
    ComparisonOperator,
    Node,
    Number,
    Search,
)
from skylark.model.sql92.values import READERS, READERS_OF_BYTES, EvaluationError, NumberKind, order

P = TypeVar("P")
Condition = Callable[[P], bool | None]
Read = Callable[[P], AnyStr | None]
Parse = Callable[[AnyStr], float]
Holds = Callable[[float, float], bool]

OPERATORS: dict[ComparisonOperator, Holds] = {
    ComparisonOperator.GREATER: operator.gt,
    ComparisonOperator.GREATER_OR_EQUAL: operator.ge,
    ComparisonOperator.LESS: operator.lt,
    ComparisonOperator.LESS_OR_EQUAL: operator.le,
}
TURNED = {
    ComparisonOperator.GREATER: ComparisonOperator.LESS,
    ComparisonOperator.GREATER_OR_EQUAL: ComparisonOperator.LESS_OR_EQUAL,
    ComparisonOperator.LESS: ComparisonOperator.GREATER,
    ComparisonOperator.LESS_OR_EQUAL: ComparisonOperator.GREATER_OR_EQUAL,
}
"""The operator with its operands swapped."""


@dataclass(frozen=True)
class Access(Generic[P, AnyStr]):
    """Access to properties: `read` returns a getter for a name, `text` converts a constant."""

    read: Callable[[str], Read[P, AnyStr]]
    text: Callable[[str], AnyStr]
    numbers: Mapping[NumberKind, Parse[AnyStr]]


def compile_condition(node: Node, access: Access[P, AnyStr]) -> Condition[P]:
    """Compile a node to a function."""
    return _Compiler(access).condition(node)


class _Compiler(Generic[P, AnyStr]):
    def __init__(self, access: Access[P, AnyStr]) -> None:
        self._read: Callable[[str], Read[P, AnyStr]] = access.read
        self._text: Callable[[str], AnyStr] = access.text
        self._numbers: Mapping[NumberKind, Parse[AnyStr]] = access.numbers

    def condition(self, node: Node) -> Condition[P]:
        match node:
            case nodes.Truth(value):
                return lambda _: value
            case nodes.PropertyNode(name):
                read = self._read(name)
                # A property is a text, and a text is never TRUE.
                return lambda properties: None if read(properties) is None else False
            case nodes.Not(operand):
                return _not(self.condition(operand))
            case nodes.All(operands):
                return _all([self.condition(operand) for operand in operands])
            case nodes.Any(operands):
                return _any([self.condition(operand) for operand in operands])
            case nodes.Equal(left, right):
                return self._equal(left, right)
            case nodes.IsNull(operand):
                return self._is_null(operand)
            case nodes.Compare(left, comparison, right):
                return self._compare(left, comparison, right)
            case nodes.OneOf(operand, values, negated):
                return _one_of(self._read(operand.name), frozenset(map(self._text, values)), negated)
            case nodes.Find(operand, search, text, negated):
                return self._find(operand, search, text, negated)
        raise AssertionError(f"not a condition: {node}")

    def value(self, node: nodes.PropertyNode | nodes.Text) -> Read[P, AnyStr]:
        if isinstance(node, nodes.PropertyNode):
            return self._read(node.name)
        constant = self._text(node.value)
        return lambda _: constant

    # --- Equality ---

    def _equal(self, left: Node, right: Node) -> Condition[P]:
        match left, right:
            case nodes.Nothing(), nodes.Nothing():
                return lambda _: True
            case nodes.Number(), nodes.Number():
                is_equal = order(left.value, right.value) == 0
                return lambda _: is_equal
            case (nodes.PropertyNode() | nodes.Text(), nodes.Number()):
                return _equal_number(self.value(left), self._numbers[right.kind], right.value, missing=None)
            case (nodes.Number(), nodes.PropertyNode() | nodes.Text()):
                return _equal_number(self.value(right), self._numbers[left.kind], left.value, missing=False)
            case (nodes.PropertyNode(), nodes.Text(value)):
                return _equal_constant(self.value(left), self._text(value))
            case (nodes.PropertyNode() | nodes.Text(), nodes.PropertyNode() | nodes.Text()):
                return _equal_values(self.value(left), self.value(right))
        return self._equal_mixed(left, right)

    def _equal_mixed(self, left: Node, right: Node) -> Condition[P]:
        """Compile an equality with a truth value or NULL."""
        left_value, right_value = self._any_value(left), self._any_value(right)

        def equal(properties: P) -> bool | None:
            one, other = left_value(properties), right_value(properties)
            if one is None:
                return True if other is None else None
            if other is None:
                return False
            if isinstance(one, str | bytes) and isinstance(other, bool):
                return (one.lower() in ("true", b"true")) is other
            if isinstance(one, bool) and isinstance(other, str | bytes):
                raise EvaluationError("cannot compare a truth value with a text on its right")
            return type(one) is type(other) and one == other

        return equal

    def _any_value(self, node: Node) -> Callable[[P], AnyStr | bool | float | None]:
        match node:
            case nodes.PropertyNode() | nodes.Text():
                return self.value(node)
            case nodes.Number(value):
                return lambda _: value
            case nodes.Nothing():
                return lambda _: None
        return self.condition(node)

    def _is_null(self, operand: Node) -> Condition[P]:
        value = self._any_value(operand)
        return lambda properties: value(properties) is None

    # --- Order ---

    def _compare(self, left: Node, comparison: ComparisonOperator, right: Node) -> Condition[P]:
        holds = OPERATORS[comparison]
        match left, right:
            case nodes.PropertyNode(name), nodes.Number():
                return self._compare_number(name, right, holds)
            case nodes.Number(), nodes.PropertyNode(name):
                return self._compare_number(name, left, OPERATORS[TURNED[comparison]])
            case nodes.PropertyNode(name), nodes.PropertyNode(other_name):
                return _compare_properties(
                    self._read(name), self._read(other_name), self._numbers[NumberKind.DOUBLE], holds
                )
            case nodes.Number(), nodes.Number():
                result = holds(order(left.value, right.value), 0)
                return lambda _: result
        return lambda _: None  # NULL has no order

    def _compare_number(self, name: str, number: Number, holds: Holds) -> Condition[P]:
        read, parse, bound = self._read(name), self._numbers[number.kind], number.value
        if number.kind is NumberKind.DOUBLE:
            return _compare_double(read, parse, bound, holds)

        def compare(properties: P) -> bool | None:
            value = read(properties)
            return None if value is None else holds(parse(value), bound)

        return compare

    # --- Texts ---

    def _find(self, operand: Node, search: Search, text: str, negated: bool) -> Condition[P]:
        if not isinstance(operand, nodes.PropertyNode | nodes.Text) or not text:
            return lambda _: False
        read, wanted = self.value(operand), self._text(text)
        test: Callable[[AnyStr], bool] = {
            Search.CONTAINS: lambda value: wanted in value,
            Search.STARTS_WITH: lambda value: value.startswith(wanted),
            Search.ENDS_WITH: lambda value: value.endswith(wanted),
        }[search]

        def find(properties: P) -> bool:
            value = read(properties)
            return value is not None and test(value) is not negated

        return find


def _not(condition: Condition[P]) -> Condition[P]:
    def inverted(properties: P) -> bool | None:
        truth = condition(properties)
        return None if truth is None else not truth

    return inverted


def _all(conditions: list[Condition[P]]) -> Condition[P]:
    if len(conditions) == 2:
        return _both(*conditions)

    def all_hold(properties: P) -> bool | None:
        result: bool | None = True
        for condition in conditions:
            truth = condition(properties)
            if truth is False:
                return False
            if truth is None:
                result = None
        return result

    return all_hold


def _both(first: Condition[P], second: Condition[P]) -> Condition[P]:
    """As `_all` for two conditions, the most frequent case, without a loop."""

    def both_hold(properties: P) -> bool | None:
        truth = first(properties)
        if truth is False:
            return False
        other = second(properties)
        return other if truth or other is False else None

    return both_hold


def _any(conditions: list[Condition[P]]) -> Condition[P]:
    def any_holds(properties: P) -> bool | None:
        result: bool | None = False
        for condition in conditions:
            truth = condition(properties)
            if truth is True:
                return True
            if truth is None:
                result = None
        return result

    return any_holds


def _equal_constant(read: Read[P, AnyStr], constant: AnyStr) -> Condition[P]:
    def equal(properties: P) -> bool | None:
        value = read(properties)
        return None if value is None else value == constant

    return equal


def _equal_values(left: Read[P, AnyStr], right: Read[P, AnyStr]) -> Condition[P]:
    def equal(properties: P) -> bool | None:
        one, other = left(properties), right(properties)
        return None if one is None and other is not None else one == other

    return equal


def _equal_number(
    read: Read[P, AnyStr], parse: Parse[AnyStr], number: float, *, missing: bool | None
) -> Condition[P]:
    def equal(properties: P) -> bool | None:
        value = read(properties)
        return missing if value is None else order(parse(value), number) == 0

    return equal


def _one_of(read: Read[P, AnyStr], values: frozenset[AnyStr], negated: bool) -> Condition[P]:
    def one_of(properties: P) -> bool | None:
        value = read(properties)
        return None if value is None else (value in values) is not negated

    return one_of


def _compare_double(read: Read[P, AnyStr], parse: Parse[AnyStr], bound: float, holds: Holds) -> Condition[P]:
    def compare(properties: P) -> bool | None:
        value = read(properties)
        return None if value is None else holds(order(parse(value), bound), 0)

    return compare


def _compare_properties(
    left: Read[P, AnyStr], right: Read[P, AnyStr], parse: Parse[AnyStr], holds: Holds
) -> Condition[P]:
    def compare(properties: P) -> bool | None:
        one, other = left(properties), right(properties)
        if one is None or other is None:
            return None
        return holds(order(parse(one), parse(other)), 0)

    return compare


SQL92 = "SQL92"
CACHED_MAX = 100
VERDICTS_MAX = 1024
"""Combinations of values whose verdict an expression remembers, each of up to `VERDICT_BYTES_MAX`."""
VERDICT_BYTES_MAX = 256

Values = tuple[bytes | None, ...]

OF_MAPPING: Access[Mapping[str, str], str] = Access(
    read=lambda name: lambda properties: properties.get(name), text=str, numbers=READERS
)


def _of_values(names: list[str]) -> Access[Values, bytes]:
    """Access to the encoded values of these properties, in this order."""
    return Access(
        read=lambda name: operator.itemgetter(names.index(name)),
        # A lone surrogate occurs in no record, so it never matches.
        text=_encoded,
        numbers=READERS_OF_BYTES,
    )


def _values_pattern(names: list[str]) -> re.Pattern[bytes]:
    """Return a pattern whose groups are the values that `decode_properties` would return, or None.

    Of several values it takes the last one that is not empty.
    """
    each = b"(?=(?:.*\x02|)%b\x01([^\x02]+)|)"
    return re.compile(b"".join(each % re.escape(_encoded(name)) for name in names), re.DOTALL)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


class TextMatcher(Protocol):
    """A condition on the encoded properties from one position of a text to another."""

    def __call__(self, text: bytes | memoryview, start: int = 0, stop: int = sys.maxsize, /) -> bool: ...


def _text_matcher(names: list[str], condition: Condition[Values]) -> TextMatcher:
    """It runs for every message of a filtered pull. Values often repeat: their verdicts are remembered."""
    find = cast("Callable[[bytes | memoryview, int, int], re.Match[bytes]]", _values_pattern(names).match)
    verdicts: dict[Values, bool] = {}
    remembered = verdicts.get

    def matches(text: bytes | memoryview, start: int = 0, stop: int = sys.maxsize) -> bool:
        verdict = remembered(values := find(text, start, stop).groups())
        return judge(values) if verdict is None else verdict

    def judge(values: Values) -> bool:
        try:
            verdict = condition(values) is True
        except EvaluationError:
            verdict = False
        if len(verdicts) < VERDICTS_MAX and sum(map(len, filter(None, values))) <= VERDICT_BYTES_MAX:
            verdicts[values] = verdict
        return verdict

    return matches


class Selector:
    """A compiled expression. Any thread."""

    def __init__(self, expression: str) -> None:
        """Raises BadSelector."""
        # Imported on first use: the parser takes a tenth of a second to load.
        from skylark.model.sql92.parser import parse  # noqa: PLC0415

        node = parse(expression)
        names = nodes.property_names(node)
        self.expression = expression
        self._of_mapping = compile_condition(node, OF_MAPPING)
        self.matches_text = _text_matcher(names, compile_condition(node, _of_values(names)))
        """As `matches`, for the encoded properties at a place of a text, without parsing all of them."""

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Return TRUE, FALSE or None (unknown) for a message. Raises EvaluationError."""
        return self._of_mapping(properties)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message matches; unknown and errors do not match."""
        try:
            return self._of_mapping(properties) is True
        except EvaluationError:
            return False


def compile_selector(expression: str) -> Selector:
    """Compile an expression; recent ones are cached. Raises BadSelector."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        return Selector(expression)
    compiled = _compiled(expression)
    if isinstance(compiled, BadSelector):
        raise compiled.with_traceback(None)
    return compiled


@lru_cache(CACHED_MAX)
def _compiled(expression: str) -> Selector | BadSelector:
    try:
        return Selector(expression)
    except BadSelector as error:
        return error
