"""Mutants of consumers."""

from tests.mutants.mutant import Mutant

CONSUMER_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        row=1,
        file="client/consumer/push_consumer.py",
        text="if True in kinds:",
        replacement="if False:",
        what="an orderly listener is run concurrently",
        tests=("integration/test_client_push.py::test_sf_001_the_listener_s_kind_decides_how_to_consume",),
    ),
    Mutant(
        row=2,
        file="client/consumer/push_consumer.py",
        text=("        self._listeners.set(listener)\n        return listener\n"),
        replacement="        return listener\n",
        what="the listener is not registered",
        tests=(
            "integration/test_client_push.py"
            "::test_sf_002_a_consumer_in_the_style_of_java_receives_each_message_once",
        ),
    ),
    Mutant(
        row=3,
        file="client/consumer/start_offsets.py",
        text="    return StartQuery.MAX_OFFSET\n",
        replacement="    return 0\n",
        what="the last offset is the first",
        tests=("integration/test_client_push.py::test_sf_003_a_new_group_of_an_aged_topic",),
    ),
    Mutant(
        row=4,
        file="client/consumer/fetcher.py",
        text="address, request(PullMessage), timeout_ms",
        replacement="address, request(LitePullMessage), timeout_ms",
        what="push consumers pull with another code",
        tests=("integration/test_client_push_pulls.py::test_sf_004_sf_116_the_fields_of_a_pull_are_java_s",),
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
        row=7,
        file="client/consumer/rebalancer.py",
        text="PullRequest(self._group, process_queue, next_offset)",
        replacement="PullRequest(self._group, process_queue, next_offset + 1)",
        what="a request starts behind the first message",
        tests=("integration/test_client_push_sharing.py::test_sf_007_one_request_circulates_for_each_queue",),
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
        row=10,
        file="client/consumer/allocation_strategies.py",
        text="return list(strategy(me, sorted(queues), known))",
        replacement="return list(strategy(me, sorted(queues), known)) or sorted(queues)[:1]",
        what="surplus members take the first queue",
        tests=("integration/test_client_push_sharing.py::test_sf_010_surplus_members_stay_idle",),
    ),
    Mutant(
        row=11,
        file="client/consumer/rebalancer.py",
        text="            wait_s = self._interval_s if await self.rebalance() else self._gap_s\n",
        replacement=("            await self.rebalance()\n            wait_s = self._gap_s\n"),
        what="rounds follow each other without the interval",
        tests=(
            "integration/test_client_push_sharing.py::test_sf_011_rounds_at_the_start_and_then_at_intervals",
        ),
    ),
    Mutant(
        row=12,
        file="client/consumer/rebalancer.py",
        text="if not self._broadcasting:",
        replacement="if True:",
        what="broadcasting members share the queues",
        tests=("integration/test_client_push_sharing.py::test_sf_012_031_sf_089_broadcasting",),
    ),
    Mutant(
        row=13,
        file="client/consumer/allocation_strategies.py",
        text="known = sorted(set(members))",
        replacement="known = list(members)",
        what="the member list is used in the order of the reply",
        tests=(
            "integration/test_client_push_faults.py"
            "::test_sf_013_the_order_of_the_member_list_does_not_matter",
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
        row=16,
        file="client/consumer/process_queue.py",
        text="if self._order and queue_offset <= self._order[-1]:",
        replacement="if False:",
        what="messages are kept in the order of their arrival",
        tests=(
            "unit/client/consumer/test_process_queue.py"
            "::test_sf_016_offsets_are_in_order_whatever_order_they_came_in",
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
        text="while not process_queue.dropped:",
        replacement="while True:",
        what="a dropped queue is pulled on",
        tests=(
            "integration/test_client_push_pulls.py"
            "::test_sf_018_the_request_of_a_dropped_queue_disappears_without_traffic",
        ),
    ),
    Mutant(
        row=19,
        file="client/consumer/pull_policy.py",
        text="if process_queue.message_count > thresholds.messages_max:",
        replacement="if False:",
        what="the number of cached messages has no limit",
        tests=("integration/test_client_push_pulls.py::test_sf_019_each_threshold_pauses_pulling[count]",),
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
        row=21,
        file="client/consumer/fetcher.py",
        text="reply.next_begin_offset, reply.min_offset, reply.max_offset, took_ms",
        replacement="reply.next_begin_offset, 0, reply.next_begin_offset, took_ms",
        what="the end of a queue is taken for its next offset",
        tests=(
            "integration/test_client_pull.py"
            "::test_sf_021_a_plain_pull_tells_all_four_outcomes_and_the_offsets",
        ),
    ),
    Mutant(
        row=22,
        file="client/consumer/subscription.py",
        text="if find_tags(message.properties_text) in tags]",
        replacement="]",
        what="the client does not compare tags",
        tests=("integration/test_client_push.py::test_sf_022_tags_with_the_same_hash_are_told_apart",),
    ),
    Mutant(
        row=23,
        file="client/consumer/consumption.py",
        text="self._add_threads(min(waiting, max(count, 1), self._threads_max - count))",
        replacement="pass",
        what="one thread runs all listeners",
        tests=("integration/test_client_push.py::test_sf_023_listeners_run_beside_each_other",),
    ),
    Mutant(
        row=24,
        file="client/consumer/fetcher.py",
        text="return self._settings.pull_interval_ms",
        replacement="return 20",
        what="20 ms pass after a reply with messages",
        tests=(
            "integration/test_client_push_pulls.py"
            "::test_sf_024_with_a_fast_listener_the_next_pull_leaves_at_once",
        ),
    ),
    Mutant(
        row=25,
        file="client/consumer/concurrent_consumption.py",
        text=(
            "    def _run(self, job: ConcurrentJob) -> ConcurrentResult:\n"
            "        if job.process_queue.dropped:\n"
        ),
        replacement=("    def _run(self, job: ConcurrentJob) -> ConcurrentResult:\n        if False:\n"),
        what="the listener gets messages of a dropped queue",
        tests=(
            "integration/test_client_push_sharing.py"
            "::test_sf_015_sf_025_sf_028_results_for_a_lost_queue_do_not_count",
        ),
    ),
    Mutant(
        row=26,
        file="client/consumer/listeners.py",
        text="return ConsumeOutcome(ConsumeVerdict.RAISED, done, _text_of(error))",
        replacement="return ConsumeOutcome(ConsumeVerdict.SUCCESS, len(messages))",
        what="an exception counts as success",
        tests=(
            "integration/test_client_push.py::test_sf_026_035_a_failed_message_comes_again_until_it_succeeds",
        ),
    ),
    Mutant(
        row=27,
        file="client/consumer/concurrent_consumption.py",
        text="yield ConcurrentJob(process_queue, run, topic, handler)",
        replacement="yield ConcurrentJob(process_queue, list(run), topic, handler)",
        what="listeners get a list that they can change",
        tests=("integration/test_client_push.py::test_sf_027_the_list_of_messages_cannot_be_changed",),
    ),
    Mutant(
        row=28,
        file="client/consumer/concurrent_consumption.py",
        text=("            if process_queue.dropped:\n                log.warning(\n"),
        replacement=("            if False:\n                log.warning(\n"),
        what="results count though the queue was dropped",
        tests=(
            "integration/test_client_push_sharing.py"
            "::test_sf_015_sf_025_sf_028_results_for_a_lost_queue_do_not_count",
        ),
    ),
    Mutant(
        row=29,
        file="client/consumer/process_queue.py",
        text=("        if self._holds_any:\n            return self._first()\n"),
        replacement=("        if self._holds_any:\n            return self.max_offset + 1\n"),
        what="offsets are committed beyond unfinished messages",
        tests=(
            "integration/test_client_push_real.py"
            "::test_sf_029_ten_membership_changes_cause_duplicates_and_lose_nothing",
        ),
    ),
    Mutant(
        row=30,
        file="client/consumer/listeners.py",
        text="return ConsumeOutcome(verdict, size if done is None else _clamp(done, size))",
        replacement="return ConsumeOutcome(verdict, size)",
        what="ack_index is ignored",
        tests=("integration/test_client_push.py::test_sf_030_sf_038_only_the_rest_of_a_batch_comes_again",),
    ),
    Mutant(
        row=31,
        file="client/consumer/push_consumer.py",
        text=("        if clustering:\n            send_back = SendBack(\n"),
        replacement=("        if True:\n            send_back = SendBack(\n"),
        what="broadcasting consumers send messages back",
        tests=("integration/test_client_push_sharing.py::test_sf_012_031_sf_089_broadcasting",),
    ),
    Mutant(
        row=32,
        file="client/consumer/concurrent_consumption.py",
        text="self._settings.local_retry_ms / 1000, self.submit, process_queue, again",
        replacement="3600, self.submit, process_queue, again",
        what="what could not be sent back is not tried again",
        tests=(
            "integration/test_client_push_faults.py::test_sf_032_what_brokers_do_not_take_back_is_tried_here",
        ),
    ),
    Mutant(
        row=33,
        file="client/consumer/push_consumer.py",
        text="lambda: self.offsets.persist_all(list(process_queues)),",
        replacement="lambda: None,",
        what="the timer persists nothing",
        tests=(
            "integration/test_client_push_sharing.py"
            "::test_sf_033_047_progress_is_kept_regularly_whatever_the_result",
        ),
    ),
    Mutant(
        row=34,
        file="client/consumer/pull_consumer.py",
        text=("        if settings.auto_commit:\n            self._tasks.every("),
        replacement=("        if True:\n            self._tasks.every("),
        what="a pull consumer commits by itself",
        tests=(
            "integration/test_client_pull.py"
            "::test_sf_034_nothing_is_acknowledged_or_sent_back_unless_it_is_asked_for",
        ),
    ),
    Mutant(
        row=35,
        file="client/consumer/send_back.py",
        text="request = ConsumerSendMsgBack(",
        replacement=("return True\n        request = ConsumerSendMsgBack("),
        what="failed messages are not sent back",
        tests=(
            "integration/test_client_push.py::test_sf_026_035_a_failed_message_comes_again_until_it_succeeds",
        ),
    ),
    Mutant(
        row=36,
        file="client/consumer/listeners.py",
        text="ConsumeOrderlyStatus.ROLLBACK: ConsumeVerdict.ROLLBACK,",
        replacement="ConsumeOrderlyStatus.ROLLBACK: ConsumeVerdict.COMMIT,",
        what="ROLLBACK commits",
        tests=(
            "unit/client/consumer/test_listeners.py::test_sf_026_036_what_a_java_shaped_listener_returns",
        ),
    ),
    Mutant(
        row=37,
        file="client/consumer/consume_rates.py",
        text="totals.failed += failed",
        replacement="pass",
        what="failures are not counted",
        tests=("integration/test_client_push.py::test_sf_037_rates_are_near_those_that_were_driven",),
    ),
    Mutant(
        row=38,
        file="client/consumer/concurrent_consumption.py",
        text="for message in job.messages[done:]:",
        replacement="for message in job.messages:",
        what="the whole batch comes again",
        tests=("integration/test_client_push.py::test_sf_030_sf_038_only_the_rest_of_a_batch_comes_again",),
    ),
    Mutant(
        row=39,
        file="client/consumer/process_queue.py",
        text=("        if self._holds_any:\n            return self._first()\n"),
        replacement=("        if self._holds_any:\n            return self.max_offset + 1\n"),
        what="offsets are committed beyond unfinished messages",
        tests=(
            "unit/client/consumer/test_process_queue.py"
            "::test_sf_039_the_smallest_unfinished_offset_is_committed",
        ),
    ),
    Mutant(
        row=40,
        file="client/consumer/concurrent_consumption.py",
        text="process_queue.queue, committable, increase_only=True",
        replacement="process_queue.queue, process_queue.max_offset + 1, increase_only=True",
        what="the last pulled offset is committed",
        tests=(
            "integration/test_client_push_real.py"
            "::test_sf_040_after_a_kill_what_was_finished_behind_an_unfinished_one_comes_again",
        ),
    ),
    Mutant(
        row=41,
        file="client/consumer/push_consumer.py",
        text="consumer._own_offset_store or open_offset_store(",
        replacement="open_offset_store(",
        what="an offset store of one's own is ignored",
        tests=("integration/test_client_push_sharing.py::test_sf_041_sf_084_an_offset_store_of_one_s_own",),
    ),
    Mutant(
        row=42,
        file="client/consumer/offset_store.py",
        text="if known is None or not increase_only or queue_offset > known:",
        replacement="if True:",
        what="an offset may decrease always",
        tests=("unit/client/consumer/test_offset_store.py::test_sf_042_the_larger_value_counts_when_asked",),
    ),
    Mutant(
        row=43,
        file="client/consumer/push_consumer.py",
        text="return self._started().offsets.table.of_topic(topic)",
        replacement="return {}",
        what="the table in memory is not reported",
        tests=("integration/test_client_push_sharing.py::test_sf_043_the_table_in_memory_is_told",),
    ),
    Mutant(
        row=44,
        file="client/consumer/offset_store.py",
        text=("            self.remove(queue)\n        return dict(self._offsets)\n"),
        replacement=("            pass\n        return dict(self._offsets)\n"),
        what="offsets of lost queues are persisted on",
        tests=("unit/client/consumer/test_offset_store.py::test_sf_044_other_queues_are_forgotten",),
    ),
    Mutant(
        row=45,
        file="client/consumer/push_consumer.py",
        text=(
            "        queues = list(self.queues.process_queues)\n"
            "        await self.offsets.persist_all(queues)\n"
        ),
        replacement="        queues = list(self.queues.process_queues)\n",
        what="a stop persists nothing",
        tests=(
            "integration/test_client_push_sharing.py"
            "::test_sf_045_094_a_restart_goes_on_where_the_last_one_ended",
        ),
    ),
    Mutant(
        row=46,
        file="client/consumer/push_consumer.py",
        text=(
            "        await self.consumption.stop(listeners_wait_ms)\n"
            "        queues = list(self.queues.process_queues)\n"
            "        await self.offsets.persist_all(queues)\n"
        ),
        replacement=(
            "        queues = list(self.queues.process_queues)\n"
            "        await self.offsets.persist_all(queues)\n"
            "        await self.consumption.stop(listeners_wait_ms)\n"
        ),
        what="offsets are persisted before listeners are done",
        tests=("integration/test_client_push.py::test_sf_046_the_order_of_a_stop",),
    ),
    Mutant(
        row=47,
        file="client/consumer/push_consumer.py",
        text="settings.offset_persist_interval_ms,",
        replacement="1,",
        what="offsets are persisted all the time",
        tests=(
            "integration/test_client_push_sharing.py::test_sf_047_the_broker_s_file_changes_at_the_intervals",
        ),
    ),
    Mutant(
        row=84,
        file="client/consumer/push_consumer.py",
        text="await runtime.offsets.load()",
        replacement="pass",
        what="the offset store is not loaded",
        tests=(
            "integration/test_client_push_sharing.py::test_sf_084_broadcasting_goes_on_where_its_file_says",
        ),
    ),
    Mutant(
        row=85,
        file="client/consumer/fetcher.py",
        text="if must_begin or not self._settings.orderly:",
        replacement="if must_begin and self._settings.orderly:",
        what="the fetcher hands nothing over",
        tests=(
            "unit/client/consumer/test_fetcher.py::test_sf_085_the_pull_loop_fetches_whatever_it_is_given",
        ),
    ),
    Mutant(
        row=96,
        file="client/consumer/allocation_strategies.py",
        text="queue not in wanted or pulled_at < stale_before]",
        replacement="True]",
        what="every round replaces all queues",
        tests=("integration/test_client_push_sharing.py::test_sf_096_quiet_rounds_replace_nothing",),
    ),
    Mutant(
        row=97,
        file="client/consumer/rebalancer.py",
        text=("topic, self._group)\n        await self._owner.queues_changed(topic, (), ())"),
        replacement=(
            "topic, self._group) if False else None\n        await self._owner.queues_changed(topic, (), ())"
        ),
        what="a topic without route is passed over in silence",
        tests=(
            "integration/test_client_push_sharing.py"
            "::test_sf_097_a_topic_without_route_does_not_disturb_others",
        ),
    ),
    Mutant(
        row=98,
        file="client/consumer/rebalancer.py",
        text=("                except Exception:\n                    balanced = False\n"),
        replacement=(
            "                except Exception:\n"
            "                    balanced = False\n"
            "                    self._topics.discard(topic)\n"
        ),
        what="a strategy that raises gives all queues away",
        tests=(
            "integration/test_client_push_sharing.py::test_sf_098_a_strategy_that_raises_changes_nothing",
        ),
    ),
    Mutant(
        row=99,
        file="client/consumer/rebalancer.py",
        text="await self._owner.queues_changed(topic, all_queues, sorted(mine))",
        replacement="pass",
        what="nobody hears that queues have changed",
        tests=(
            "integration/test_client_push_sharing.py::test_sf_099_a_queue_listener_hears_of_every_change",
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
        row=101,
        file="client/consumer/rebalancer.py",
        text="stale_before=time.monotonic() - idle_s)",
        replacement="stale_before=0.0)",
        what="a queue whose pulls are stuck is kept",
        tests=(
            "integration/test_client_push_sharing.py::test_sf_101_a_queue_that_is_not_pulled_is_taken_anew",
        ),
    ),
    Mutant(
        row=103,
        file="client/consumer/rebalancer.py",
        text=("queue, error)\n            return False\n"),
        replacement=("queue, error)\n            next_offset = 0\n"),
        what="a queue whose offset is unknown starts at 0",
        tests=(
            "integration/test_client_push_faults.py::test_sf_103_a_queue_waits_until_its_offset_is_known",
        ),
    ),
    Mutant(
        row=104,
        file="client/consumer/rebalancer.py",
        text="self._owner.queue_taken(PullRequest(self._group, process_queue, next_offset))",
        replacement=(
            "for _ in (1, 2):\n"
            "            self._owner.queue_taken(PullRequest(self._group, process_queue, next_offset))"
        ),
        what="a new queue gets two requests",
        tests=(
            "integration/test_client_push_faults.py::test_sf_104_rounds_at_the_same_time_take_a_queue_once",
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
        row=106,
        file="client/consumer/process_queue.py",
        text=("            message = self._messages.pop(self._first())\n            self._order.popleft()\n"),
        replacement="            message = self._messages.pop(self._order.pop())\n",
        what="the last message of a queue comes first",
        tests=("integration/test_client_push_orderly.py::test_sf_106_each_queue_in_order",),
    ),
    Mutant(
        row=107,
        file="client/consumer/fetcher.py",
        text="if request.waits % FLOW_CONTROL_LOGGED_EVERY == 1:",
        replacement="if request.waits == 1:",
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
        text="if self._stopped:",
        replacement="if False:",
        what="a pull loop begins after the stop",
        tests=(
            "integration/test_client_push_faults.py::test_sf_109_a_stop_ends_every_loop_and_refuses_new_ones",
        ),
    ),
    Mutant(
        row=110,
        file="client/consumer/fetcher.py",
        text=("        request.next_offset = stored\n        request.was_locked = True\n"),
        replacement="        request.was_locked = True\n",
        what="the first pull under a lock starts where it was planned",
        tests=(
            "integration/test_client_push_orderly.py"
            "::test_sf_110_the_first_pull_under_a_lock_asks_where_to_begin",
        ),
    ),
    Mutant(
        row=111,
        file="client/consumer/process_queue.py",
        text="accumulated_msg_count=self.accumulated_count,",
        replacement="accumulated_msg_count=0,",
        what="running info has no accumulated count",
        tests=(
            "integration/test_client_push_orderly.py"
            "::test_sf_111_running_info_has_the_attributes_of_a_process_queue",
        ),
    ),
    Mutant(
        row=112,
        file="client/consumer/pull_policy.py",
        text="if paused:",
        replacement="if False:",
        what="a suspended consumer pulls",
        tests=("integration/test_client_push.py::test_sf_112_suspend_and_resume",),
    ),
    Mutant(
        row=113,
        file="client/consumer/pull_policy.py",
        text=(
            "    if subscription is None:\n"
            "        return Wait(settings.pull_failure_delay_ms, WaitReason.NOT_SUBSCRIBED)\n"
        ),
        replacement="",
        what="a topic without subscription does not wait",
        tests=("unit/client/consumer/test_process_queue.py::test_sf_112_113_the_other_reasons_to_wait",),
    ),
    Mutant(
        row=114,
        file="client/consumer/fetcher.py",
        text="committed is not None and committed > 0 and not broker.is_slave",
        replacement="False",
        what="pulls carry no offset",
        tests=(
            "integration/test_client_push_pulls.py::test_sf_114_the_commit_flag_follows_the_offset_in_memory",
        ),
    ),
    Mutant(
        row=115,
        file="client/consumer/fetcher.py",
        text="posted = options.post_subscription and not by_class",
        replacement="posted = False",
        what="the subscription is never sent along",
        tests=(
            "integration/test_client_push_pulls.py::test_sf_115_the_subscription_goes_along_when_asked_to",
        ),
    ),
    Mutant(
        row=116,
        file="client/consumer/fetcher.py",
        text="suspend_timeout_ms=options.hold_ms,",
        replacement="suspend_timeout_ms=options.hold_ms + 1,",
        what="pulls are held a little longer",
        tests=("integration/test_client_push_pulls.py::test_sf_004_sf_116_the_fields_of_a_pull_are_java_s",),
    ),
    Mutant(
        row=117,
        file="client/consumer/fetcher.py",
        text="if broker_id == MASTER_ID or _is_busy(error):",
        replacement="if True:",
        what="a dead slave is asked again and again",
        tests=(
            "integration/test_client_push_pulls.py"
            "::test_sf_117_a_slave_that_dies_is_left_for_the_master_at_once",
        ),
    ),
    Mutant(
        row=118,
        file="client/consumer/fetcher.py",
        text="self._filter_server(queue.topic, broker) if by_class else broker.address",
        replacement="broker.address",
        what="filter classes are pulled from the broker",
        tests=(
            "integration/test_client_push_pulls.py"
            "::test_sf_118_a_filter_class_is_pulled_from_a_filter_server",
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
        row=128,
        file="client/consumer/fetcher.py",
        text="return self._settings.pull_interval_ms",
        replacement="return 0",
        what="the interval between pulls is ignored",
        tests=("integration/test_client_push_pulls.py::test_sf_128_an_interval_between_pulls",),
    ),
    Mutant(
        row=129,
        file="client/consumer/fetcher.py",
        text="self._offsets.update(request.queue, pulled.next_offset, increase_only=True)",
        replacement="pass",
        what="messages that do not match stay a lag",
        tests=("integration/test_client_push.py::test_sf_127_129_what_does_not_match_is_no_lag",),
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
