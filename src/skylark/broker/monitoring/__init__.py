"""Counters, Prometheus metrics, health pages and the runtime information of a broker.

Counters belong to the loop thread. Pages are served by a thread of their own, which only reads. Start
reading in `stats.py` (what is counted), then `metrics.py` (what is exported).
"""
