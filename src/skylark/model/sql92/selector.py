"""Pure. Selectors ready for use: compiled once to functions of a message's properties."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from skylark.model.message import property_finder
from skylark.model.sql92.evaluation import Access, compile_condition
from skylark.model.sql92.limits import EXPRESSION_CHARS_MAX, BadSelector
from skylark.model.sql92.values import READERS, READERS_OF_BYTES, EvaluationError

SQL92 = "SQL92"
CACHED_MAX = 100

OF_MAPPING: Access[Mapping[str, str], str] = Access(
    read=lambda name: lambda properties: properties.get(name), text=str, numbers=READERS
)
OF_TEXT: Access[bytes, bytes] = Access(
    # Half of a surrogate pair is in no record: nothing equals it.
    read=property_finder,
    text=lambda text: text.encode(errors="surrogatepass"),
    numbers=READERS_OF_BYTES,
)


class Selector:
    """A compiled expression. Immutable, any thread."""

    def __init__(self, expression: str) -> None:
        """Raises BadSelector."""
        # The parser takes a tenth of a second to load: only who uses selectors waits for it.
        from skylark.model.sql92.parsing import parse  # noqa: PLC0415

        node = parse(expression)
        self.expression = expression
        self._of_mapping = compile_condition(node, OF_MAPPING)
        self.evaluate_text = compile_condition(node, OF_TEXT)
        """As `evaluate`, of the text of properties as records hold it, which is not taken apart."""

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Return what the expression says of a message, None for unknown. Raises EvaluationError."""
        return self._of_mapping(properties)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Say whether a message with these properties is wanted: not if that is unknown or an error."""
        try:
            return self._of_mapping(properties) is True
        except EvaluationError:
            return False

    def matches_text(self, properties: bytes) -> bool:
        """Say the same of the text of properties."""
        try:
            return self.evaluate_text(properties) is True
        except EvaluationError:
            return False


def compile_selector(expression: str) -> Selector:
    """Return the selector of an expression; those used last are remembered. Raises BadSelector."""
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
