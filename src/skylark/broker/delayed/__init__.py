"""Messages that are delivered later: delay levels and timers.

Both run as tasks on the loop thread; records that are not in memory are read in reader threads. Start
reading in `delay_levels.py` (one queue per level) or `timers.py` (the timer wheel). `timed_messages.py`
has the pure rules of timed messages, `original_destination.py` the note that names a message's own queue.
"""
