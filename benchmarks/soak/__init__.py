"""A mixed load for minutes or hours, and whether memory, descriptors and latencies stay flat.

`load` sends and accounts for every message, `run` samples the broker, `slopes` judges the samples (pure).
"""
