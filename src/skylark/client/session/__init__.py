"""What all clients of one client id share: connections, name servers, routes, heartbeats.

A session belongs to one event loop and is used on that loop only. `session.py` dispatches requests of brokers
to the member they are for; `routes.py` (pure) turns routes into queues and addresses; `fork_guard.py` detects
use after a fork. Start with `session.py`.
"""
