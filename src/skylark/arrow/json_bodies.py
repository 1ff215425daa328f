"""Pure. JSON bodies as an Arrow struct of a given type; rows that do not fit are rejected one by one.

Unknown fields are ignored; missing fields are null, and a row with a null in a NOT NULL field is rejected. A
string field accepts any value, as its JSON text if it is not a string; other types accept only their own.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

from skylark.arrow.record_layout import Flags

_decode = msgspec.json.Decoder().decode
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
Fit = Callable[[Any], Any]


class JsonBodies:
    """Decodes bodies to one Arrow type.

    `read` makes plain values of a body, as JSON has them; other formats give their own (`body_formats`). It
    raises ValueError.
    """

    def __init__(self, kind: pa.DataType, read: Callable[[bytes], Any] = _decode) -> None:
        self._kind = kind
        self._read = read
        self._fit = _fit(kind)

    def decode(self, bodies: pa.Array, unreadable: Flags) -> tuple[pa.Array, Flags]:
        """Return the values, null where a body was rejected, and the flags of rejected rows."""
        rejected = unreadable.copy()
        values: list[Any] = []
        for row, body in enumerate(bodies.to_pylist()):
            try:
                values.append(None if rejected[row] else self._fit(self._read(body)))
                rejected[row] = rejected[row] or values[-1] is None
            except (*UNREADABLE, TypeError, ValueError, OverflowError):
                values.append(None)
                rejected[row] = True
        try:
            return pa.array(values, self._kind), rejected
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return self._one_by_one(values, rejected)

    def _one_by_one(self, values: list[Any], rejected: Flags) -> tuple[pa.Array, Flags]:
        """Reject the values that Arrow refuses: numbers out of range, invalid times."""
        for row, value in enumerate(values):
            try:
                pa.array([value], self._kind)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                values[row] = None
                rejected[row] = True
        return pa.array(values, self._kind), rejected


def _fit(kind: pa.DataType) -> Fit:
    """Return a function that converts a JSON value to a type, or raises TypeError or ValueError."""
    if pa.types.is_struct(kind):
        return _fit_struct(kind)
    if pa.types.is_list(kind):
        item = _fit_field(kind.value_field)
        return lambda value: [item(one) for one in _checked(value, list)] if value is not None else None
    if pa.types.is_map(kind):
        item = _fit_field(kind.item_field)
        return lambda value: (
            [(name, item(one)) for name, one in _checked(value, dict).items()] if value is not None else None
        )
    if pa.types.is_string(kind):
        return lambda value: value if value is None or isinstance(value, str) else _text(value)
    if pa.types.is_timestamp(kind):
        return lambda value: None if value is None else msgspec.convert(value, datetime, strict=False)
    if pa.types.is_date(kind):
        return lambda value: None if value is None else msgspec.convert(value, date, strict=False)
    if pa.types.is_decimal(kind):
        return lambda value: None if value is None else _decimal(value)
    if pa.types.is_boolean(kind):
        return lambda value: None if value is None else _checked(value, bool)
    if pa.types.is_integer(kind):
        return lambda value: None if value is None else _whole(value)
    if pa.types.is_floating(kind):
        return lambda value: None if value is None else float(_number(value))
    return lambda value: value  # checked by Arrow


def _fit_struct(kind: pa.StructType) -> Fit:
    members = [(field.name, _fit_field(field)) for field in kind]

    def fit(value: Any) -> Any:
        if value is None:
            return None
        found = _checked(value, dict).get
        return {name: member(found(name)) for name, member in members}

    return fit


def _fit_field(field: pa.Field) -> Fit:
    """As `_fit` for a member; rejects null where the field is NOT NULL, as Spark does not check it."""
    fit = _fit(field.type)

    def fit_not_null(value: Any) -> Any:
        if value is None:
            raise ValueError(f"{field.name} is NOT NULL")
        return fit(value)

    return fit if field.nullable else fit_not_null


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, found {type(value).__name__}")
    return value


def _decimal(value: Any) -> Decimal:
    """Accepts a number or its text, which keeps every digit. Arrow checks the precision."""
    try:
        return Decimal(value if isinstance(value, str | Decimal) else str(_number(value)))
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a number") from None


def _whole(value: Any) -> int:
    if _number(value) != int(value):
        raise ValueError(f"{value} is not whole")
    return int(value)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
