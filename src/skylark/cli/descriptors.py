"""How many files and connections this process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_descriptor_limit() -> None:
    """Take all that the system allows: a large store and many clients need more than the usual soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS names a hard limit that it does not give
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
