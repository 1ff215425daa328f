"""Every benchmark in turn, one result file: `python -m benchmarks survey`.

The other modules are measurements that only the survey and the comparison use.
"""
