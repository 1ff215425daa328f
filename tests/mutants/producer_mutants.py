"""Mutants of producers, sessions and message ids."""

from tests.mutants.mutant import Mutant

PRODUCER_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        row=8,
        file="client/session/routes.py",
        text="if known is not None and same_route(known.data, data):",
        replacement="if known is not None:",
        what="a route that changes is not noticed",
        tests=("integration/test_client_push_sharing.py::test_sf_008_members_and_queues_change",),
    ),
    Mutant(
        row=14,
        file="client/session/session.py",
        text='instance = f"{os.getpid()}#{time.monotonic_ns()}"',
        replacement='instance = f"{os.getpid()}#0"',
        what="clients of a process have the same id",
        tests=("integration/test_client_push_sharing.py::test_sf_014_055_every_client_has_an_id_of_its_own",),
    ),
    Mutant(
        row=52,
        file="client/blocking_client.py",
        text="thread.wait(self._inner.start())",
        replacement="pass",
        what="the client is not started",
        tests=("integration/test_client_producer.py::test_sf_052_three_lines_start_and_send",),
    ),
    Mutant(
        row=53,
        file="client/producer/producer.py",
        text='raise AlreadyStarted("producer", self._state)',
        replacement="return self",
        what="a second start does nothing",
        tests=(
            "integration/test_client_producer.py"
            "::test_sf_053_a_producer_is_started_once_and_used_between_start_and_stop",
        ),
    ),
    Mutant(
        row=54,
        file="client/session/session.py",
        text="raise GroupInUse(*key)",
        replacement="pass",
        what="a group may join an instance twice",
        tests=(
            "integration/test_client_producer.py"
            "::test_sf_054_055_one_group_once_per_instance_and_connections_are_shared",
        ),
    ),
    Mutant(
        row=55,
        file="client/session/session.py",
        text='instance = f"{os.getpid()}#{time.monotonic_ns()}"',
        replacement='instance = f"0#{time.monotonic_ns()}"',
        what="client ids do not tell the process",
        tests=(
            "integration/test_client_producer.py"
            "::test_sf_055_the_client_id_holds_the_process_and_differs_between_producers",
        ),
    ),
    Mutant(
        row=56,
        file="client/session/session.py",
        text=("            self.pool.drop(address)\n        await self.heartbeat()\n"),
        replacement="            self.pool.drop(address)\n",
        what="there are no regular heartbeats",
        tests=(
            "integration/test_client_producer.py"
            "::test_sf_056_brokers_hear_of_a_producer_and_again_every_heartbeat",
        ),
    ),
    Mutant(
        row=57,
        file="client/producer/producer.py",
        text="self._group = with_namespace(self._client.namespace, group)",
        replacement="self._group = group",
        what="the group has no namespace",
        tests=("integration/test_client_producer.py::test_sf_057_the_namespace_is_put_on_group_and_topic",),
    ),
    Mutant(
        row=58,
        file="client/producer/async_sender.py",
        text=("            route = await self._session.find_route(name)\n        except NoRoute as error:\n"),
        replacement=(
            "            await self._session.refresh_route(name)\n"
            "            route = await self._session.refresh_route(name)\n"
            "        except NoRoute as error:\n"
        ),
        what="the first send queries the route twice",
        tests=(
            "integration/test_client_producer.py"
            "::test_sf_058_sf_059_sf_060_sf_070_the_first_send_fetches_route_and_connection_and_both_stay",
        ),
    ),
    Mutant(
        row=59,
        file="client/producer/producer.py",
        text="        self._session = await join(self, self._client, self._name_servers)\n",
        replacement=(
            "        self._session = await join(self, self._client, self._name_servers)\n"
            '        await self._session.refresh_route("TBW102")\n'
            "        await self._session.heartbeat()\n"
        ),
        what="a producer connects when it starts",
        tests=(
            "integration/test_client_producer.py"
            "::test_sf_058_sf_059_sf_060_sf_070_the_first_send_fetches_route_and_connection_and_both_stay",
        ),
    ),
    Mutant(
        row=60,
        file="client/producer/async_sender.py",
        text="return self._topics.setdefault(name, SendTopic(route))",
        replacement="return SendTopic(await self._session.refresh_route(name))",
        what="routes are not kept",
        tests=(
            "integration/test_client_producer.py"
            "::test_sf_058_sf_059_sf_060_sf_070_the_first_send_fetches_route_and_connection_and_both_stay",
        ),
    ),
    Mutant(
        row=61,
        file="client/session/session.py",
        text='self.refresh_routes, "refresh routes")',
        replacement='lambda: None, "refresh routes")',
        what="routes are never refreshed",
        tests=(
            "integration/test_client_producer.py::test_sf_061_new_queues_are_used_after_the_next_refresh",
        ),
    ),
    Mutant(
        row=62,
        file="client/session/session.py",
        text="default = await self.refresh_route(AUTO_CREATE_TOPIC)",
        replacement="default = await self.refresh_route(topic)",
        what="a missing topic has no default route",
        tests=(
            "integration/test_client_producer.py::test_sf_062_an_unknown_topic_is_created_with_four_queues",
        ),
    ),
    Mutant(
        row=63,
        file="client/session/routes.py",
        text="for queues in sorted(data.queue_datas, key=_broker_name):",
        replacement="for queues in sorted(data.queue_datas, key=_broker_name)[:1]:",
        what="only the queues of the first broker are used",
        tests=("integration/test_client_producer.py::test_sf_063_a_topic_on_two_brokers_has_eight_queues",),
    ),
    Mutant(
        row=64,
        file="client/producer/queue_selectors.py",
        text="self._index = (self._index + 1) & _INDEX_MASK",
        replacement="self._index = random.getrandbits(31)",
        what="queues are chosen at random",
        tests=("integration/test_client_producer.py::test_sf_064_queues_take_turns",),
    ),
    Mutant(
        row=65,
        file="client/producer/queue_selectors.py",
        text="entry.available_from = max(entry.available_from, now + for_ms / 1000)",
        replacement="entry.available_from = now + 3600",
        what="a broker that failed is avoided for an hour",
        tests=(
            "unit/client/producer/test_queue_selectors.py"
            "::test_sf_065_a_broker_that_failed_is_avoided_for_ten_seconds_and_then_used_again",
        ),
    ),
    Mutant(
        row=66,
        file="client/producer/async_sender.py",
        text=(
            '            self._tasks.spawn(self._start_slowly(send, refresh=True), "find broker")\n'
            "            return\n"
        ),
        replacement="            raise\n",
        what="an unknown broker fails the send",
        tests=(
            "integration/test_client_producer.py::test_sf_066_an_address_that_is_missing_is_asked_for_again",
        ),
    ),
    Mutant(
        row=67,
        file="model/message_id.py",
        text='        return stem + "%04X" % (number & 0xFFFF)',
        replacement='        return stem + "%04X" % (number & 0xFF)',
        what="the counter of ids wraps at 256",
        tests=(
            "integration/test_client_producer.py"
            "::test_sf_067_a_million_ids_of_eight_threads_are_all_different",
        ),
    ),
    Mutant(
        row=68,
        file="client/producer/message_encoder.py",
        text="if len(body) >= settings.compress_from_bytes:",
        replacement="if len(body) > settings.compress_from_bytes:",
        what="bodies of exactly 4 KiB are not compressed",
        tests=("integration/test_client_producer.py::test_sf_068_bodies_of_4_kib_are_compressed",),
    ),
    Mutant(
        row=69,
        file="client/producer/message_encoder.py",
        text="sys_flag |= SystemFlag.TRANSACTION_PREPARED",
        replacement="pass",
        what="half messages have no mark",
        tests=(
            "integration/test_client_producer.py"
            "::test_sf_069_the_request_of_a_half_message_is_marked_as_prepared",
        ),
    ),
    Mutant(
        row=70,
        file="client/producer/blocking_sender.py",
        text="self._connections[address] = connection",
        replacement="pass",
        what="every send opens a connection of its own",
        tests=(
            "integration/test_client_producer.py"
            "::test_sf_070_the_blocking_producer_sends_over_one_connection_too",
        ),
    ),
)
