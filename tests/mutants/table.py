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
        row=6,
        file="client/consumer/fetcher.py",
        text=(
            "            self._offsets.update(request.queue, pulled.next_offset, increase_only=True)\n"
            "        return 0\n"
        ),
        replacement=(
            "            self._offsets.update(request.queue, pulled.next_offset, increase_only=True)\n"
            "        return 5000\n"
        ),
        what="five seconds pass after an empty reply",
        tests=(
            "integration/test_client_push_pulls.py::test_sf_006_a_pull_that_ends_empty_is_repeated_at_once",
        ),
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
            "integration/test_client_push_pulls.py"
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
            "integration/test_client_push_pulls.py"
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
            "integration/test_client_push_pulls.py"
            "::test_sf_017_sf_020_a_pull_that_fails_is_repeated_later_and_disturbs_no_other",
        ),
    ),
    Mutant(
        row=24,
        file="client/consumer/fetcher.py",
        text="            return self._settings.pull_interval_ms\n",
        replacement="            return 20\n",
        what="20 ms pass after a reply with messages",
        tests=(
            "integration/test_client_push_pulls.py"
            "::test_sf_024_with_a_fast_listener_the_next_pull_leaves_at_once",
        ),
    ),
    Mutant(
        row=29,
        file="client/consumer/process_queue.py",
        text=("        if held:\n            return self._first()\n"),
        replacement=("        if held:\n            return self.max_offset + 1\n"),
        what="offsets are committed beyond unfinished messages",
        tests=(
            "integration/test_client_push_real.py"
            "::test_sf_029_ten_membership_changes_cause_duplicates_and_lose_nothing",
        ),
    ),
    Mutant(
        row=30,
        file="client/consumer/listeners.py",
        text="            return ConsumeOutcome(verdict, size if done is None else _clamp(done, size))\n",
        replacement="            return ConsumeOutcome(verdict, size)\n",
        what="ack_index is ignored",
        tests=("integration/test_client_push.py::test_sf_030_sf_038_only_the_rest_of_a_batch_comes_again",),
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
        row=37,
        file="client/consumer/consume_rates.py",
        text="        totals.failed += failed\n",
        replacement="",
        what="failures are not counted",
        tests=("integration/test_client_push.py::test_sf_037_rates_are_near_those_that_were_driven",),
    ),
    Mutant(
        row=47,
        file="client/consumer/push_consumer.py",
        text="            settings.offset_persist_interval_ms,\n",
        replacement="            1,\n",
        what="offsets are persisted all the time",
        tests=(
            "integration/test_client_push_sharing.py::test_sf_047_the_broker_s_file_changes_at_the_intervals",
        ),
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
        text="        for address, channel in self._state.routes.expire(self._clock.monotonic()):\n",
        replacement="        for address, channel in ():\n",
        what="silent brokers stay",
        tests=("integration/test_namesrv.py::test_sf_051_a_frozen_broker_is_removed_and_returns",),
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
        row=105,
        file="client/consumer/push_consumer.py",
        text="            self._runtime.fetch_loop.begin(request)\n",
        replacement=(
            "            self._runtime.fetch_loop.begin(request)\n"
            '            self._runtime.tasks.spawn(self._runtime.fetch_loop._step(request), "rebalance")\n'
        ),
        what="rebalancing pulls a new queue itself",
        tests=(
            "integration/test_client_push_faults.py::test_sf_105_under_load_only_the_tasks_of_queues_pull",
        ),
    ),
    Mutant(
        row=107,
        file="client/consumer/fetcher.py",
        text="        if request.waits % FLOW_CONTROL_LOGGED_EVERY == 1:\n",
        replacement="        if request.waits == 1:\n",
        what="only the first wait for room is logged",
        tests=("integration/test_client_push_pulls.py::test_sf_107_every_thousandth_wait_is_logged",),
    ),
    Mutant(
        row=108,
        file="client/consumer/fetcher.py",
        text=("            return self._settings.broker_busy_delay_ms\n        if not request"),
        replacement=("            return 0\n        if not request"),
        what="a busy broker is asked again at once",
        tests=("integration/test_client_push_pulls.py::test_sf_108_every_status_has_its_consequence",),
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
        row=112,
        file="client/consumer/pull_policy.py",
        text="    if paused:\n",
        replacement="    if False:\n",
        what="a suspended consumer pulls",
        tests=("integration/test_client_push.py::test_sf_112_suspend_and_resume",),
    ),
    Mutant(
        row=117,
        file="client/consumer/fetcher.py",
        text="            if broker_id == MASTER_ID or _is_busy(error):\n",
        replacement="            if True:\n",
        what="a dead slave is asked again and again",
        tests=(
            "integration/test_client_push_pulls.py"
            "::test_sf_117_a_slave_that_dies_is_left_for_the_master_at_once",
        ),
    ),
    Mutant(
        row=127,
        file="client/consumer/fetcher.py",
        text=("            if not messages:\n                return 0\n"),
        replacement=(
            "            if not messages:\n                return self._settings.pull_interval_ms\n"
        ),
        what="a pull without matches waits for the interval",
        tests=(
            "integration/test_client_push_pulls.py"
            "::test_sf_127_a_found_answer_that_is_empty_after_filtering_is_followed_at_once",
        ),
    ),
    Mutant(
        row=130,
        file="client/consumer/push_consumer.py",
        text=("            await self.queues.restart(queue, queue_offset)\n        self.rebalancer.wake()\n"),
        replacement="            await self.queues.restart(queue, queue_offset)\n",
        what="a corrected queue waits for the next round",
        tests=(
            "integration/test_client_push_pulls.py"
            "::test_sf_130_an_offset_outside_the_queue_is_corrected_within_fifteen_seconds",
        ),
    ),
)
