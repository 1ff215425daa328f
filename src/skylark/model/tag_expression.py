"""Pure. Tag expressions of subscriptions: `*`, or `TagA || TagB`."""

TAG = "TAG"
MATCH_ALL = "*"
OR = "||"
# The characters that Java's `trim` removes.
JAVA_BLANKS = "".join(map(chr, range(33)))


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether the type is TAG or missing."""
    return not expression_type or expression_type == TAG


def split_tags(expression: str | None) -> tuple[str, ...] | None:
    """Return the tags of an expression, None for all messages.

    A blank expression has no tags and matches nothing. Raises ValueError for separators alone.
    """
    if not expression or expression == MATCH_ALL:
        return None
    pieces = expression.split(OR)
    if not any(pieces):
        raise ValueError(f"invalid tag expression {expression[:40]!r}; try 'TagA || TagB'")
    tags = (piece.strip(JAVA_BLANKS) for piece in pieces)
    return tuple(dict.fromkeys(tag for tag in tags if tag))
