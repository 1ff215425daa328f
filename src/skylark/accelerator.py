"""The functions of the optional compiled module, `_compiled.c`; None without one that fits this source.

`make setup` compiles it with a C compiler. One that was not compiled anew after a change is not used.
"""

from __future__ import annotations

EDITION = "Edition 5"
"""That of `_compiled.c`."""

try:
    import skylark._compiled as _compiled  # noqa: PLR0402  `skylark` itself is above all parts
except ImportError:
    is_compiled = False
else:
    is_compiled = _compiled.__doc__ == EDITION

if is_compiled:
    from skylark._compiled import (
        join_column,
        join_records,
        lay_out_sends,
        split_records,
        unique_key_hashes,
    )
else:
    join_column = None  # type: ignore[assignment]
    join_records = None  # type: ignore[assignment]
    lay_out_sends = None  # type: ignore[assignment]
    split_records = None  # type: ignore[assignment]
    unique_key_hashes = None  # type: ignore[assignment]

__all__ = ["join_column", "join_records", "lay_out_sends", "split_records", "unique_key_hashes"]
