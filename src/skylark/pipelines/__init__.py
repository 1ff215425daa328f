"""Topics and store files as Spark DataFrames, and jobs over them.

Runs in Spark's driver, planner and worker processes, one thread each. Imports model, protocol,
the client's pure modules, the blocking connection and the store's reader. Start with `source` for reading
and `sink` for writing; `decode` turns records into Arrow columns, `lake` writes tables, `jobs` holds the
commands of `skylark spark`.
"""
