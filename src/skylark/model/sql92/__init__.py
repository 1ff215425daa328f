"""Pure. SQL92 selectors: subscriptions that filter messages by properties, with RocketMQ's semantics.

`compile_selector("a > 5 AND b = 'x'").matches({"a": "7", "b": "x"})` is True. There is no LIKE and no
arithmetic; parsing stops at the first token that cannot continue the expression.
"""

from skylark.model.sql92.nodes import EXPRESSION_CHARS_MAX, NESTING_MAX, BadSelector
from skylark.model.sql92.selector import SQL92, Selector, compile_selector
from skylark.model.sql92.values import EvaluationError

__all__ = [
    "EXPRESSION_CHARS_MAX",
    "NESTING_MAX",
    "SQL92",
    "BadSelector",
    "EvaluationError",
    "Selector",
    "compile_selector",
]
