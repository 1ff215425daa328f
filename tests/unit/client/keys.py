"""Unique keys that a test knows beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


class GivenKeys:
    """Hands out these keys, which must be equally long, one after the other."""

    def __init__(self, keys: Iterable[str], chars: int) -> None:
        self.chars = chars
        self._keys: Iterator[str] = iter(keys)

    def next(self) -> str:
        return next(self._keys)

    def several(self, count: int) -> list[str]:
        return [next(self._keys) for _ in range(count)]

    def stems(self, count: int) -> list[tuple[str, Sequence[int]]]:
        return [(key[:-4], [int(key[-4:], 16)]) for key in self.several(count)]
