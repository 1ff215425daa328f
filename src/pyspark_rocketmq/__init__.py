"""Spark imports every module named `pyspark_…` and registers its `DefaultSource`: so `rocketmq` is found."""

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    """Imported when it is asked for: the lookup imports this module in processes that never use it."""
    if name == "DefaultSource":
        from skylark.pipelines.source import RocketMQSource  # noqa: PLC0415

        return RocketMQSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
