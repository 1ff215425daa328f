"""Connections: the only package that opens sockets. May import `protocol` and what is below it.

Servers and asyncio clients belong to the thread of their loop, a blocking connection to one thread at a time.
"""
