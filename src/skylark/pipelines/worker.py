"""A Python worker of Spark: what is set in it once, before it reads its first range."""

from __future__ import annotations

import ctypes
import gc
from functools import cache

from pyspark import TaskContext

# Parameters of mallopt(3), and what they are set to here.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES_MAX = 64 << 20
"""Several batches: less would be given back after every one."""
MAPPED_BYTES_MIN = 32 << 20
"""The most that glibc takes."""


@cache
def settle_worker() -> None:
    """In a worker of Spark, make what is done again and again there cheaper."""
    if TaskContext.get() is not None:
        keep_freed_memory()
        # A full collection runs there after every task: with all modules it takes longer than a small task.
        gc.collect()
        gc.freeze()


def keep_freed_memory() -> bool:
    """Let freed memory be used for the next batch instead of going back to the system, which must clear it.

    A fifth of the time in which all columns are decoded. Only glibc can; False elsewhere.
    """
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter is None:
        return False
    settings = {_M_MMAP_THRESHOLD: MAPPED_BYTES_MIN, _M_TRIM_THRESHOLD: KEPT_BYTES_MAX}
    return all(set_parameter(name, size) == 1 for name, size in settings.items())
