"""Messages, names, ids and byte layouts shared by every part.

Pure: imports layer 0 only, does no IO, owns no thread. Start reading at message.py and record.py.
"""
