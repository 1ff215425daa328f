"""The remoting protocol. Sans-IO: no sockets, no loops, no clocks. May import `errors` and `model`.

`connection` turns bytes into commands, `command` holds the frame layout, `requests/` has one struct per
request code and `bodies` the JSON bodies. The thread that drives a connection owns its objects.
Start with `command.py`, then `request.py`.
"""
