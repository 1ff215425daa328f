"""Pure. Columns of JSON bodies that grow: a field that appears becomes a column, a value that does not fit is
rejected with its whole body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from skylark.arrow.columns import REJECTS
from skylark.arrow.json_bodies import UNREADABLE

PREFIX = "value_"
"""Beginning of the columns' names, apart from those of messages."""
COLUMNS_MAX = 500
"""More fields stay in the body only."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_LONG = range(-(1 << 63), 1 << 63)
_decode = msgspec.json.Decoder().decode


class JsonColumns:
    """The fields of a table's bodies: the first value decides about the type of a column."""

    def __init__(self, known: Mapping[str, pa.DataType]) -> None:
        self.kinds = dict(known)
        """Types by field."""
        self._spelled = {name.lower(): name for name in self.kinds}

    def decode(self, bodies: pa.Array) -> dict[str, pa.Array]:
        """The columns of these bodies, `rejects` included; `kinds` may have grown."""
        values = [_read(body) for body in bodies.to_pylist()]
        self._learn(value for value in values if isinstance(value, dict))
        rejected = [not isinstance(value, dict) or not self._fits(value) for value in values]
        columns = {
            f"{PREFIX}{name}": pa.array(
                [
                    None if out else _stored(value.get(name), kind)
                    for value, out in zip(values, rejected, strict=True)
                ],
                kind,
            )
            for name, kind in self.kinds.items()
        }
        kept = [body if out else None for body, out in zip(bodies.to_pylist(), rejected, strict=True)]
        return {**columns, REJECTS: pa.array(kept, pa.binary())}

    def _learn(self, values: Any) -> None:
        """Make columns of fields that are new; whole numbers beside others in one batch are doubles."""
        new: dict[str, pa.DataType] = {}
        for value in values:
            for name, item in value.items():
                if item is None or name in self.kinds or not self._may_be_column(name, new):
                    continue
                kind = _kind_of(item)
                if name not in new or {new[name], kind} == {pa.int64(), pa.float64()}:
                    new[name] = kind if name not in new else pa.float64()
                    self._spelled[name.lower()] = name
        self.kinds |= new

    def _may_be_column(self, name: str, new: Mapping[str, pa.DataType]) -> bool:
        is_room = name in new or len(self.kinds) + len(new) < COLUMNS_MAX
        # Columns differ by more than the case of letters, for most engines.
        is_alone = self._spelled.get(name.lower(), name) == name
        return is_room and is_alone and _NAME.fullmatch(name) is not None

    def _fits(self, value: Mapping[str, Any]) -> bool:
        for name, kind in self.kinds.items():
            item = value.get(name)
            if item is None:
                continue
            found = _kind_of(item)
            if found != kind and not (kind == pa.float64() and found == pa.int64()):
                return False
        return True


def _read(body: bytes) -> Any:
    try:
        return _decode(body)
    except UNREADABLE:
        return None


def _kind_of(value: Any) -> pa.DataType:
    """Objects and lists are text: their JSON."""
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in _LONG else pa.float64()
    return pa.float64() if isinstance(value, float) else pa.string()


def _stored(value: Any, kind: pa.DataType) -> Any:
    if kind == pa.string() and value is not None and not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    return float(value) if kind == pa.float64() and value is not None else value
