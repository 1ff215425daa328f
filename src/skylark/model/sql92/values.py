"""Pure. Parses and orders numbers as Java does, for comparisons of properties with numbers."""

import math
import re
from enum import Enum

from skylark.model.tag_expression import JAVA_BLANKS

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
DIGITS_MAX = 4000
"""Limit of digits, above any number that fits: parsing more digits takes more than linear time."""

_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?", re.ASCII)
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?", re.ASCII
)
_NAMED = {sign + name: float(sign + name) for sign in ("", "+", "-") for name in ("NaN", "Infinity")}


class EvaluationError(ValueError):
    """A property that is compared with a number is not a number: the message does not match."""


class NumberKind(Enum):
    """Types of numbers. A property is parsed as the type of the number it is compared with."""

    INT32 = "int"
    INT64 = "long"
    DOUBLE = "double"


def kind_of(number: int | float) -> NumberKind:
    """Return the smallest type of a literal."""
    if isinstance(number, float):
        return NumberKind.DOUBLE
    return NumberKind.INT32 if number <= INT32_MAX else NumberKind.INT64


def read_int32(text: str) -> int:
    """Raises EvaluationError."""
    return _read_int(text, INT32_MAX, "int")


def read_int64(text: str) -> int:
    """Raises EvaluationError."""
    return _read_int(text, INT64_MAX, "long")


def _read_int(text: str, maximum: int, kind: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if digits.isdecimal() and (len(digits) <= DIGITS_MAX or len(digits := digits.lstrip("0") or "0") < 20):
        number = -int(digits) if text[0] == "-" else int(digits)
        if -maximum - 1 <= number <= maximum:
            return number
    raise EvaluationError(f"{text[:40]!r} is not a valid {kind}")


def read_double(text: str) -> float:
    """Raises EvaluationError."""
    trimmed = text.strip(JAVA_BLANKS)
    if _DECIMAL.fullmatch(trimmed):
        return float(trimmed.rstrip("fFdD"))
    if trimmed in _NAMED:
        return _NAMED[trimmed]
    found = _HEXADECIMAL.fullmatch(trimmed)
    if found is None:
        raise EvaluationError(f"{text[:40]!r} is not a valid double")
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -math.inf if trimmed.startswith("-") else math.inf


def int32_of_bytes(text: bytes) -> int:
    """Raises EvaluationError."""
    # Fast path for short numbers: this runs for every message.
    return int(text) if text.isdigit() and len(text) < 10 else read_int32(_decoded(text))


def int64_of_bytes(text: bytes) -> int:
    """Raises EvaluationError."""
    return int(text) if text.isdigit() and len(text) < 19 else read_int64(_decoded(text))


def double_of_bytes(text: bytes) -> float:
    """Raises EvaluationError."""
    return read_double(_decoded(text))


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")


READERS = {NumberKind.INT32: read_int32, NumberKind.INT64: read_int64, NumberKind.DOUBLE: read_double}
READERS_OF_BYTES = {
    NumberKind.INT32: int32_of_bytes,
    NumberKind.INT64: int64_of_bytes,
    NumberKind.DOUBLE: double_of_bytes,
}


def order(left: float, right: float) -> int:
    """Compare as Java does, -1, 0 or 1: NaN is the largest and equals itself, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right != 0:
        return 0
    left_key, right_key = (
        (math.isnan(number), math.copysign(1, number) if number == 0 else 0) for number in (left, right)
    )
    return (left_key > right_key) - (left_key < right_key)
