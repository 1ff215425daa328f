"""The controller: decides which broker of a name is the master, and tells the brokers.

Decisions are pure functions of a document (`group.py`) and of who is alive (`liveness.py`): `election.py` and
`membership.py`. A register keeps the documents (`register.py`: a file; `etcd.py`: etcd, for several
controllers). Start with `controller.py`, which owns everything on one event loop.
"""
