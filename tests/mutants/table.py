"""Mutants: for each requirement one change that takes its behaviour away, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`text` occurs exactly once in `file` (under src/skylark). `tests` are node ids under tests/."""

    row: int
    file: str
    text: str
    replacement: str
    what: str
    tests: tuple[str, ...]


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        row=70,
        file="client/producer/blocking_sender.py",
        text="                    self._connections[address] = connection\n",
        replacement="",
        what="every send opens a connection of its own",
        tests=(
            "integration/test_client_producer.py::test_sf_070_the_blocking_producer_sends_over_one_connection_too",
        ),
    ),
    Mutant(
        row=84,
        file="client/consumer/push_consumer.py",
        text="            await runtime.offsets.load()\n",
        replacement="",
        what="the offset store is not loaded",
        tests=(
            "integration/test_client_push_sharing.py::test_sf_084_broadcasting_goes_on_where_its_file_says",
        ),
    ),
    Mutant(
        row=109,
        file="client/consumer/fetcher.py",
        text="        if self._stopped:\n",
        replacement="        if False:\n",
        what="a pull loop begins after the stop",
        tests=(
            "integration/test_client_push_faults.py::test_sf_109_a_stop_ends_every_loop_and_refuses_new_ones",
        ),
    ),
    Mutant(
        row=111,
        file="client/consumer/process_queue.py",
        text="            accumulated_msg_count=self.accumulated_count,\n",
        replacement="",
        what="running info has no accumulated count",
        tests=(
            "integration/test_client_push_orderly.py"
            "::test_sf_111_running_info_has_the_attributes_of_a_process_queue",
        ),
    ),
    Mutant(
        row=117,
        file="client/consumer/fetcher.py",
        text="            if broker_id == MASTER_ID or _is_busy(error):\n",
        replacement="            if True:\n",
        what="a dead slave is asked again and again",
        tests=(
            "integration/test_client_push_faults.py"
            "::test_sf_117_a_slave_that_dies_is_left_for_the_master_at_once",
        ),
    ),
)
