"""Pure. Latency histogram in HdrHistogram's layout: three digits, from a nanosecond to an hour."""

from __future__ import annotations

import base64
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Self

import msgspec

LOWEST_NS = 1
HIGHEST_NS = 3_600 * 10**9
DIGITS = 3
PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}
CURVE = (0.0, 50.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.995, 99.999)

# A bin of bucket b is 2**b wide. Bucket 0 has 2,048 bins, each further one 1,024: three digits everywhere.
BUCKET_BITS = 10
BUCKET_BINS = 1 << BUCKET_BITS
COOKIE = 0x1C849313
COMPRESSED_COOKIE = 0x1C849314
HEAD = struct.Struct(">iiiiqqd")  # cookie, payload_bytes, index_offset, digits, lowest, highest, ratio
COMPRESSED_HEAD = struct.Struct(">ii")  # cookie, compressed_bytes


class Percentiles(msgspec.Struct, frozen=True):
    """In microseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    p9999: float
    max: float


class LatencyHistogram:
    """Counts of latencies by bin. One thread at a time."""

    def __init__(self, bins: Iterable[tuple[int, int]] = ()) -> None:
        """`bins` are pairs of nanoseconds and count."""
        self._counts: Counter[int] = Counter()
        for nanoseconds, count in bins:
            self.record(nanoseconds, count)

    @classmethod
    def decode(cls, text: str) -> Self:
        """The inverse of `encode`. Raises ValueError for any other text."""
        latencies = cls()
        try:
            data = zlib.decompress(base64.b64decode(text)[COMPRESSED_HEAD.size :])
            cookie, payload_bytes, *_ = HEAD.unpack_from(data)
        except (zlib.error, struct.error) as error:
            raise ValueError(f"invalid histogram: {error}") from None
        if cookie != COOKIE:
            raise ValueError(f"invalid histogram: cookie {cookie:#x}, expected {COOKIE:#x}")
        index = 0
        for count in _varints(data[HEAD.size : HEAD.size + payload_bytes]):
            if count < 0:  # a run of empty bins
                index -= count
                continue
            latencies._counts[index] = count
            index += 1
        return latencies

    def record(self, nanoseconds: int, count: int = 1) -> None:
        """Values outside the range are recorded as its nearest end."""
        value = min(max(nanoseconds, LOWEST_NS), HIGHEST_NS)
        bucket = max(value.bit_length() - BUCKET_BITS - 1, 0)
        self._counts[bucket * BUCKET_BINS + (value >> bucket)] += count

    def add(self, other: LatencyHistogram) -> None:
        self._counts.update(other._counts)

    def __len__(self) -> int:
        return self._counts.total()

    def at_percent(self, percent: float) -> float:
        """Microseconds below which this percentage of the latencies lies; 0 without latencies."""
        return self._at_percents([percent])[0]

    def _at_percents(self, percents: Iterable[float]) -> list[float]:
        """The percentages must ascend."""
        total, found, seen = len(self), [], 0
        bins = iter(sorted(self._counts.items()))
        low = high = 0
        for percent in percents:
            wanted = max(int(percent / 100 * total + 0.5), 1)
            while seen < wanted and total:
                index, count = next(bins)
                seen += count
                low, high = _bounds(index)
            found.append(_microseconds(high if percent else low))
        return found

    def percentiles(self) -> Percentiles:
        total = len(self)
        weighed = sum(sum(_bounds(index)) / 2 * count for index, count in self._counts.items())
        return Percentiles(
            count=total,
            mean=_microseconds(weighed / total) if total else 0.0,
            max=_microseconds(_bounds(max(self._counts))[1]) if total else 0.0,
            **dict(zip(PERCENTS, self._at_percents(PERCENTS.values()), strict=True)),
        )

    def curve(self) -> list[tuple[float, float]]:
        """Percent and microseconds for a chart, in finer steps towards 100; empty without latencies."""
        return list(zip(CURVE, self._at_percents(CURVE), strict=True)) if len(self) else []

    def encode(self) -> str:
        """HdrHistogram's own format (V2, compressed, base64), readable by its other tools."""
        payload = bytearray()
        end = 0
        for index, count in sorted(self._counts.items()):
            if index > end:
                payload += _varint(end - index)
            payload += _varint(count)
            end = index + 1
        head = HEAD.pack(COOKIE, len(payload), 0, DIGITS, LOWEST_NS, HIGHEST_NS, 1.0)
        data = zlib.compress(head + payload)
        return base64.b64encode(COMPRESSED_HEAD.pack(COMPRESSED_COOKIE, len(data)) + data).decode()


def _bounds(index: int) -> tuple[int, int]:
    """The least and the greatest value of a bin."""
    bucket = max((index >> BUCKET_BITS) - 1, 0)
    low = index - bucket * BUCKET_BINS << bucket
    return low, low + (1 << bucket) - 1


def _microseconds(nanoseconds: float) -> float:
    return round(nanoseconds / 1000, 1)


def _varint(value: int) -> bytes:
    """Zig-zag, seven bits a byte, the lowest first."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _varints(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield (value >> 1) ^ -(value & 1)
            value = shift = 0
