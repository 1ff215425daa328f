"""Pure. The syntax tree of a selector, its limits, and the error for an invalid one.

The type of each node's value is known before any message is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from skylark.model.sql92.values import NumberKind

EXPRESSION_CHARS_MAX = 8192
NESTING_MAX = 100
"""Limit of nested parentheses, signs, NOTs and chains of comparisons."""


class BadSelector(ValueError):
    """An invalid selector: `position` is the index of the character."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason}, at character {position + 1}")
        self.position = position


class ComparisonOperator(Enum):
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="


@dataclass(frozen=True, slots=True)
class PropertyNode:
    """The text of a property, or NULL."""

    name: str


@dataclass(frozen=True, slots=True)
class Text:
    """A quoted text."""

    value: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number. A signed number is not a literal: fewer errors are detected at compile time."""

    value: int | float
    kind: NumberKind
    is_literal: bool = True


@dataclass(frozen=True, slots=True)
class Nothing:
    """The value of a minus before anything but a number."""


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE, FALSE, or NULL as None."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Not:
    operand: Node


@dataclass(frozen=True, slots=True)
class All:
    """AND of two or more."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """OR of two or more."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Equal:
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Node


@dataclass(frozen=True, slots=True)
class Compare:
    left: Node
    comparison: ComparisonOperator
    right: Node


@dataclass(frozen=True, slots=True)
class OneOf:
    """IN: a property equals one of several texts; `negated`: none of them."""

    operand: PropertyNode
    values: frozenset[str]
    negated: bool


class Search(Enum):
    """Text search operators."""

    CONTAINS = "CONTAINS"
    STARTS_WITH = "STARTSWITH"
    ENDS_WITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Find:
    operand: Node
    search: Search
    text: str
    negated: bool


Value = PropertyNode | Text | Number | Nothing
Condition = Truth | Not | All | Any | Equal | IsNull | Compare | OneOf | Find
Node = Value | Condition


def depth(node: Node) -> int:
    """Return the nesting depth of conditions."""
    return max(level for _, level in _walk(node))


def property_names(node: Node) -> list[str]:
    """Return the names of all properties in an expression, each once."""
    return sorted({each.name for each, _ in _walk(node) if isinstance(each, PropertyNode)})


def _walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Yield each node and its level, without recursion, which has its own limit."""
    waiting: list[tuple[Node, int]] = [(node, 1)]
    while waiting:
        each, level = waiting.pop()
        yield each, level
        waiting += [(operand, level + 1) for operand in _operands(each)]


def _operands(node: Node) -> tuple[Node, ...]:
    match node:
        case Not(operand) | IsNull(operand) | Find(operand) | OneOf(operand):
            return (operand,)
        case All(operands) | Any(operands):
            return operands
        case Equal(left, right) | Compare(left, _, right):
            return (left, right)
    return ()
