"""Values and byte layouts shared by every part. Pure: imports only layer 0, does no IO, owns no thread."""
