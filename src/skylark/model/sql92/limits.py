"""Pure. What a selector may be, and the error for one that is not."""

EXPRESSION_CHARS_MAX = 8192
NESTING_MAX = 100
"""Parentheses, signs, NOTs and chains of comparisons, one inside of the other."""


class BadSelector(ValueError):
    """A selector that cannot be used: `position` counts characters from 0."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason}, at character {position + 1}")
        self.position = position
