"""The gRPC front: serves the official RocketMQ 5 clients (apache.rocketmq.v2) in front of any cluster.

Runs in a broker's process or as `skylark proxy`; everything belongs to the loop thread. `proxy.py` composes
the parts, `service.py` has the table of calls, `grpc_server.py` is the only module that knows the gRPC
library. Brokers are reached by remoting requests alone. May import `client`, `auth` and what lies below.
"""
