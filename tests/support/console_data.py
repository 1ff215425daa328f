"""A small shop for pages of the console: topics, orders, groups with lag, dead letters, a consumer online."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Sequence

from skylark import Admin, ConsumeFrom, ConsumeResult, Message, Producer, PushConsumer, PushConsumerSettings
from skylark.admin.results import Group
from skylark.client.received_message import ReceivedMessage
from skylark.pipelines.job_reporter import JobReporter
from skylark.testing import EmbeddedServers

CITIES = ("Berlin", "Lyon", "Oslo", "Porto", "Turin")


@contextlib.contextmanager
def shop(orders: int = 240) -> Iterator[EmbeddedServers]:
    """Our servers with the shop's data."""
    with EmbeddedServers(settings={"auto_create_topics": True}) as servers, stocked(servers.namesrv, orders):
        yield servers


@contextlib.contextmanager
def stocked(namesrv: str, orders: int) -> Iterator[None]:
    """A cluster with data. The group `billing` is online and fails every twentieth order; `search` lags."""

    def bill(messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        is_bad = any(message.json()["id"] % 20 == 0 for message in messages)
        return ConsumeResult.LATER if is_bad else ConsumeResult.SUCCESS

    with Admin(namesrv=namesrv) as admin, Producer("shop", namesrv=namesrv) as producer:
        for topic, count in {"orders": 4, "payments": 4, "shipments": 2, "audit-log": 1}.items():
            admin.topics.create(topic, queues=count)
        admin.groups.create(Group("billing", retries_max=0))
        admin.groups.create(Group("search"))
        for number in range(1, orders + 1):
            body = {
                "id": number,
                "customer": {"name": f"c-{number % 7}", "city": CITIES[number % 5]},
                "amount": round(number * 7.31 % 400, 2),
            }
            tag = ("created", "paid", "shipped")[number % 3]
            producer.send(Message.json("orders", body, tags=tag, keys=[f"order-{number}"]))
            if number % 3 == 1:
                producer.send(Message.json("payments", {"order": number}, keys=[f"order-{number}"]))
        admin.offsets.commit("search", dict.fromkeys(admin.topics.queues("orders"), 7))
        first = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, reconsume_times_max=0)
        consumer = PushConsumer("billing", namesrv=namesrv, settings=first)
        consumer.subscribe("orders", "*", bill)
        with consumer:
            died = threading.Event()
            for _ in range(1200):
                if admin.dead_letters.count("billing").waiting >= orders // 20:
                    break
                died.wait(0.1)
            with running_jobs(namesrv):
                yield


@contextlib.contextmanager
def traffic(namesrv: str) -> Iterator[None]:
    """Orders and payments at a rate that goes up and down."""
    done = threading.Event()

    def send() -> None:
        with Producer("web", namesrv=namesrv) as producer:
            number = 10_001  # none of which fails
            while not done.wait(0.05):
                for _ in range(round(3 + 2 * math.sin(time.monotonic()))):
                    number += 1 if number % 20 != 19 else 2
                    body: dict[str, object] = {
                        "id": number,
                        "customer": {"name": f"c-{number % 7}", "city": CITIES[number % 5]},
                    }
                    tag = ("created", "paid", "shipped")[number % 3]
                    body["amount"] = round(number * 7.31 % 400, 2)
                    producer.send(Message.json("orders", body, tags=tag, keys=[f"order-{number}"]))
                producer.send(Message.json("payments", {"order": number}, keys=[f"order-{number}"]))

    thread = threading.Thread(target=send, name="traffic")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def running_jobs(namesrv: str) -> Iterator[None]:
    """Two jobs that run and one that failed."""
    with (
        contextlib.suppress(ValueError),
        JobReporter(namesrv, kind="cdc", name="cdc-users", topics=["users"], outputs=["delta:lake/users"]),
    ):
        raise ValueError("cannot decode the body of users/broker-a/0/12: expected a Debezium event")
    with (
        JobReporter(
            namesrv, kind="archive", name="archive-orders-5c1d09aa", source=namesrv, topics=["orders"],
            outputs=["delta:lake/orders"], group="lake", directory="lake/orders/_skylark/state", every_s=0.1,
        ) as archive,
        JobReporter(
            namesrv, kind="etl", name="etl-payments-77e0b3f1", source=namesrv, topics=["payments"],
            outputs=["delta:lake/payments", "topic:payments_rejects"], every_s=0.1,
        ) as etl,
    ):  # fmt: skip
        for number in range(12):
            rate = 4100 + 900 * (number % 4) - 70 * number
            archive.batch(query="archive", number=number, rows=9000, rows_per_s=rate, lag=(11 - number) * 40)
            etl.batch(
                query="rows", number=number, rows=800, rows_per_s=rate / 5, lag=1200 + 90 * number,
                rejected=number % 3,
            )  # fmt: skip
            time.sleep(0.002)  # no two at the same millisecond
        yield
