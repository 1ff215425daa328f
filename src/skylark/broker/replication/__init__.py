"""Master and slave replication of the log, and of metadata that is not in the log.

All state belongs to the loop thread; reads of the log that may wait for the disk run in reader threads.
Start reading in `master.py` (sends the log to slaves) and `slave.py` (finds the master and follows it);
`role.py` holds the rules. `metadata_sync.py` and `restore_offsets.py` copy what is not in the log. In
controller mode `membership.py` asks who is the master, `role_change.py` changes roles, `group_master.py`
and `group_slave.py` replicate, and `sync_state.py` keeps the in-sync set.
"""
