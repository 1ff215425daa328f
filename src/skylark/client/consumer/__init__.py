"""Receiving: which queues belong to this member, fetching them, and handing messages out.

Push and pull consumers share `rebalancer.py`, `fetcher.py`, `offset_store.py`, `start_offsets.py` and
`broker_requests.py`. Push consumers call listeners (`listeners.py`) in `concurrent_consumption.py` or
`orderly_consumption.py`; pull consumers hand messages out in `pull_consumer.py`. The session's loop owns all
state; only listeners run in worker threads. Start with `push_consumer.py`.
"""
