"""Transactional messages: half messages, their end, and checks with producers.

Owned by the loop thread; records that are not in memory are read in reader threads. Start reading in
`coordinator.py`; `half_messages.py` is the pure table behind it.
"""
