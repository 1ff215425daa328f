"""Sending: from a message to the receipt of its broker.

`producer.py` is the public client. `message_encoder.py` checks and encodes, `send_policy.py` (pure) chooses
queues and decides about retries, `async_sender.py` carries sends on the session's loop, `blocking_sender.py`
in the caller's thread. `batches.py` accumulates, `request_reply.py` waits for replies. The loop thread owns
all state except that of the blocking sender. Start with `producer.py`, then `async_sender.py`.
"""
