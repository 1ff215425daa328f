"""Administration of a cluster: `Admin` (blocking) and `AsyncAdmin`, and the results they return.

One file per noun: topics, groups, offsets, messages, dead letters, clients, brokers (and name servers).
One event loop owns an `AsyncAdmin`; `Admin` runs it on a background loop and may be used by any thread.
Start reading in `admin.py`; requests to several servers at once are in `server_calls.py`.
"""
