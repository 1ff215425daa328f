"""Servers to measure, ours and other people's: fetched once, started in directories that are thrown away."""
