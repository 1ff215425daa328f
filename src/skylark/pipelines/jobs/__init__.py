"""Ready-made jobs, one file per command of `skylark spark`.

Each has a pure `transform` over DataFrames and a function that runs it, in the driver's main thread.
Start with `archive` or `etl`; `endpoints` are inputs and outputs, `queries` runs streaming queries.
"""
