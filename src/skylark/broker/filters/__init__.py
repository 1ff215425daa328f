"""Filters of consumers: tag and SQL92 expressions, compiled once and applied to stored records.

Everything is pure and owned by the loop thread; the compiled functions also run in reader threads. Start
reading in `compiled_subscription.py`.
"""
