"""A pull that filters by SQL92 beside one that filters by tags and reads the same records.

python -m benchmarks.filters
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from benchmarks._common import ratio, report, side_by_side
from skylark.bench.machine import scratch
from skylark.bench.store import HOST, TOPIC, open_store
from skylark.broker.filters.compiled_subscription import parse_subscription
from skylark.model.message import PutMessage, encode_properties
from skylark.store.log_reader import GetStatus
from skylark.store.message_store import MessageStore

ENTRIES = 800
"""As many as one pull looks at when nothing matches."""
PULL = 32
ROUNDS = 30
EXPECTED_AT_MOST = 3.0


def message(number: int) -> PutMessage:
    """Half of them pass the first condition, none the second."""
    properties = {"KEYS": f"order-{number}", "UNIQ_KEY": f"7F00000100002A9F{number:016X}", "TAGS": "TagA"}
    properties |= {"a": str(number % 11), "b": "y"}
    return PutMessage(
        TOPIC, 0, os.urandom(200), encode_properties(properties), born_timestamp=1, born_host=HOST
    )


def by_sql(store: MessageStore) -> int:
    wanted = parse_subscription(TOPIC, "a > 5 AND b = 'x'", "SQL92", now_ms=0)
    for _ in range(ROUNDS):
        found = store.get(TOPIC, 0, 0, PULL, record_filter=wanted.record_filter, may_block=False)
        assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, ENTRIES)
    return ROUNDS


def by_tags(store: MessageStore) -> int:
    wanted = parse_subscription(TOPIC, "TagA", "TAG", now_ms=0)
    for _ in range(ROUNDS):
        for first in range(0, ENTRIES, PULL):
            found = store.get(TOPIC, 0, first, PULL, tags_filter=wanted.tags_filter, may_block=False)
            assert len(found.records) == PULL
    return ROUNDS


def main() -> None:
    with scratch() as path:
        store = open_store(path / "store")
        store.append([message(number) for number in range(ENTRIES)])
        store.housekeeper.flush()
        cells = {"sql92": partial(by_sql, store), "tags": partial(by_tags, store)}
        result: dict[str, Any] = dict(side_by_side(cells))
        store.close()
    result |= {"entries": ENTRIES, "ratio": ratio(result, "sql92", "tags")}
    report("filters", result | {"expected_at_most": EXPECTED_AT_MOST})


if __name__ == "__main__":
    main()
