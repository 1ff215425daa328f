"""Pure. Which messages of a topic a group wants, by their tags: `*`, or `TagA || TagB`."""

TAG = "TAG"
MATCH_ALL = "*"
OR = "||"
# What Java's `trim` takes off.
JAVA_BLANKS = "".join(map(chr, range(33)))


def is_tag_type(expression_type: str | None) -> bool:
    """Say whether an expression is one of tags; without a type it is."""
    return not expression_type or expression_type == TAG


def split_tags(expression: str | None) -> tuple[str, ...] | None:
    """Return the tags of an expression, None for all messages.

    Blanks alone are no tag, and match nothing. Raises ValueError for separators alone.
    """
    if not expression or expression == MATCH_ALL:
        return None
    pieces = expression.split(OR)
    if not any(pieces):
        raise ValueError(f"nothing but separators: {expression[:40]!r}")
    tags = (piece.strip(JAVA_BLANKS) for piece in pieces)
    return tuple(dict.fromkeys(tag for tag in tags if tag))
