"""Mutants of name servers and brokers."""

from tests.mutants.mutant import Mutant

SERVER_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        row=5,
        file="broker/long_polling.py",
        text=("        self._arrivals.append(batch)\n        self._schedule()\n"),
        replacement="",
        what="held pulls do not hear of new messages",
        tests=("unit/broker/handlers/test_pull.py::test_sf_005_a_message_wakes_the_pull_that_waits_for_it",),
    ),
    Mutant(
        row=50,
        file="broker/registration.py",
        text="        changed: list[TopicConfig] | None = None  # None: all topics\n",
        replacement=(
            "        changed: list[TopicConfig] | None = None  # None: all topics\n"
            "        await asyncio.sleep(10)\n"
        ),
        what="a broker registers ten seconds late",
        tests=("integration/test_broker_clients.py::test_sf_050_a_broker_is_in_the_cluster_within_a_second",),
    ),
    Mutant(
        row=51,
        file="namesrv/server.py",
        text="for address, channel in self._state.routes.expire(self._clock.monotonic()):",
        replacement="for address, channel in ():",
        what="silent brokers stay",
        tests=("integration/test_namesrv.py::test_sf_051_a_frozen_broker_is_removed_and_returns",),
    ),
    Mutant(
        row=75,
        file="broker/broker.py",
        text="self.store.on_arrival = self._arrived",
        replacement="self.store.on_arrival = lambda it: self._loop.call_later(0.03, self._arrived, it)",
        what="messages are announced 30 ms late",
        tests=(
            "integration/test_client_push_real.py"
            "::test_sf_075_a_message_is_delivered_within_twenty_milliseconds",
        ),
    ),
)
