"""Pure. The bits of RocketMQ's bloom filter that stand for a group's filter: its files name them."""

import struct

MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_BLOCK = struct.Struct("<QQ")

# By RocketMQ's defaults: an error rate of 20 % with 32 consumers.
BITS = 112
BITS_OF_A_FILTER = 3


def bit_positions(text: str, *, count: int = BITS_OF_A_FILTER, bits: int = BITS) -> list[int]:
    """The bits of a text, usually `group#topic`."""
    hashed = murmur3(text.encode())
    first, second = _int32(hashed), _int32(hashed >> 32)
    positions = []
    for number in range(1, count + 1):
        combined = _int32(first + number * second)
        positions.append((combined if combined >= 0 else ~combined) % bits)
    return positions


def murmur3(data: bytes) -> int:
    """The lower 64 bits of MurmurHash3 (x64, 128 bits, seed 0)."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for k1, k2 in _BLOCK.iter_unpack(data[:whole]):
        h1 = _rotated(h1 ^ _mixed_1(k1), 27) + h2 & MASK
        h1 = h1 * 5 + 0x52DCE729 & MASK
        h2 = _rotated(h2 ^ _mixed_2(k2), 31) + h1 & MASK
        h2 = h2 * 5 + 0x38495AB5 & MASK
    k1, k2 = _BLOCK.unpack(data[whole:].ljust(16, b"\0"))
    h1 ^= _mixed_1(k1) ^ len(data)
    h2 ^= _mixed_2(k2) ^ len(data)
    h1 = h1 + h2 & MASK
    h2 = h2 + h1 & MASK
    return _finished(h1) + _finished(h2) & MASK


def _mixed_1(block: int) -> int:
    return _rotated(block * _C1 & MASK, 31) * _C2 & MASK


def _mixed_2(block: int) -> int:
    return _rotated(block * _C2 & MASK, 33) * _C1 & MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def _int32(value: int) -> int:
    return (value + (1 << 31) & 0xFFFFFFFF) - (1 << 31)
