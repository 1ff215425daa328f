"""The version, read by the build and by `skylark --version`."""

__version__ = "0.2.0"
