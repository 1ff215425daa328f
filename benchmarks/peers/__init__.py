"""Launchers of servers for tests and benchmarks: Skylark, Apache RocketMQ, Kafka, NATS.

Programs are fetched once into a cache outside the checkout and run in temporary directories.
"""
