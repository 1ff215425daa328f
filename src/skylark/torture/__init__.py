"""`skylark torture`: real servers and clients under faults, and a checker of their guarantees.

`run` conducts a run on one event loop: it starts the processes of `cluster`, `sender` and `member`, injects
the faults of `plan`, and gives the recorded `history` to `checker`. Start reading in `run`.
"""
