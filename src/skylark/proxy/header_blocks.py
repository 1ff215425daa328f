"""Pure. Header blocks of HTTP/2 (HPACK, RFC 7541): a fast decoder, and fixed blocks to send.

The tables of Huffman codes and headers are those of the library `hpack`, whose decoder is slower.
"""

from __future__ import annotations

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE
from hpack.table import HeaderTable

TABLE_BYTES = 4096
"""Size of the dynamic table, as long as we do not announce another."""
ENTRY_OVERHEAD = 32
INTEGER_BYTES_MAX = 4
_STATIC_LENGTH = 61

Entry = tuple[str, str, int]
"""Name, value, and what the entry counts."""


class BadHeaderBlock(Exception):
    """The block cannot be decoded; the table is unusable from now on."""


def _entry(name: str, value: str) -> Entry:
    return name, value, len(name) + len(value) + ENTRY_OVERHEAD


_STATIC: tuple[Entry, ...] = (
    ("", "", 0),
    *(_entry(name.decode(), value.decode()) for name, value in HeaderTable.STATIC_TABLE),
)


class HeaderDecoder:
    """Decodes the blocks of one connection, in their order."""

    def __init__(self, list_bytes_max: int) -> None:
        """Blocks whose headers count more than `list_bytes_max` are refused."""
        self._list_bytes_max = list_bytes_max
        self._dynamic: list[Entry] = []
        """The newest entry is the last one."""
        self._dynamic_bytes = 0
        self._table_bytes = TABLE_BYTES

    def decode(self, block: bytes) -> dict[str, str]:
        """Return the headers; of several with one name the last. Raises BadHeaderBlock."""
        try:
            return self._decode(block)
        except IndexError:
            raise BadHeaderBlock("the header block is cut off or refers to nothing") from None

    def _decode(self, block: bytes) -> dict[str, str]:
        headers: dict[str, str] = {}
        dynamic = self._dynamic
        position, end, left = 0, len(block), self._list_bytes_max
        while position < end:
            first = block[position]
            position += 1
            if first >= 0x80:  # a whole header of a table
                index = first & 0x7F
                if index == 0x7F:
                    index, position = _integer(block, position, index)
                if index == 0:
                    raise BadHeaderBlock("index 0")
                entry = _STATIC[index] if index <= _STATIC_LENGTH else dynamic[_STATIC_LENGTH - index]
            elif first & 0xE0 == 0x20:  # another size of the table
                size = first & 0x1F
                if size == 0x1F:
                    size, position = _integer(block, position, size)
                self._resize(size, may_change=not headers)
                continue
            else:
                is_indexed = first >= 0x40
                mask = 0x3F if is_indexed else 0x0F
                index = first & mask
                if index == mask:
                    index, position = _integer(block, position, index)
                if index:
                    name = (_STATIC[index] if index <= _STATIC_LENGTH else dynamic[_STATIC_LENGTH - index])[0]
                else:
                    name, position = _text(block, position)
                value, position = _text(block, position)
                entry = _entry(name, value)
                if is_indexed:
                    self._add(entry)
            headers[entry[0]] = entry[1]
            left -= entry[2]
            if left < 0:
                raise BadHeaderBlock(f"headers count more than {self._list_bytes_max} bytes")
        return headers

    def _add(self, entry: Entry) -> None:
        self._dynamic.append(entry)
        self._dynamic_bytes += entry[2]
        if self._dynamic_bytes > self._table_bytes:
            self._evict()

    def _resize(self, size: int, *, may_change: bool) -> None:
        if not may_change or size > TABLE_BYTES:
            raise BadHeaderBlock(f"table size {size}")
        self._table_bytes = size
        self._evict()

    def _evict(self) -> None:
        count = 0
        while self._dynamic_bytes > self._table_bytes:
            self._dynamic_bytes -= self._dynamic[count][2]
            count += 1
        del self._dynamic[:count]


def _integer(block: bytes, position: int, value: int) -> tuple[int, int]:
    """Return an integer that did not fit into its prefix, and the position after it."""
    shift = 0
    for count in range(INTEGER_BYTES_MAX):
        byte = block[position + count]
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + count + 1
        shift += 7
    raise BadHeaderBlock("an integer is too long")


def _text(block: bytes, position: int) -> tuple[str, int]:
    first = block[position]
    position += 1
    length = first & 0x7F
    if length == 0x7F:
        length, position = _integer(block, position, length)
    end = position + length
    if end > len(block):
        raise BadHeaderBlock("a text is cut off")
    data = block[position:end]
    if first >= 0x80:
        data = decode_huffman(data)
    return data.decode("latin-1"), end


_Step = tuple[int, bytes, bool]
"""The next state, what a byte adds to the text, and whether the text may end there."""
_steps: dict[int, _Step] = {}
"""By state and byte, 65,536 at most; made when they are needed."""


def decode_huffman(data: bytes) -> bytes:
    """Return the text of a Huffman code, a byte at a time. Raises BadHeaderBlock."""
    state, is_complete = 0, True
    text: list[bytes] = []
    for byte in data:
        key = state << 8 | byte
        step = _steps.get(key)
        if step is None:
            step = _steps[key] = _make_step(state, byte)
        state, symbols, is_complete = step
        text.append(symbols)
    if not is_complete:
        raise BadHeaderBlock("a Huffman code is cut off")
    return b"".join(text)


def _make_step(state: int, byte: int) -> _Step:
    """Take the two halves of a byte by the table of `hpack`."""
    symbols = bytearray()
    flags = 0
    for half in (byte >> 4, byte & 0x0F):
        state, flags, symbol = HUFFMAN_TABLE[state << 4 | half]
        if flags & HUFFMAN_FAIL:
            raise BadHeaderBlock("no Huffman code")
        if flags & HUFFMAN_EMIT_SYMBOL:
            symbols.append(symbol)
    return state, bytes(symbols), bool(flags & HUFFMAN_COMPLETE)


# --- Sending ---


def encode_headers(headers: list[tuple[str, str]]) -> bytes:
    """Return a block that changes no table: literals without indexing, without Huffman codes."""
    block = bytearray()
    for name, value in headers:
        block += b"\0" + _encoded(name) + _encoded(value)
    return bytes(block)


def _encoded(text: str) -> bytes:
    data = text.encode("latin-1", "replace")
    length = len(data)
    if length < 0x7F:
        return bytes((length,)) + data
    prefix = bytearray((0x7F,))
    length -= 0x7F
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + data
