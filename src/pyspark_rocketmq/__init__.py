"""Lets Spark find `rocketmq`: it imports modules named `pyspark_…` and registers their `DefaultSource`."""

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    """Imported on demand: Spark's lookup imports this module in processes that never use it."""
    if name == "DefaultSource":
        from skylark.pipelines.source import RocketMQSource  # noqa: PLC0415

        return RocketMQSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
