"""Request handlers, one module per family of request codes.

Handlers run on the loop thread; reads that may wait for the disk run in the reader threads.
`broker/request_routes.py` maps request codes to handlers. Start reading in `send.py` and `pull.py`, the
two hot paths.
"""
