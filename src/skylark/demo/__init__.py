"""`skylark demo`: the main use case from end to end, in one process and on one loop.

Start with `scenario.py`; `spark_scenario.py` is the part that needs Spark.
"""
