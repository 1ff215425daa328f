"""The version, read by the build and by `skylark --version`."""

__version__ = "0.1.0"
