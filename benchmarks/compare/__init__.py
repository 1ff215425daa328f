"""Skylark compared with Apache RocketMQ, Kafka and NATS: `python -m benchmarks compare`.

`cells` lists what is measured, `measures` measures it, `systems` starts the servers, `run` conducts the
rounds, `figures` computes ratios and merges runs, `tables` formats them. Start reading in `run`.
"""
