"""Connections: the only package that opens sockets. May import `protocol` and the layers below it.

`server` accepts connections, `connection_pool` is the asyncio client, `blocking` and `threaded_connection`
are clients without a loop. Servers and asyncio clients belong to the thread of their loop, a blocking
connection to one thread at a time. Start with `link.py`, the part that both asyncio ends share.
"""
