"""Pure. Parses a selector into a syntax tree: RocketMQ's grammar and its compile-time errors.

Parsing stops at the first token that cannot continue the expression: `a = 1 whatever` is `a = 1`. Only that
token itself must be valid.
"""

from __future__ import annotations

from typing import Any as Child

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from skylark.model.sql92 import nodes
from skylark.model.sql92.nodes import (
    EXPRESSION_CHARS_MAX,
    NESTING_MAX,
    BadSelector,
    ComparisonOperator,
    Node,
    Search,
)
from skylark.model.sql92.values import INT64_MAX, kind_of

DOUBLE_MAX = 1.7976931348623157e308
EXCERPT_CHARS = 20

KEYWORDS = (
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"
)  # fmt: skip

GRAMMAR = r"""
selector: disjunction
?disjunction: conjunction (OR conjunction)+ -> any
            | conjunction
?conjunction: equality (AND equality)+ -> all
            | equality
?equality: comparison
         | equality EQUAL comparison -> equal
         | equality DIFFERENT comparison -> different
         | equality IS NULL -> is_null
         | equality IS NOT NULL -> is_not_null
?comparison: unary
           | comparison ORDER unary -> compare
           | comparison (CONTAINS | STARTSWITH | ENDSWITH) STRING -> find
           | comparison NOT (CONTAINS | STARTSWITH | ENDSWITH) STRING -> find_not
           | comparison BETWEEN unary AND unary -> between
           | comparison NOT BETWEEN unary AND unary -> not_between
           | comparison IN "(" STRING ("," STRING)* ")" -> one_of
           | comparison NOT IN "(" STRING ("," STRING)* ")" -> none_of
?unary: PLUS unary -> plus
      | MINUS unary -> minus
      | NOT unary -> not_
      | primary
?primary: STRING -> string
        | INTEGER -> integer
        | FLOAT -> float
        | TRUE -> truth
        | FALSE -> truth
        | NULL -> truth
        | NAME -> property
        | "(" disjunction ")"

%declare NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH
EQUAL: "="
DIFFERENT.2: "<>"
ORDER: ">=" | "<=" | ">" | "<"
PLUS: "+"
MINUS: "-"
STRING: /'(?:''|[^'])*'/
FLOAT.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
INTEGER: /0|[1-9][0-9]*[lL]?/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
LINE_COMMENT.2: /--[^\r\n]*+(?:\r\n|\r|\n)/
COMMENT.2: /\/\*(?:.|\n)*?\*\//
BLANKS: /[ \t\n\r\f]+/
%ignore LINE_COMMENT
%ignore COMMENT
%ignore BLANKS
"""

_SYMBOLS = {
    "EQUAL": "=", "DIFFERENT": "<>", "ORDER": "> >= < <=", "PLUS": "+", "MINUS": "-", "LPAR": "(",
    "RPAR": ")",
    "COMMA": "','", "STRING": "a text in single quotes", "INTEGER": "a number", "FLOAT": "a decimal number",
    "NAME": "a property",
}  # fmt: skip


def parse(text: str) -> Node:
    """Parse a selector. Raises BadSelector."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise BadSelector(
            f"the expression has more than {EXPRESSION_CHARS_MAX} characters", EXPRESSION_CHARS_MAX
        )
    parser = _PARSER.parse_interactive(text)
    try:
        for token in parser.iter_parse():
            if len(parser.parser_state.state_stack) > NESTING_MAX:
                raise BadSelector(f"more than {NESTING_MAX} levels of nesting", _at(token))
    except UnexpectedToken as error:
        token = error.token
        unfinished = _expected(error, repr(token.value[:EXCERPT_CHARS]), _at(token))
        return _end(parser, unfinished, _at(token))
    except UnexpectedCharacters as error:
        position = error.pos_in_stream or 0
        raise BadSelector(f"unexpected character {text[position]!r}", position) from None
    return _end(parser, None, len(text))


def _end(parser: Child, unfinished: BadSelector | None, end: int) -> Node:
    """Finish parsing at `end`; raise `unfinished` if the expression is incomplete."""
    try:
        node: Node = parser.feed_eof()
    except UnexpectedToken as error:
        raise unfinished or _expected(error, "end", end) from None
    if nodes.depth(node) > NESTING_MAX:
        raise BadSelector(f"more than {NESTING_MAX} levels of nesting", end)
    return node


def _expected(error: UnexpectedToken, found: str, position: int) -> BadSelector:
    wanted = sorted(_SYMBOLS.get(name, name) for name in error.expected if name != "$END")
    return BadSelector(f"unexpected {found}; expected {', '.join(wanted)}", position)


def _keyword(token: Token) -> Token:
    upper = token.value.upper()
    return Token.new_borrow_pos(upper, token.value, token) if upper in KEYWORDS else token


@v_args(inline=True)
class _Nodes(Transformer[Token, Node]):
    """Builds nodes while parsing; raises BadSelector for operands that can never be compared."""

    # --- Values ---

    def string(self, token: Token) -> Node:
        return nodes.Text(_unquoted(token))

    def integer(self, token: Token) -> Node:
        value = int(token.rstrip("lL"))
        if value > INT64_MAX:
            raise BadSelector(f"{token[:EXCERPT_CHARS]} does not fit into 64 bits", _at(token))
        return nodes.Number(value, kind_of(value))

    def float(self, token: Token) -> Node:
        value = float(token)
        if not 0 < value <= DOUBLE_MAX:
            raise BadSelector(f"{token[:EXCERPT_CHARS]} exceeds the range of a double", _at(token))
        return nodes.Number(value, kind_of(value))

    def truth(self, token: Token) -> Node:
        return nodes.Truth({"TRUE": True, "FALSE": False}.get(token.type))

    def property(self, token: Token) -> Node:
        return nodes.PropertyNode(str(token))

    def plus(self, _: Token, operand: Node) -> Node:
        return operand

    def minus(self, _: Token, operand: Node) -> Node:
        if isinstance(operand, nodes.Number):
            return nodes.Number(-operand.value, operand.kind, is_literal=False)
        return nodes.Nothing()

    # --- Truth ---

    def selector(self, node: Node) -> Node:
        return _condition(node, 0)

    def not_(self, token: Token, operand: Node) -> Node:
        return nodes.Not(_condition(operand, _at(token)))

    def all(self, *children: Node | Token) -> Node:
        return nodes.All(_operands(children))

    def any(self, *children: Node | Token) -> Node:
        return nodes.Any(_operands(children))

    # --- Comparisons ---

    def equal(self, left: Node, token: Token, right: Node) -> Node:
        for operand in (left, right):
            if operand == nodes.Truth(None):
                raise BadSelector("NULL cannot be compared; use IS NULL or IS NOT NULL", _at(token))
        if isinstance(left, nodes.Truth) and _is_literal(right) and not isinstance(right, nodes.Truth):
            raise BadSelector("TRUE and FALSE cannot be compared with a number or text", _at(token))
        return nodes.Equal(left, right)

    def different(self, left: Node, token: Token, right: Node) -> Node:
        return nodes.Not(self.equal(left, token, right))

    def is_null(self, operand: Node, *_: Token) -> Node:
        return nodes.IsNull(operand)

    def is_not_null(self, operand: Node, *_: Token) -> Node:
        return nodes.Not(nodes.IsNull(operand))

    def compare(self, left: Node, token: Token, right: Node) -> Node:
        return _compare(left, ComparisonOperator(token.value), right, _at(token))

    def between(self, operand: Node, token: Token, low: Node, _: Token, high: Node) -> Node:
        at = _at(token)
        above = _compare(operand, ComparisonOperator.GREATER_OR_EQUAL, low, at)
        below = _compare(operand, ComparisonOperator.LESS_OR_EQUAL, high, at)
        if (
            isinstance(low, nodes.Number)
            and isinstance(high, nodes.Number)
            and low.is_literal
            and high.is_literal
            and low.value > high.value
        ):
            raise BadSelector(f"empty range BETWEEN {low.value} AND {high.value}", at)
        return nodes.All((above, below))

    def not_between(self, operand: Node, _: Token, token: Token, low: Node, and_: Token, high: Node) -> Node:
        below = _compare(operand, ComparisonOperator.LESS, low, _at(token))
        return nodes.Any((below, _compare(operand, ComparisonOperator.GREATER, high, _at(token))))

    def one_of(self, operand: Node, token: Token, *texts: Token) -> Node:
        return self._one_of(operand, token, texts, negated=False)

    def none_of(self, operand: Node, _: Token, token: Token, *texts: Token) -> Node:
        return self._one_of(operand, token, texts, negated=True)

    def _one_of(self, operand: Node, token: Token, texts: tuple[Token, ...], *, negated: bool) -> Node:
        if not isinstance(operand, nodes.PropertyNode):
            raise BadSelector("the left side of IN must be a property", _at(token))
        return nodes.OneOf(operand, frozenset(map(_unquoted, texts)), negated)

    def find(self, operand: Node, token: Token, text: Token) -> Node:
        return nodes.Find(operand, Search(token.type), _unquoted(text), negated=False)

    def find_not(self, operand: Node, _: Token, token: Token, text: Token) -> Node:
        return nodes.Find(operand, Search(token.type), _unquoted(text), negated=True)


def _unquoted(quoted: str) -> str:
    return quoted[1:-1].replace("''", "'")


def _at(token: Token) -> int:
    return token.start_pos or 0


def _is_literal(node: Node) -> bool:
    return isinstance(node, nodes.Text | nodes.Truth) or (isinstance(node, nodes.Number) and node.is_literal)


def _condition(node: Node, position: int) -> Node:
    if not isinstance(node, nodes.Condition | nodes.PropertyNode):
        raise BadSelector("expected a condition or a property, not a number or text", position)
    return node


def _operands(children: tuple[Node | Token, ...]) -> tuple[Node, ...]:
    """Return the checked operands of AND or OR; an error has the position of the adjacent keyword."""
    positions = [_at(child) for child in children if isinstance(child, Token)]
    operands = [child for child in children if not isinstance(child, Token)]
    return tuple(
        _condition(operand, positions[max(number - 1, 0)]) for number, operand in enumerate(operands)
    )


def _compare(left: Node, comparison: ComparisonOperator, right: Node, position: int) -> Node:
    for operand in (left, right):
        if isinstance(operand, nodes.Text | nodes.Condition):
            raise BadSelector("only numbers and properties can be ordered", position)
    return nodes.Compare(left, comparison, right)


_PARSER = Lark(
    GRAMMAR, start="selector", parser="lalr", lexer="basic", lexer_callbacks={"NAME": _keyword},
    transformer=_Nodes(),
)  # fmt: skip
