"""Benchmarks. Each prints one JSON document; figures are compared inside one run, never asserted."""
