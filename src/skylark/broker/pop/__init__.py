"""Pop consumption: the broker keeps a group's position, and delivers again what is not acknowledged in time.

Owned by the loop thread; records that are not in memory are read in reader threads. Start reading in
`pops.py`, which composes the rest. `popped_batches.py` holds what was popped in memory, with the committed
offset held back; `check_points.py` has the records that replace it when an acknowledgement is late, and
`revival.py` reads them.
"""
