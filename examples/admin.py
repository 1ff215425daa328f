"""Administer the servers: topics, groups, consumer progress, messages by key, offsets.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os
import time

from skylark import Admin, Message, Producer
from skylark.admin.offsets import BEGIN
from skylark.admin.results import Group

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-admin"
GROUP = "example-billing"

with Admin(namesrv=NAMESRV) as admin:
    for broker in admin.brokers.summary().brokers:
        print(broker.node.cluster, broker.node.name, broker.node.address, broker.version)

    admin.topics.create(TOPIC, queues=2)
    admin.groups.create(Group(GROUP, retries_max=3))

    with Producer("example-producers", namesrv=NAMESRV) as producer:
        for number in range(4):
            producer.send(Message(TOPIC, b"hello", keys=[f"order-{number}"]))

    stats = admin.topics.stats(TOPIC)
    print(stats.messages, "messages in", len(stats.queues), "queues")

    # No consumer runs yet: skip to the end, then reset the group to the beginning.
    admin.offsets.skip(GROUP, TOPIC)
    print("lag:", admin.groups.progress(GROUP, TOPIC).lag)
    admin.offsets.reset(GROUP, TOPIC, BEGIN)
    print("lag:", admin.groups.progress(GROUP, TOPIC).lag)

    # A broker indexes keys a moment after it has stored a message.
    while not (found := admin.messages.by_key(TOPIC, "order-2").messages):
        time.sleep(0.01)
    print("found", found[0].message_id, "in queue", found[0].queue_id)

    # Several servers are asked at once; failures are reported beside the results of the others.
    if stats.failures:
        print("not all brokers answered:", dict(stats.failures))
