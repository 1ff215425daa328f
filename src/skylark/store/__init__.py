"""The message store: commit log, consume queues, index, recovery.

Imports model and layer 0 only. The thread that holds the store's lock appends, one write per batch; any
thread reads; background threads flush, index and delete expired files.
Start reading at message_store.py.
"""
