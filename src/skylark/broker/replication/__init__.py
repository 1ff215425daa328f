"""Master and slave replication of the log, and of metadata that is not in the log.

All state belongs to the loop thread; reads of the log that may wait for the disk run in reader threads.
Start reading in `master.py` (sends the log to slaves) and `slave.py` (finds the master and follows it).
`role.py` holds the rules, `metadata_sync.py` copies topics, groups and offsets to a slave, and
`restore_offsets.py` takes offsets that were committed on slaves back to a restarted master.
"""
