"""Pure. KvConfig: texts by namespace and key, kept in RocketMQ's `kvConfig.json`."""

from collections.abc import Mapping

import msgspec

from skylark.errors import BrokerError
from skylark.model import java
from skylark.protocol.codes import ResponseCode

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"  # topic -> `broker-a:4;broker-b:4`
Tables = dict[str, dict[str, str]]


class KvConfig:
    """The tables, within limits. `generation` increases with every change."""

    def __init__(self, *, entries_max: int, chars_max: int) -> None:
        self.generation = 0
        self._entries_max = entries_max
        self._chars_max = chars_max
        self._tables: Tables = {}
        self._chars = 0

    def restore(self, tables: Tables) -> None:
        """Load the tables of a file, even beyond the limits."""
        self._tables = tables
        self._chars = sum(
            len(namespace) + sum(len(key) + len(value) for key, value in table.items())
            for namespace, table in tables.items()
        )

    def snapshot(self) -> Tables:
        """Return a copy of all tables."""
        return {namespace: dict(table) for namespace, table in self._tables.items()}

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises BrokerError at the limit."""
        table = self._tables.get(namespace)
        old = table.get(key) if table is not None else None
        added = len(value) - len(old) if old is not None else len(key) + len(value)
        if table is None:
            added += len(namespace)
        entries = len(self._tables) + sum(map(len, self._tables.values()))
        if added > 0 and self._chars + added > self._chars_max:
            raise _full(f"{self._chars_max} characters")
        if old is None and entries >= self._entries_max:
            raise _full(f"{self._entries_max} entries")
        self._tables.setdefault(namespace, {})[key] = value
        self._chars += added
        self.generation += 1

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None if there is none."""
        return self._tables.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value if it exists. The namespace remains."""
        value = self._tables.get(namespace, {}).pop(key, None)
        if value is not None:
            self._chars -= len(key) + len(value)
            self.generation += 1

    def table(self, namespace: str) -> Mapping[str, str] | None:
        """Return a namespace; None if it was never created."""
        return self._tables.get(namespace)


class _File(msgspec.Struct, rename="camel"):
    config_table: Tables = msgspec.field(default_factory=dict)


def encode_tables(tables: Tables) -> bytes:
    """Return the text of the file."""
    return java.dumps({"configTable": tables}, indent=True)


def decode_tables(data: bytes) -> Tables:
    """Read the text of a file, ours or RocketMQ's. Raises ValueError."""
    return msgspec.convert(java.loads(data), _File).config_table


def _full(limit: str) -> BrokerError:
    remark = f"the key-value configuration takes no more than {limit}"
    return BrokerError.for_code(ResponseCode.SYSTEM_ERROR, remark)
