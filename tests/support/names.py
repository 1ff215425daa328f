"""Names of topics, groups and directories for one attempt of one test."""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)


def fresh_name(stem: str) -> str:
    """A name that was not used before in this process.

    Servers that several tests share keep what an attempt has left on them: offsets, messages, settings. So
    the next attempt of the same test takes other names.
    """
    return f"{stem}-{next(_numbers)}"
