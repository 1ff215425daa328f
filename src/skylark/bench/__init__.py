"""`skylark bench` and `skylark plan`: load generation, measurement, capacity planning.

One file per command (producer, consumer, transaction, store); `load` describes a load, `load_client` runs
it in processes of its own, `servers` starts or finds the broker, `results` is the format of every result
file. Start reading in `producer`.
"""
