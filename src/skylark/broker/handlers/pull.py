"""Pulls: 11 and 361. Records leave as slices of the log; a pull that finds nothing may be held.

The fast path keeps a plan: the result of a pull's checks, valid for a moment and while nothing that they
read has changed. A pull with a plan is answered from the newest messages, or else by the general path;
both send the same bytes, which a property test checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from threading import Thread
from typing import NamedTuple

import msgspec

from skylark.broker.clients import PASSIVELY, ConsumerGroups
from skylark.broker.cold_reads import ColdReads
from skylark.broker.error_replies import FAQ, SLAVE_REMARK, system_busy
from skylark.broker.filters.compiled_subscription import CompiledSubscription
from skylark.broker.filters.pull_subscriptions import PullRefused, PullSubscriptions
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.long_polling import HeldPull, LongPolling
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.record_loader import ReadCold
from skylark.broker.replication.role import Role
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.protocol.bodies import PERM_READ, DataVersion, SubscriptionGroupConfig, TopicConfig
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import PREFIX_BYTES, Buffer, TypedCommand, prefix
from skylark.protocol.frame_templates import pull_reply_head, pull_reply_template
from skylark.protocol.requests.pull import PULL_COMMIT_OFFSET, PULL_SUSPEND, PullMessage
from skylark.remoting.latency import ONEWAY, SUCCESS, WRITE_FAILED, RequestLatencies
from skylark.remoting.link import error_reply
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.log_reader import GetResult, GetStatus
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import ENTRY_BYTES
from skylark.store.tail_reader import JOINER_ENTRIES_MIN, RecordFilter, TagsFilter
from skylark.tasks import Tasks

PLAN_S = 1.0
"""Lifetime of a plan. The general path, which also creates groups, runs at least this often."""
PLANS_MAX = 4096

Pull = TypedCommand[PullMessage]

# Topic, queue id, group, system flag, subscription, its type and version, code: what the checks go by.
PlanKey = tuple[str, int, str, int, str | None, str | None, int, int]
_PLAN_KEY_FIELDS = attrgetter(
    "topic", "queue_id", "consumer_group", "sys_flag", "subscription", "expression_type", "sub_version"
)


class PlanInputs(NamedTuple):
    """The inputs of the checks: while they are the same, the checks have the same result."""

    settings: BrokerSettings
    topics: DataVersion
    groups: DataVersion
    consumers: int


class PullPlan(NamedTuple):
    """How to answer pulls of the same key."""

    until: float
    queue: ConsumeQueue
    count_max: int
    bytes_max: int
    header: bytes
    tags_filter: TagsFilter | None
    record_filter: RecordFilter | None
    scan_max: int
    """Entries that a filter may look at."""

    @property
    def is_filtered(self) -> bool:
        return self.tags_filter is not None or self.record_filter is not None


class PullPlans:
    """The plans of one broker. Loop thread."""

    def __init__(
        self,
        *,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        role: Role,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        consumers: ConsumerGroups,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
    ) -> None:
        self._live = live
        self._clock = clock
        self._role = role
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._stats = stats
        self._tail = store.reader.tail
        self._plans: dict[PlanKey, PullPlan] = {}
        self._inputs = self._current_inputs()

    def answer(self, peer: Peer, command: Pull, *, commits: bool) -> bool:
        """Answer a pull by its plan from the newest messages; False if the general path is needed.

        `commits`: the offset that came along is to be taken. Raises what reading does.
        """
        plan, request = self._plan_of(command), command.request
        if plan is None:
            return False
        count = max(min(request.max_msg_nums, plan.count_max), 1)
        run = self._tail.read(
            plan.queue, request.queue_offset, count, plan.bytes_max,
            plan.tags_filter, plan.record_filter, plan.scan_max,
        )  # fmt: skip
        if run is None:
            if plan.record_filter is not None:  # the next pulls would look at the same records twice, too
                del self._plans[_plan_key(command)]
            return False
        low, high, next_offset, count, size, parts = run
        self._note([request], next_offset, count, size, commits=commits)
        head = plan.header % (next_offset, high, low, command.opaque)
        head = prefix(len(head), size) + head
        peer.write_parts((head, *parts), len(head) + size)
        return True

    def answer_run(self, peer: Peer, commands: Sequence[Pull]) -> int:
        """Answer consecutive pulls of one read together; return how many were answered.

        What they ask for is read at once, and their answers leave together. Raises what reading does.
        """
        first = commands[0].request
        if commands[1].request.queue_offset != first.queue_offset + first.max_msg_nums:
            return 0
        plan = self._plan_of(commands[0])
        if plan is None or plan.is_filtered or plan.queue.is_batched:
            return 0
        counts = _counts(commands, plan.count_max)
        runs = self._tail.read_each(plan.queue, first.queue_offset, counts, plan.bytes_max)
        if not runs:
            return 0
        header, next_offset = plan.header, first.queue_offset
        answers: list[Buffer] = []
        heads_bytes = records_bytes = 0
        for command, (low, high, next_offset, _, size, parts) in zip(commands, runs, strict=False):
            head = header % (next_offset, high, low, command.opaque)
            answers.append(prefix(len(head), size) + head)
            answers += parts
            heads_bytes += PREFIX_BYTES + len(head)
            records_bytes += size
        requests = [command.request for command in commands[: len(runs)]]
        self._note(requests, next_offset, next_offset - first.queue_offset, records_bytes, commits=True)
        peer.write_parts(answers, heads_bytes + records_bytes)
        return len(runs)

    def _plan_of(self, command: Pull) -> PullPlan | None:
        """Return the plan of a pull, if it is valid."""
        request = command.request
        plan = self._plans.get(_plan_key(command))
        if plan is None or command.flag or request.bulk_bytes:
            return None
        if self._offsets.has_reset(request.topic, request.consumer_group):
            return None
        if self._clock.monotonic() >= plan.until or not self._inputs_hold():
            return None
        return plan if self._store.queues.get((request.topic, request.queue_id)) is plan.queue else None

    def _note(
        self, requests: Sequence[PullMessage], next_offset: int, count: int, size: int, *, commits: bool
    ) -> None:
        """Record the offsets and counts of pulls that were answered together."""
        first = requests[0]
        topic, group, queue_id = first.topic, first.consumer_group, first.queue_id
        self._offsets.note_pull(topic, group, queue_id, next_offset)
        if commits and first.sys_flag & PULL_COMMIT_OFFSET:
            now_ms = self._clock.now_ms()
            for request in requests:
                self._offsets.try_commit(topic, group, queue_id, request.commit_offset, now_ms=now_ms)
        self._stats.count_gets(topic, group, count, size, pulls=len(requests))

    def clear(self) -> None:
        """Forget all plans: they hold for a master."""
        self._plans.clear()

    def make(
        self,
        command: Pull,
        subscription: CompiledSubscription,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
    ) -> None:
        """Keep the result of a pull's checks as a plan, if it holds for others."""
        request = command.request
        if self._role.is_slave or self._live.current.reject_pull_consumers:
            return
        if not self._inputs_hold() or len(self._plans) >= PLANS_MAX:
            self._plans.clear()
            self._inputs = self._current_inputs()
        settings, queue = self._live.current, self._store.queue(request.topic, request.queue_id)
        if queue.is_batched and (subscription.tags_filter or subscription.record_filter):
            return
        self._plans[_plan_key(command)] = PullPlan(
            self._clock.monotonic() + PLAN_S,
            queue,
            settings.store.transfer_count_in_memory,
            settings.store.transfer_bytes_in_memory,
            pull_reply_template(
                code=ResponseCode.SUCCESS,
                remark=GetStatus.FOUND.name,
                # A consumer of the newest messages is not slow.
                suggest_which_broker_id=group.broker_id if settings.slave_read else 0,
                topic_sys_flag=topic.topic_sys_flag,
                group_sys_flag=group.group_sys_flag,
            ),
            subscription.tags_filter,
            subscription.record_filter,
            settings.store.filter_scan_bytes // ENTRY_BYTES,
        )

    def _current_inputs(self) -> PlanInputs:
        return PlanInputs(
            self._live.current,
            self._topics.data_version,
            self._groups.data_version,
            self._consumers.changes,
        )

    def _inputs_hold(self) -> bool:
        settings, topics, groups, consumers = self._inputs
        return (
            settings is self._live.current
            and topics is self._topics.data_version
            and groups is self._groups.data_version
            and consumers == self._consumers.changes
        )


def _counts(commands: Sequence[Pull], count_max: int) -> list[int]:
    """Return the counts of the first pulls that are consecutive and have the same key."""
    code, asked = commands[0].code, _PLAN_KEY_FIELDS(commands[0].request)
    counts, place = list[int](), commands[0].request.queue_offset
    for command in commands:
        request = command.request
        count = request.max_msg_nums
        if (
            request.queue_offset != place
            or not 0 < count <= count_max
            or command.flag
            or command.code != code
            or request.bulk_bytes
            or _PLAN_KEY_FIELDS(request) != asked
        ):
            break
        counts.append(count)
        place += count
    return counts


def _plan_key(command: Pull) -> PlanKey:
    return (*_PLAN_KEY_FIELDS(command.request), command.code)


# Values of the answer's `forbiddenType`.
BROKER_FORBIDDEN = 1
GROUP_FORBIDDEN = 2
TOPIC_FORBIDDEN = 3

RESET_REMARK = "OFFSET_RESET"
FOUND = (int(ResponseCode.SUCCESS), GetStatus.FOUND.name)
CODES = {
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
SUSPENDED_MAX_MS = 60_000
COLD_HOLD_S = 3.0
"""How long a pull is held whose group has reached its cold read limit."""
COLD_REMARK = "This consumer group is reading cold data. It has been flow control"
JOINED_RECORDS_MIN = 128


class PullPath:
    """Pulls of one broker. Loop thread; data that is not in memory is read in a thread."""

    def __init__(
        self,
        *,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        role: Role,
        host: str,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        consumers: ConsumerGroups,
        offsets: ConsumerOffsets,
        cold_reads: ColdReads,
        stats: BrokerStats,
        latencies: RequestLatencies,
        tasks: Tasks,
        read_cold: ReadCold,
    ) -> None:
        self._live = live
        self._clock = clock
        self._role = role
        self._host = host
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._cold_reads = cold_reads
        self._stats = stats
        self._latencies = latencies
        self._tasks = tasks
        self._read_cold = read_cold
        self._subscriptions = PullSubscriptions(live, consumers, groups)
        self._plans = PullPlans(
            live=live, clock=clock, role=role, store=store, topics=topics, groups=groups,
            consumers=consumers, offsets=offsets, stats=stats,
        )  # fmt: skip
        settings = live.current
        self.held = LongPolling(
            self.resume, held_max=settings.held_pulls_max, held_bytes_max=settings.held_bytes_max
        )
        self._cold = 0  # pulls waiting for a read from disk
        self._loading_joiner: Thread | None = None

    @property
    def cold(self) -> int:
        """Pulls that wait for a read from disk. Any thread."""
        return self._cold

    def forget_plans(self) -> None:
        """Check every pull again: the broker's role has changed."""
        self._plans.clear()

    def pull(self, peer: Peer, commands: list[Pull]) -> None:
        """Handle pulls of one read."""
        while len(commands) > 1 and (answered := self._answer_run(peer, commands)):
            commands = commands[answered:]
        for command in commands:
            self._answer(peer, command, peer.active_at, may_hold=True)

    def _answer_run(self, peer: Peer, commands: list[Pull]) -> int:
        """Answer the first pulls together if they are consecutive; return how many."""
        try:
            answered = self._plans.answer_run(peer, commands)
        except Exception:  # noqa: BLE001 (each fails again on the general path, and is answered)
            return 0
        if answered:
            self._latencies.count_successes(commands[0].code, peer.active_at, answered)
        return answered

    def resume(self, held: HeldPull) -> None:
        """Answer a held pull, with all checks again. Never raises."""
        self._answer(held.peer, held.command, held.since, may_hold=False)

    def _answer(self, peer: Peer, command: Pull, since: float, *, may_hold: bool) -> None:
        try:
            code = self._pull(peer, command, since, may_hold=may_hold)
        except Exception as error:  # noqa: BLE001 (logged by error_reply)
            code = self._fail(peer, command, error)
        if code == FOUND[0] and may_hold and not command.flag:
            self._latencies.count_successes(command.code, since)
        else:
            self._count(peer, command, code, since, was_held=not may_hold)

    def _count(self, peer: Peer, command: Pull, code: int | None, since: float, *, was_held: bool) -> None:
        """Count the latency of a reply; without a code there is none yet."""
        if code is not None:
            result = ONEWAY if command.is_oneway else WRITE_FAILED if peer.is_closed else SUCCESS
            self._latencies.count(command.code, code, since, was_held=was_held, result=result)

    def _fail(self, peer: Peer, command: Pull, error: Exception) -> int:
        answer = error_reply(command, error)
        if not command.is_oneway:
            peer.reply(answer)
        return answer.code

    def _pull(self, peer: Peer, command: Pull, since: float, *, may_hold: bool) -> int | None:
        """Return the code of the reply; None if it comes later."""
        if self._plans.answer(peer, command, commits=may_hold):
            return FOUND[0]
        request = command.request
        if self._role.is_slave and not self._live.current.slave_read:
            raise system_busy(SLAVE_REMARK)
        self._role.check_copy()
        now_ms = self._clock.now_ms()
        group = self._groups.find(request.consumer_group, now_ms=now_ms)
        topic = self._topics.get(request.topic)
        refused = self._refusal(peer, command, group, topic)
        if refused is not None:
            return self._refuse(peer, command, refused)
        assert group is not None
        assert topic is not None
        subscription = self._subscriptions.find(
            request, group, peer, now=self._clock.monotonic(), now_ms=now_ms
        )
        if isinstance(subscription, PullRefused):
            return self._refuse(peer, command, subscription)
        if self._reset(peer, command, group, topic):
            return int(ResponseCode.PULL_OFFSET_MOVED)
        result = self._get(request, subscription, may_block=False)
        if result.status is GetStatus.COLD:
            self._check_cold(request)
            self._cold += 1
            if may_hold and self._had_enough(request):
                self._tasks.spawn(self._hold_cold(peer, command, since))
            else:
                self._tasks.spawn(self._pull_cold(peer, command, subscription, group, topic, may_hold, since))
            return None
        code = self._finish(peer, command, subscription, group, topic, result, may_hold=may_hold)
        if result.status is GetStatus.FOUND and not request.bulk_bytes:
            self._plans.make(command, subscription, group, topic)
        return code

    def _check_cold(self, request: PullMessage) -> None:
        """Refuse a cold read above the limit of pulls, or of a group that retries by itself."""
        if self._cold >= self._live.current.pull_queue_max:
            raise system_busy()
        group = self._consumers.group(request.consumer_group)
        if group is not None and group.consume_type == PASSIVELY and self._had_enough(request):
            raise system_busy(COLD_REMARK)

    def _had_enough(self, request: PullMessage) -> bool:
        return self._cold_reads.had_enough(request.consumer_group, now=self._clock.monotonic())

    async def _hold_cold(self, peer: Peer, command: Pull, since: float) -> None:
        """Hold a pull of a group at its limit; if the group still is afterwards, it gets one message."""
        command.body = b""  # it would keep the whole read buffer alive
        try:
            await asyncio.sleep(COLD_HOLD_S)
        finally:
            self._cold -= 1
        if self._had_enough(command.request):
            command.request = msgspec.structs.replace(command.request, max_msg_nums=1, bulk_bytes=None)
        if not peer.is_closed:
            self._answer(peer, command, since, may_hold=False)

    async def _pull_cold(
        self,
        peer: Peer,
        command: Pull,
        subscription: CompiledSubscription,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
        may_hold: bool,
        since: float,
    ) -> None:
        wait_ms = self._live.current.pull_wait_ms
        code: int | None = None
        try:
            async with asyncio.timeout(wait_ms / 1000):
                result = await self._read_cold(
                    lambda: self._get(command.request, subscription, may_block=True)
                )
            self._count_cold(command.request, result)
            if not peer.is_closed:
                code = self._finish(peer, command, subscription, group, topic, result, may_hold=may_hold)
        except TimeoutError:
            remark = (
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                f"period in queue: {wait_ms}ms, size of queue: {self._cold}"
            )
            code = self._fail(peer, command, system_busy(remark))
        except Exception as error:  # noqa: BLE001 (logged by error_reply)
            code = self._fail(peer, command, error)
        finally:
            self._cold -= 1
        self._count(peer, command, code, since, was_held=not may_hold)

    def _count_cold(self, request: PullMessage, result: GetResult) -> None:
        clock = self._clock
        self._cold_reads.count(
            request.consumer_group, result.cold_bytes, now=clock.monotonic(), now_ms=clock.now_ms()
        )

    def _get(self, request: PullMessage, subscription: CompiledSubscription, *, may_block: bool) -> GetResult:
        if request.bulk_bytes and request.bulk_bytes > 0:
            if self._loading_joiner is None and request.max_msg_nums >= JOINER_ENTRIES_MIN:
                self._loading_joiner = Thread(target=self._load_joiner, name="skylark-arrow", daemon=True)
                self._loading_joiner.start()
            return self._store.reader.get(
                self._store.queue(request.topic, request.queue_id),
                request.queue_offset,
                request.max_msg_nums,
                tags_filter=subscription.tags_filter,
                record_filter=subscription.record_filter,
                may_block=may_block,
                bulk_bytes=request.bulk_bytes,
                is_checked=not request.bulk_units,
            )
        return self._store.get(
            request.topic,
            request.queue_id,
            request.queue_offset,
            request.max_msg_nums,
            tags_filter=subscription.tags_filter,
            record_filter=subscription.record_filter,
            may_block=may_block,
        )

    def _load_joiner(self) -> None:
        """Let bulk reads use Arrow, if it is installed. In a thread: loading takes a fifth of a second."""
        with suppress(ImportError):
            from skylark.broker.arrow_joiner import join  # noqa: PLC0415 (an extra)

            self._store.reader.tail.joiner = join

    # --- Checks ---

    def _refusal(
        self, peer: Peer, command: Pull, group: SubscriptionGroupConfig | None, topic: TopicConfig | None
    ) -> PullRefused | None:
        request, settings = command.request, self._live.current
        broker_host = self._host
        if not settings.permission & PERM_READ or (
            command.code == RequestCode.LITE_PULL_MESSAGE and not settings.lite_pull
        ):
            remark = f"the broker[{broker_host}] pulling message is forbidden"
            return PullRefused(ResponseCode.NO_PERMISSION, remark, BROKER_FORBIDDEN)
        if group is None:
            remark = f"subscription group [{request.consumer_group}] does not exist, {FAQ}"
            return PullRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            remark = f"subscription group no permission, {request.consumer_group}"
            return PullRefused(ResponseCode.NO_PERMISSION, remark, GROUP_FORBIDDEN)
        if topic is None:
            remark = f"topic[{request.topic}] not exist, apply first please! {FAQ}"
            return PullRefused(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.perm & PERM_READ:
            remark = f"the topic[{request.topic}] pulling message is forbidden"
            return PullRefused(ResponseCode.NO_PERMISSION, remark, TOPIC_FORBIDDEN)
        if not 0 <= request.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer.address}]"
            )
            return PullRefused(ResponseCode.INVALID_PARAMETER, remark)
        return None

    def _refuse(self, peer: Peer, command: Pull, refused: PullRefused) -> int:
        fields = {} if refused.forbidden_type is None else {"forbiddenType": str(refused.forbidden_type)}
        if not command.is_oneway:
            peer.reply(command.reply(refused.code, refused.remark, fields=fields))
        return refused.code

    def _reset(self, peer: Peer, command: Pull, group: SubscriptionGroupConfig, topic: TopicConfig) -> bool:
        """Answer with the new offset if the group was reset; return whether it was."""
        request = command.request
        reset = self._offsets.take_reset(request.topic, request.consumer_group, request.queue_id)
        if reset is None:
            return False
        queue = self._store.queue(request.topic, request.queue_id)
        head = pull_reply_head(
            command.opaque, code=ResponseCode.PULL_OFFSET_MOVED, remark=RESET_REMARK,
            next_begin_offset=reset, min_offset=queue.min_offset, max_offset=queue.max_offset,
            topic_sys_flag=topic.topic_sys_flag, group_sys_flag=group.group_sys_flag,
        )  # fmt: skip
        if not command.is_oneway:
            peer.write(head)
        return True

    # --- Answers ---

    def _finish(
        self,
        peer: Peer,
        command: Pull,
        subscription: CompiledSubscription,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
        result: GetResult,
        *,
        may_hold: bool,
    ) -> int | None:
        request = command.request
        if result.status is GetStatus.FOUND:
            code, remark = FOUND
        else:
            code, remark = _answer_of(result.status, request.queue_offset)
        self._offsets.note_pull(request.topic, request.consumer_group, request.queue_id, result.next_offset)
        if may_hold and request.sys_flag & PULL_COMMIT_OFFSET:
            self._offsets.try_commit(
                request.topic,
                request.consumer_group,
                request.queue_id,
                request.commit_offset,
                now_ms=self._clock.now_ms(),
            )
        suggested = 0
        if self._live.current.slave_read:
            suggested = group.which_broker_when_consume_slowly if result.suggest_slave else group.broker_id
        if self._role.is_slave:
            code, suggested = self._as_slave(code, suggested, request, group, result)
        if code == ResponseCode.PULL_NOT_FOUND and may_hold and self._hold(peer, command, subscription):
            return None
        if command.is_oneway:
            return code
        units = result.entries if request.bulk_bytes and request.bulk_units else b""
        head = pull_reply_head(
            command.opaque, code=code, remark=remark, next_begin_offset=result.next_offset,
            min_offset=result.min_offset, max_offset=result.max_offset,
            body_bytes=len(units) + result.bytes, suggest_which_broker_id=suggested,
            topic_sys_flag=topic.topic_sys_flag, group_sys_flag=group.group_sys_flag,
            bulk_units=result.count if units else 0,
        )  # fmt: skip
        records = result.records
        if len(records) > JOINED_RECORDS_MIN:
            records = [memoryview(b"".join(records))]  # copying costs less than thousands of small parts
        peer.write_parts((head + units, *records), len(head) + len(units) + result.bytes)
        if result.records:
            self._stats.count_gets(request.topic, request.consumer_group, result.count, result.bytes)
        else:
            self._stats.misses.add(1, 0)
        return code

    def _as_slave(
        self,
        code: int,
        suggested: int,
        request: PullMessage,
        group: SubscriptionGroupConfig,
        result: GetResult,
    ) -> tuple[int, int]:
        """Return a slave's code and suggestion: consumers go back to a connected master if they can."""
        sees_master = self._role.slave.sees_master
        if sees_master and not result.suggest_slave:
            found = code == ResponseCode.SUCCESS
            return (code if found else int(ResponseCode.PULL_RETRY_IMMEDIATELY)), 0
        if code == ResponseCode.PULL_OFFSET_MOVED and not self._live.current.replication.offset_check:
            if not sees_master and request.queue_offset > result.max_offset:
                # The master had more than was replicated: nothing to read until it is back.
                return int(ResponseCode.PULL_NOT_FOUND), suggested
            return int(ResponseCode.PULL_RETRY_IMMEDIATELY), group.broker_id
        return code, suggested

    def _hold(self, peer: Peer, command: Pull, subscription: CompiledSubscription) -> bool:
        request, settings = command.request, self._live.current
        if not request.sys_flag & PULL_SUSPEND:
            return False
        timeout_ms = request.suspend_timeout_ms if settings.long_polling else settings.short_polling_ms
        if timeout_ms <= 0:
            return False
        queue = self._store.queue(request.topic, request.queue_id)
        held = HeldPull(peer, command, queue, request.queue_offset, subscription)
        return self.held.hold(held, min(timeout_ms, SUSPENDED_MAX_MS) / 1000)


def _answer_of(status: GetStatus, queue_offset: int) -> tuple[int, str]:
    """Return code and remark of a pull that found nothing."""
    code = CODES.get(status)
    if code is None:  # no such queue, or an empty one
        code = ResponseCode.PULL_OFFSET_MOVED if queue_offset else ResponseCode.PULL_NOT_FOUND
    return code, status.name
