"""The remoting protocol. Sans-IO: no sockets, no loops, no clocks. May import `errors` and `model`.

Owned by whichever thread drives the connection; nothing here is shared.
"""
