"""Skylark: a RocketMQ-compatible message queue in Python."""

from skylark._version import __version__

__all__ = ["__version__"]
