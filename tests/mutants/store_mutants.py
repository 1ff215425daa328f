"""Mutants of the store."""

from tests.mutants.mutant import Mutant

STORE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        row=71,
        file="store/message_store.py",
        text=("        self.build_index()\n        self.housekeeper.flush_quietly()\n"),
        replacement="        self.housekeeper.flush_quietly()\n",
        what="the index is not built in the background",
        tests=(
            "unit/store/test_requirements.py"
            "::test_sf_071_all_topics_share_one_log_and_what_is_derived_follows",
        ),
    ),
    Mutant(
        row=72,
        file="store/mapped_file.py",
        text="NAME_DIGITS = 20",
        replacement="NAME_DIGITS = 16",
        what="files have shorter names",
        tests=("unit/store/test_requirements.py::test_sf_072_files_are_named_by_their_first_offset",),
    ),
    Mutant(
        row=73,
        file="store/commit_log.py",
        text=(
            "                queue_offset = queue.next_offset\n"
            "                queue.next_offset = queue_offset + 1\n"
        ),
        replacement=(
            "                queue_offset = queue.next_offset\n"
            "                queue.next_offset = queue_offset + 2\n"
        ),
        what="queue offsets have gaps",
        tests=("unit/store/test_requirements.py::test_sf_073_sixteen_producers_make_one_clean_log",),
    ),
    Mutant(
        row=76,
        file="store/queue_entry.py",
        text="NO_ENTRY_MASK = PREPARED | INNER_BATCH",
        replacement="NO_ENTRY_MASK = INNER_BATCH",
        what="half messages are in the consume queues",
        tests=("unit/store/test_requirements.py::test_sf_076_transactions_under_way_are_not_in_queues",),
    ),
    Mutant(
        row=77,
        file="store/message_store.py",
        text=("        if not self.settings.index_enabled:\n            return None\n"),
        replacement="",
        what="the index cannot be switched off",
        tests=(
            "unit/store/test_requirements.py"
            "::test_sf_077_without_index_keys_find_nothing_and_consumption_works",
        ),
    ),
    Mutant(
        row=78,
        file="store/message_store.py",
        text=(
            "deadline = self._clock.monotonic() + self.settings.sync_flush_timeout_ms / 1000\n"
            "        self.waiters.add("
        ),
        replacement=("deadline = self._clock.monotonic() + 3600\n        self.waiters.add("),
        what="a stalled disk is waited for without limit",
        tests=("unit/store/test_requirements.py::test_sf_078_a_stalled_disk_answers_after_five_seconds",),
    ),
    Mutant(
        row=79,
        file="store/flush.py",
        text="if due or elapsed_ms >= self.settings.flush_thorough_interval_ms:",
        replacement="if due:",
        what="a few pages are never flushed",
        tests=(
            "unit/store/test_requirements.py::test_sf_079_everything_is_flushed_at_least_every_ten_seconds",
        ),
    ),
    Mutant(
        row=81,
        file="store/retention.py",
        text=(
            "        if not forced and file.modified_ms + settings.reserved_hours * HOUR_MS > now_ms:\n"
            "            break\n"
        ),
        replacement="        break\n",
        what="expired files stay",
        tests=(
            "unit/store/test_requirements.py::test_sf_081_expired_files_go_within_70_seconds_of_the_start",
        ),
    ),
    Mutant(
        row=82,
        file="store/retention.py",
        text=("    if percent > settings.disk_full_percent:\n        return DiskState.FULL\n"),
        replacement="",
        what="a full disk accepts messages",
        tests=(
            "unit/store/test_requirements.py"
            "::test_sf_082_a_full_disk_deletes_at_any_hour_and_refuses_at_last",
        ),
    ),
    Mutant(
        row=83,
        file="store/retention.py",
        text="file.modified_ms + settings.reserved_hours * HOUR_MS > now_ms",
        replacement="file.modified_ms + 2 * settings.reserved_hours * HOUR_MS > now_ms",
        what="files are kept twice as long",
        tests=(
            "unit/store/test_requirements.py"
            "::test_sf_083_old_files_go_unconsumed_and_a_slow_consumer_goes_on",
        ),
    ),
    Mutant(
        row=90,
        file="store/queue_entry.py",
        text='ENTRY = struct.Struct(">qiq")',
        replacement='ENTRY = struct.Struct("<qiq")',
        what="entries have another byte order",
        tests=("unit/store/test_requirements.py::test_sf_090_an_entry_of_20_bytes_points_to_the_record",),
    ),
    Mutant(
        row=93,
        file="store/log_reader.py",
        text="entries = read(queue_offset, min(scan_entries, high - queue_offset))",
        replacement="entries = read(low, min(scan_entries, high - low))",
        what="every pull reads from the start",
        tests=("unit/store/test_requirements.py::test_sf_093_a_pull_goes_from_offset_to_entry_to_record",),
    ),
    Mutant(
        row=119,
        file="store/log_reader.py",
        text="return GetStatus.NO_MESSAGE_IN_QUEUE, 0",
        replacement="return GetStatus.NO_MATCHED_LOGIC_QUEUE, 0",
        what="an unused queue is unknown",
        tests=("unit/store/test_requirements.py::test_sf_119_a_queue_is_made_by_the_first_pull",),
    ),
    Mutant(
        row=120,
        file="store/log_reader.py",
        text="return GetStatus.OFFSET_OVERFLOW_BADLY, high",
        replacement="return GetStatus.OFFSET_OVERFLOW_BADLY, 0",
        what="an offset far beyond the end starts over",
        tests=("unit/store/test_requirements.py::test_sf_120_offsets_are_corrected",),
    ),
    Mutant(
        row=121,
        file="store/log_reader.py",
        text="scan_entries = max(scan_entries, self.settings.filter_scan_bytes // ENTRY_BYTES)",
        replacement="scan_entries = high",
        what="a filter scans the whole queue",
        tests=("unit/store/test_requirements.py::test_sf_121_scan_limit",),
    ),
    Mutant(
        row=122,
        file="store/log_reader.py",
        text=(
            "            if record_filter is not None "
            "and not record_filter(view, position, position + size):\n"
            "                continue\n"
        ),
        replacement="",
        what="records are not filtered",
        tests=("unit/store/test_requirements.py::test_sf_122_tags_by_hash_first_then_the_record",),
    ),
    Mutant(
        row=123,
        file="store/log_reader.py",
        text=(
            "                no_data_before = start + file_bytes if view is None else no_data_before\n"
            "                result.status = GetStatus.MESSAGE_WAS_REMOVING\n"
            "                next_offset += 1\n"
            "                continue\n"
        ),
        replacement=(
            "                result.status = GetStatus.MESSAGE_WAS_REMOVING\n                break\n"
        ),
        what="a pull ends at a deleted file",
        tests=("unit/store/test_requirements.py::test_sf_123_a_file_deleted_under_a_consumer_is_skipped",),
    ),
    Mutant(
        row=124,
        file="store/log_reader.py",
        text="min(max_messages, settings.transfer_count_on_disk)",
        replacement="max_messages",
        what="cold reads return any number of messages",
        tests=("unit/store/test_requirements.py::test_sf_124_cold_reads_return_8_messages_or_64_kib",),
    ),
    Mutant(
        row=125,
        file="store/log_reader.py",
        text="result.suggest_slave = log.appended - physical_offset > self.hot.memory_bytes",
        replacement="result.suggest_slave = False",
        what="the slave is never suggested",
        tests=(
            "unit/store/test_requirements.py::test_sf_125_a_lag_above_the_memory_share_suggests_the_slave",
        ),
    ),
    Mutant(
        row=131,
        file="store/log_reader.py",
        text="self._corrected(queue_offset, queue.next_file_offset(queue_offset))",
        replacement="queue_offset",
        what="a hole in the queue is not jumped",
        tests=("unit/store/test_requirements.py::test_sf_131_a_hole_in_the_queues_files_is_jumped",),
    ),
)
