"""The log: commit log, consume queues, index. Imports model and layer 0, never asyncio or protocol.

A store is written by the thread that holds its lock (one append per batch); reads may come from any thread.
"""
