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
        row=3,
        file="client/consumer/start_offsets.py",
        text="    return StartQuery.MAX_OFFSET\n",
        replacement="    return 0\n",
        what="the last offset is the first",
        tests=("integration/test_client_push.py::test_sf_003_a_new_group_of_an_aged_topic",),
    ),
    Mutant(
        row=9,
        file="client/consumer/push_consumer.py",
        text=(
            '        strategy: str | Strategy = "AVG",\n'
            "        offset_store: OffsetStore | None = None,\n"
            "        clock"
        ),
        replacement=(
            '        strategy: str | Strategy = "AVG_BY_CIRCLE",\n'
            "        offset_store: OffsetStore | None = None,\n"
            "        clock"
        ),
        what="push consumers share queues in a circle by default",
        tests=(
            "unit/client/consumer/test_allocation_strategies.py"
            "::test_sf_009_averaging_is_the_default_of_every_consumer",
        ),
    ),
    Mutant(
        row=15,
        file="client/consumer/rebalancer.py",
        text=(
            "        process_queue.dropped = True\n"
            "        self._owner.queue_released(process_queue)\n"
            "        await self._offsets.persist(queue)\n"
        ),
        replacement="        await self._offsets.persist(queue)\n",
        what="a lost queue is pulled as before",
        tests=(
            "integration/test_client_push_sharing.py"
            "::test_sf_015_sf_025_sf_028_results_for_a_lost_queue_do_not_count",
        ),
    ),
    Mutant(
        row=17,
        file="client/consumer/fetcher.py",
        text=('            except Exception:\n                log.exception("pull failed'),
        replacement=('            except ZeroDivisionError:\n                log.exception("pull failed'),
        what="an unexpected exception ends the pulls of a queue",
        tests=(
            "integration/test_client_push_faults.py"
            "::test_sf_017_sf_020_a_pull_that_fails_is_repeated_later_and_disturbs_no_other",
        ),
    ),
    Mutant(
        row=18,
        file="client/consumer/fetcher.py",
        text="        while not process_queue.dropped:\n",
        replacement="        while True:\n",
        what="a dropped queue is pulled on",
        tests=(
            "integration/test_client_push_faults.py"
            "::test_sf_018_the_request_of_a_dropped_queue_disappears_without_traffic",
        ),
    ),
    Mutant(
        row=20,
        file="client/consumer/fetcher.py",
        text=("            request.failures += 1\n        return self._settings.pull_failure_delay_ms\n"),
        replacement=("            request.failures += 1\n        return 0\n"),
        what="a failed pull is repeated at once",
        tests=(
            "integration/test_client_push_faults.py"
            "::test_sf_017_sf_020_a_pull_that_fails_is_repeated_later_and_disturbs_no_other",
        ),
    ),
    Mutant(
        row=33,
        file="client/consumer/push_consumer.py",
        text="            lambda: self.offsets.persist_all(list(process_queues)),\n",
        replacement="            lambda: None,\n",
        what="the timer persists nothing",
        tests=(
            "integration/test_client_push_sharing.py"
            "::test_sf_033_047_progress_is_kept_regularly_whatever_the_result",
        ),
    ),
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
        row=100,
        file="client/consumer/rebalancer.py",
        text=(
            "        self._owner.queue_released(process_queue)\n        await self._offsets.persist(queue)\n"
        ),
        replacement="        self._owner.queue_released(process_queue)\n",
        what="a queue is released without persisting its offset",
        tests=(
            "integration/test_client_push_sharing.py"
            "::test_sf_044_sf_100_a_queue_that_moves_takes_its_offset_along",
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
