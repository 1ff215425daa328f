"""Pipelines that run with one command: each a plain function over the public source and sink.

A job has a pure `transform(df)` where rows pass through Spark, and a function that wires source and sink.
"""
