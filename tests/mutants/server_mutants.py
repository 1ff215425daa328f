"""Mutants of name servers and brokers."""

from tests.mutants.mutant import Mutant

SERVER_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        row=5,
        file="broker/long_polling.py",
        text="        self._due.arrived(batch)\n",
        replacement="        pass\n",
        what="held pulls do not hear of new messages",
        tests=("unit/broker/handlers/test_pull.py::test_sf_005_a_message_wakes_the_pull_that_waits_for_it",),
    ),
    Mutant(
        row=48,
        file="broker/offsets.py",
        text=(
            "        queues[queue_id] = queue_offset\n        self.changes += 1\n        self._commits += 1\n"
        ),
        replacement=("        self.changes += 1\n        self._commits += 1\n"),
        what="commits are not kept",
        tests=("unit/broker/handlers/test_offsets.py::test_sf_048_what_a_group_commits_the_broker_keeps",),
    ),
    Mutant(
        row=49,
        file="settings/name_server.py",
        text='port: int = setting(9876, "listenPort"',
        replacement='port: int = setting(9877, "listenPort"',
        what="the name server listens on another port",
        tests=("integration/test_namesrv.py::test_sf_049_it_listens_and_answers_registrations_and_routes",),
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
        row=74,
        file="broker/replication/master.py",
        text="answer(PutStatus.SLAVE_NOT_AVAILABLE)",
        replacement="answer(PutStatus.PUT_OK)",
        what="a missing slave is not reported",
        tests=(
            "integration/test_replication_sync.py"
            "::test_sf_074_without_a_slave_the_answer_says_so_and_with_one_it_has_the_message",
        ),
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
    Mutant(
        row=80,
        file="broker/replication/master.py",
        text="self._answer(self._flushed if is_replicated else self._replicated)",
        replacement="self._answer(self._flushed)",
        what="the slaves' failure is not reported",
        tests=("unit/broker/replication/test_role.py::test_sf_080_the_slaves_failure_is_told_last",),
    ),
    Mutant(
        row=87,
        file="protocol/queue_allocation.py",
        text="return list(queues[start : start + share + (index < extra)])",
        replacement="return list(queues[start : start + share])",
        what="surplus queues have no owner",
        tests=("integration/test_client_push_sharing.py::test_sf_087_091_three_queues_of_two_members",),
    ),
    Mutant(
        row=86,
        file="broker/clients.py",
        text="return [client.client_id for client in clients]",
        replacement="return [clients[0].client_id]",
        what="a broker lists only one member",
        tests=("unit/broker/handlers/test_clients.py::test_sf_086_the_members_of_a_group",),
    ),
    Mutant(
        row=88,
        file="broker/offsets.py",
        text=(
            "        queues = self._committed.get((topic, group))\n"
            "        if queues is None or queue_id not in queues:\n"
            "            self._check_queue(queue_id)\n"
            "            queues = self._queues(topic, group)\n"
        ),
        replacement=(
            '        group = "one for all"\n'
            "        queues = self._committed.get((topic, group))\n"
            "        if queues is None or queue_id not in queues:\n"
            "            self._check_queue(queue_id)\n"
            "            queues = self._queues(topic, group)\n"
        ),
        what="groups share their offsets",
        tests=("unit/broker/test_offsets.py::test_sf_088_groups_have_offsets_of_their_own",),
    ),
    Mutant(
        row=89,
        file="settings/client.py",
        text=('    model: MessageModel = setting(MessageModel.CLUSTERING, "messageModel")\n    orderly'),
        replacement=(
            '    model: MessageModel = setting(MessageModel.BROADCASTING, "messageModel")\n    orderly'
        ),
        what="broadcasting is the default",
        tests=("integration/test_client_push_sharing.py::test_sf_012_031_sf_089_broadcasting",),
    ),
    Mutant(
        row=91,
        file="protocol/queue_allocation.py",
        text=(
            "    start = index * share + min(index, extra)\n"
            "    return list(queues[start : start + share + (index < extra)])\n"
        ),
        replacement="    return list(queues[index :: len(members)])\n",
        what="the queues of a broker are dealt out one by one",
        tests=(
            "unit/client/consumer/test_allocation_strategies.py::test_sf_091_a_broker_s_queues_stay_together",
        ),
    ),
    Mutant(
        row=92,
        file="broker/long_polling.py",
        text="self._wake([pull for pull in pulls if queue.max_offset > pull.queue_offset])",
        replacement="pass",
        what="the regular check wakes nobody",
        tests=("unit/broker/handlers/test_pull.py::test_sf_092_the_check_finds_what_nobody_told_of",),
    ),
    Mutant(
        row=94,
        file="broker/offsets.py",
        text="self._committed[topic, group] = queues",
        replacement="pass",
        what="offsets are not loaded at the start",
        tests=(
            "unit/broker/test_offsets.py"
            "::test_sf_048_and_094_a_restarted_broker_knows_how_far_each_group_has_come",
        ),
    ),
    Mutant(
        row=95,
        file="broker/clients.py",
        text="return self._remove((group, channel) for group in self._membership.groups_of(channel))",
        replacement="return []",
        what="a member whose connection ends stays",
        tests=(
            "unit/broker/test_clients.py::test_sf_095_a_member_whose_connection_ends_is_told_to_the_others",
        ),
    ),
    Mutant(
        row=102,
        file="broker/clients.py",
        text=("            else:\n                continue\n            locked.append(queue)\n"),
        replacement="            locked.append(queue)\n",
        what="a lock is granted twice",
        tests=(
            "unit/broker/test_clients_locks.py::test_sf_102_a_queue_is_locked_by_one_client_until_it_lets_go",
        ),
    ),
    Mutant(
        row=126,
        file="protocol/frame_templates.py",
        text='"extFields":{"suggestWhichBrokerId":"%d","groupSysFlag"',
        replacement='"extFields":{"suggestedBrokerId":"%d","groupSysFlag"',
        what="the suggestion has another name",
        tests=("integration/test_broker_clients.py::test_sf_126_an_answer_says_where_the_queue_stands",),
    ),
)
