"""Clients: producers, consumers, and the session that they share.

`producer/` sends, `consumer/` receives, `session/` holds connections, routes and heartbeats. Every client
exists twice: for asyncio (`skylark.aio`) and blocking (`skylark`); the blocking one runs the asyncio one on a
private loop thread (`blocking_client.py`). Start with `session/session.py`.
"""
