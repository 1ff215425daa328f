"""Apache's Java client, several releases: SQL92, transactions, timed messages, requests with replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from skylark.client.producer.transaction_producer import AsyncTransactionProducer, TransactionState
from skylark.client.received_message import ReceivedMessage
from skylark.model.message import Message
from tests.interop.client_driver import ClientDriver
from tests.interop.servers import SETTINGS, Servers, create_topic, make_servers
from tests.interop.verdict import Outcomes
from tests.interop.versions import CLIENTS
from tests.support.broker import BrokerClient, until
from tests.support.names import fresh_name

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.timeout(600)]

SCENARIOS = ("request_reply", "sql_filter", "sql_refused", "timed", "transactions")
QUICK = {
    **SETTINGS,
    "enablePropertyFilter": "true",  # Apache's has it switched off
    "recallMessageEnable": "true",  # and this
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 1000,
}


@pytest.fixture(scope="module")
def asking_servers(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers that soon ask about open transactions. They had nothing to complain about."""
    # Apache's notes the end of transactions only now and then, and asks about those it has not noted.
    settings = QUICK if kind == "skylark" else {**QUICK, "transactionOpBatchInterval": 100}
    with make_servers(kind, tmp_path_factory.mktemp("servers"), settings) as running:
        yield running
        assert running.complaints() == ""


@pytest.fixture(scope="module", params=CLIENTS)
def outcomes(
    request: pytest.FixtureRequest, asking_servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    """Every scenario, in one JVM."""
    version, directory = request.param, tmp_path_factory.mktemp("clients")
    address = asking_servers.name_server
    return Outcomes(lambda *scenarios: ClientDriver(version, address, directory).run("delivery", *scenarios))


async def test_our_transaction_producer(asking_servers: Servers) -> None:
    """The other way round: our producer, and Apache's broker in the slow run."""
    topic, group = fresh_name("OurTransactions"), fresh_name("OurGroup")
    create_topic(asking_servers.broker, topic, 1)
    states = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)

    async def execute(_: Message, number: int) -> TransactionState:
        return states[number % 3]

    async def check(half: ReceivedMessage) -> TransactionState:
        assert half.topic == topic
        number = int(half.body)
        commits = number % 2 if number % 3 == 2 else number % 3 == 0
        return TransactionState.COMMIT if commits else TransactionState.ROLLBACK

    expected = {b"%d" % number for number in range(18) if number % 3 == 0 or number in (5, 11, 17)}
    async with (
        AsyncTransactionProducer(
            group, execute=execute, check=check, namesrv=asking_servers.name_server
        ) as producer,
        BrokerClient(asking_servers.broker) as client,
    ):
        for number in range(18):
            await producer.send_in_transaction(Message(topic, b"%d" % number), number)

        async def are_there() -> bool:
            return {message.body for message in await client.pull_all(topic)} >= expected

        await until(are_there, timeout_s=90)
        await asyncio.sleep(3)
        assert sorted(message.body for message in await client.pull_all(topic)) == sorted(expected)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes: Outcomes, scenario: str) -> None:
    assert outcomes.of(scenario) is None


def test_no_other_scenario_was_run(outcomes: Outcomes) -> None:
    assert sorted(outcomes.found) == sorted(SCENARIOS)
