"""The broker: topics, groups, offsets and clients, and the requests that use them.

Imports the store and remoting and what is below them. Everything is owned by the thread of the broker's
event loop; work that may wait for a disk runs in threads. Start reading in `broker.py`, which builds and
connects the parts, then follow one request from `request_routes.py` into `handlers/`.
"""
