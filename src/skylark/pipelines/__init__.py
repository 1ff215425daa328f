"""Topics and store files as Spark DataFrames, and pipelines over them. Imports model, protocol, the blocking
connection and the store's reader; runs in Spark's driver, planner and worker processes, one thread each."""
