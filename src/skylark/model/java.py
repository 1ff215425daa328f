"""Pure. Java compatibility: the string hash, and fastjson's JSON dialect.

RocketMQ's files and bodies are JSON, except that maps with integer keys have bare keys, `{0:12}`, and maps
with object keys have objects as keys, `{{"queueId":0}:12}`.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn, cast

import msgspec

from skylark.errors import BadJson

# --- String hash ---

# The hash of a text is the number with its code units as digits in base 31, modulo 2^32. `int(…, 31)` parses
# such numbers in C, but only digits below 31: so each byte is split into 31 * high + low, and high and low
# digits are parsed as two numbers.
_DIGITS = b"0123456789abcdefghijklmnopqrstu"
_LOW_DIGIT = bytes(_DIGITS[byte % 31] for byte in range(256))
_HIGH_DIGIT = bytes(_DIGITS[byte // 31] for byte in range(256))
# `int` takes quadratic time, so long texts are split.
_PIECE_BYTES = 256
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(_PIECE_BYTES + 1)]
_INT_MIN = -(1 << 31)
# Several texts form one number whose digits are folded in pairs: bytes into digits of two bytes (left times
# 31 plus right), these into digits of four bytes (times 31^2), and so on until every text is one digit. No
# digit overflows. Masks select every other digit.
_LANE_BYTES = (32, 64)  # texts, by their length, are padded to one of these
_LANES_MAX = 64
_MASK_BYTES = _LANE_BYTES[-1] * _LANES_MAX
_FOLDS = [
    (
        8 * digit_bytes,
        int.from_bytes((bytes(digit_bytes) + b"\xff" * digit_bytes) * (_MASK_BYTES // digit_bytes // 2)),
        31**digit_bytes,
    )
    for digit_bytes in (1, 2, 4, 8, 16, 32)
]


def java_hash(text: str) -> int:
    """Return Java's `text.hashCode()`, a signed 32-bit number over the text's UTF-16 code units."""
    return java_hash_from(0, text)


def java_hash_from(prefix_hash: int, text: str) -> int:
    """Return the hash of `prefix + text` where `prefix_hash` is `java_hash(prefix)`."""
    if not text:
        return prefix_hash
    if text.isascii():
        unsigned = _base_31(prefix_hash, text.encode())
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        unsigned = _base_31(0, units[::2]) * 256 + _base_31(prefix_hash, units[1::2])
    return ((unsigned - _INT_MIN) & 0xFFFFFFFF) + _INT_MIN


def java_hashes_from(prefix_hashes: Sequence[int], texts: Sequence[bytes]) -> list[int]:
    """Return `java_hash_from` for many UTF-8 texts, at a third of the cost."""
    longest = len(max(texts, key=len, default=b""))
    if longest > _LANE_BYTES[-1] or not b"".join(texts).isascii():
        pairs = zip(prefix_hashes, texts, strict=True)
        return [java_hash_from(prefix, text.decode(errors="replace")) for prefix, text in pairs]
    lane_bytes = _LANE_BYTES[longest > _LANE_BYTES[0]]
    folded: list[int] = []
    for start in range(0, len(texts), _LANES_MAX):
        folded += _folded(texts[start : start + _LANES_MAX], lane_bytes)
    powers = map(_POWERS.__getitem__, map(len, texts))
    return [
        ((prefix * power + number - _INT_MIN) & 0xFFFFFFFF) + _INT_MIN
        for prefix, power, number in zip(prefix_hashes, powers, folded, strict=True)
    ]


def _folded(texts: Sequence[bytes], lane_bytes: int) -> tuple[int, ...]:
    """Return the numbers with the texts' bytes as digits in base 31, modulo 2^32."""
    lanes = [text.rjust(lane_bytes, b"\0") for text in texts]
    number = int.from_bytes(b"".join(lanes))
    for bits, mask, weight in _FOLDS:
        if bits == 8 * lane_bytes:
            break
        number = (number >> bits & mask) * weight + (number & mask)
    return _last_words(len(lanes), lane_bytes)(number.to_bytes(lane_bytes * len(lanes)))


@lru_cache(2 * _LANES_MAX)
def _last_words(lanes: int, lane_bytes: int) -> Callable[[bytes], tuple[int, ...]]:
    return struct.Struct(">" + f"{lane_bytes - 4}xI" * lanes).unpack


def index_key_hash(text_hash: int) -> int:
    """Return the hash as stored in index files: its absolute value, 0 for -2^31."""
    return abs(text_hash) if text_hash != _INT_MIN else 0


def _base_31(number: int, units: bytes) -> int:
    """Return `number` with `units` appended as digits in base 31, equal modulo 2^32."""
    if len(units) > _PIECE_BYTES:
        for start in range(0, len(units), _PIECE_BYTES):
            number = _base_31(number, units[start : start + _PIECE_BYTES]) & 0xFFFFFFFF
        return number
    return (
        number * _POWERS[len(units)]
        + int(units.translate(_LOW_DIGIT), 31)
        + int(units.translate(_HIGH_DIGIT), 31) * 31
    )


# --- fastjson ---

DEPTH_MAX = 128
_DIGITS_MAX = 400

Scalar = str | int | float | bool | None
_SCALARS = (str, int, float)  # bool is an int


class ObjectKey(Mapping[str, Scalar]):
    """An object as the key of a map, such as a message queue in an offset table. Immutable and hashable."""

    __slots__ = ("_members",)

    def __init__(self, members: Mapping[str, Scalar]) -> None:
        self._members = dict(members)

    def __getitem__(self, name: str) -> Scalar:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __hash__(self) -> int:
        return hash(frozenset(self._members.items()))

    def __repr__(self) -> str:
        return f"ObjectKey({self._members!r})"


def loads(data: bytes) -> Any:
    """Read one document: str, int, float, bool, None, list, and dict with keys of type str, int or ObjectKey.

    Accepts JSON and fastjson's extensions: bare integers, bare names and objects as keys, single
    quotes, superfluous commas, raw control characters in strings. Raises BadJson for everything else, also
    for documents nested too deeply (the dialect: more than `DEPTH_MAX`) and for overlong numbers.
    """
    for decode in (msgspec.json.decode, _decode_other_keys):
        try:
            return decode(data)
        except (ValueError, RecursionError):
            pass  # the next parser accepts more; the last one reports errors precisely
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadJson(error.start, "not UTF-8") from None
    return _JsonReader(text).document()


def dumps(value: Any, *, indent: bool = False) -> bytes:
    """Write a document as fastjson does: members sorted by key, those that are None left out, no spaces.

    Takes what `loads` gives, and tuples; int keys are written bare and mappings as objects. With `indent`,
    one member per line, indented by tabs, as in RocketMQ's files. Raises TypeError for other types and
    ValueError for strings with half a surrogate pair.
    """
    parts: list[bytes] = []
    _write(value, parts, b"\n" if indent else b"")
    return b"".join(parts)


_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_OBJECT = rb'\{[^"{}\[\]]*+(?:%b[^"{}\[\]]*+)*+\}' % _STRING
_UP_TO_KEY = re.compile(
    rb"((?:%b|[^\"{,]++|[{,](?!\s*+[{0-9-]))*+(?:[{,]\s*+|\Z))(?:(-?[0-9]++|%b)\s*+:)?+" % (_STRING, _OBJECT),
    re.DOTALL,
)
_KEY_MARK = "\0"
_decode_key = msgspec.json.Decoder(dict[str, Scalar]).decode


def _decode_other_keys(data: bytes) -> Any:
    """Read JSON whose maps may have bare integers or objects as keys. Raises ValueError, RecursionError.

    It is several times faster than `_JsonReader`: such keys are replaced by marked strings, which the JSON
    decoder accepts, and put back.
    """
    if b"\\u0000" in data:
        raise ValueError("a string may look like a marked key")
    parts: list[bytes] = []
    marks: dict[bytes, bytes] = {}
    keys: dict[str, int | ObjectKey] = {}
    at = 0
    while at < len(data):
        match = _UP_TO_KEY.match(data, at)
        if match is None:
            raise ValueError("unterminated string")
        before, key = match.groups()
        parts.append(before)
        if key is not None:
            if key not in marks:
                mark = f"{_KEY_MARK}{len(marks)}"
                marks[key] = msgspec.json.encode(mark) + b":"
                keys[mark] = ObjectKey(_decode_key(key)) if key.startswith(b"{") else int(key)
            parts.append(marks[key])
        at = match.end()
    return _unmarked(msgspec.json.decode(b"".join(parts)), keys, 0)


def _unmarked(value: Any, keys: Mapping[str, int | ObjectKey], depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise RecursionError
    if isinstance(value, dict):
        return {
            keys[name] if name.startswith(_KEY_MARK) else name: (
                _unmarked(item, keys, depth + 1) if isinstance(item, dict | list) else item
            )
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_unmarked(item, keys, depth + 1) if isinstance(item, dict | list) else item for item in value]
    return value


# Only the opening quote of a string is matched.
_TOKEN = re.compile(
    r"""[ \t\r\n\f\b]*+
    (?: (?P<mark>[{}\[\]:,])
      | (?P<string>["'])
      | (?P<number>-?[0-9]++ (?:\.[0-9]++)?+ (?:[eE][+-]?[0-9]++)?+ (?![\w.]))
      | (?P<name>[A-Za-z_$][\w$]*+)
      | (?P<end>\Z) )""",
    re.VERBOSE | re.ASCII,
)
_WORDS = {"true": True, "false": False, "null": None}
_SINGLE_QUOTED = re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL)
_QUOTE_OR_ESCAPE = re.compile(r'"|\\.', re.DOTALL)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_scan_string = json.JSONDecoder(strict=False).raw_decode


class _JsonReader:
    """Recursive-descent parser that reads every character a bounded number of times."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._start = 0  # start of the last token
        self._position = 0  # end of the last token

    def document(self) -> Any:
        value = self._value(*self._token(), depth=0)
        if self._token()[0] != "end":
            self._fail("text after the end of the document")
        return value

    def _token(self) -> tuple[str, Any]:
        """Return the kind (a mark is its own kind) and the value of the next token."""
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            self._start = len(self._text) - len(self._text[self._position :].lstrip())
            self._fail("unexpected character")
        kind = match.lastgroup or ""
        token: str = match[kind]
        self._start, self._position = match.start(kind), match.end()
        if kind == "mark":
            return token, None
        if kind == "string":
            return kind, self._string(token)
        if kind == "number":
            return kind, self._number(token)
        return kind, token

    def _value(self, kind: str, token: Any, depth: int) -> Any:
        if kind in ("string", "number"):
            return token
        if kind == "{":
            return self._object(depth + 1)
        if kind == "[":
            return self._array(depth + 1)
        if kind == "name" and token in _WORDS:
            return _WORDS[token]
        self._fail("expected a value")

    def _object(self, depth: int) -> dict[str | int | ObjectKey, Any]:
        self._check_depth(depth)
        members: dict[str | int | ObjectKey, Any] = {}
        while True:
            kind, token = self._token()
            while kind == ",":
                kind, token = self._token()
            if kind == "}":
                return members
            key = self._key(kind, token, depth)
            if self._token()[0] != ":":
                self._fail("expected ':'")
            members[key] = self._value(*self._token(), depth)
            kind, _ = self._token()
            if kind == "}":
                return members
            if kind != ",":
                self._fail("expected ',' or '}'")

    def _key(self, kind: str, token: Any, depth: int) -> str | int | ObjectKey:
        if kind in ("string", "name"):
            return str(token)
        if kind == "number" and isinstance(token, int):
            return token
        if kind == "{":
            members = self._object(depth + 1)
            if any(
                not isinstance(name, str) or isinstance(value, (dict, list))
                for name, value in members.items()
            ):
                self._fail("an object used as a key may hold only named strings, numbers, booleans and nulls")
            return ObjectKey(cast("dict[str, Scalar]", members))
        self._fail("expected a key")

    def _array(self, depth: int) -> list[Any]:
        self._check_depth(depth)
        elements: list[Any] = []
        while True:
            kind, token = self._token()
            while kind == ",":
                kind, token = self._token()
            if kind == "]":
                return elements
            elements.append(self._value(kind, token, depth))
            kind, _ = self._token()
            if kind == "]":
                return elements
            if kind != ",":
                self._fail("expected ',' or ']'")

    def _string(self, quote: str) -> str:
        try:
            if quote == '"':
                value, self._position = _scan_string(self._text, self._start)
            else:
                match = _SINGLE_QUOTED.match(self._text, self._start)
                if match is None:
                    self._fail("unterminated string")
                value, _ = _scan_string('"' + _QUOTE_OR_ESCAPE.sub(_requoted, match[1]) + '"')
                self._position = match.end()
        except json.JSONDecodeError as error:
            self._fail(error.msg.lower())
        if not value.isascii() and _LONE_SURROGATE.search(value):
            self._fail("half of a surrogate pair in a string")
        return str(value)

    def _number(self, token: str) -> int | float:
        if len(token) > _DIGITS_MAX:
            self._fail(f"number of more than {_DIGITS_MAX} characters")
        if token.removeprefix("-").isdecimal():
            return int(token)
        number = float(token)
        if math.isinf(number):
            self._fail("number out of range")
        return number

    def _check_depth(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            self._fail(f"nested deeper than {DEPTH_MAX}")

    def _fail(self, reason: str) -> NoReturn:
        raise BadJson(self._start, reason) from None


def _requoted(match: re.Match[str]) -> str:
    """Convert a piece of a single-quoted string for double quotes."""
    piece = match[0]
    if piece == '"':
        return '\\"'
    return "'" if piece == "\\'" else piece


_encode_scalar = msgspec.json.Encoder().encode


def _write(value: Any, parts: list[bytes], newline: bytes) -> None:
    """Append the value's text. `newline` is the line break with indentation, empty for one line."""
    if value is None or isinstance(value, _SCALARS):
        parts.append(_encode_scalar(value))
    elif isinstance(value, Mapping):
        _write_object(value, parts, newline)
    elif isinstance(value, (list, tuple)):
        parts.append(b"[")
        for number, element in enumerate(value):
            if number:
                parts.append(b",")
            _write(element, parts, newline)
        parts.append(b"]")
    else:
        raise TypeError(f"cannot write a {type(value).__name__} as JSON")


def _write_object(members: Mapping[Any, Any], parts: list[bytes], newline: bytes) -> None:
    inner = newline and newline + b"\t"
    separator = b"{" + inner
    for key in _sorted_keys(members):
        value = members[key]
        if value is None:
            continue
        parts.append(separator)
        separator = b"," + inner
        if isinstance(key, (str, int)) and not isinstance(key, bool):
            parts.append(_encode_scalar(key))
        elif isinstance(key, Mapping):
            _write_object(key, parts, b"")
        else:
            raise TypeError(f"cannot write a {type(key).__name__} as a JSON key")
        parts.append(b":")
        _write(value, parts, inner)
    parts.append(newline + b"}" if separator.startswith(b",") else b"{}")


def _sorted_keys(members: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(members)
    except TypeError:  # objects, or keys of several types
        return sorted(members, key=lambda key: (type(key).__name__, dumps(key)))
