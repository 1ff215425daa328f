"""Sends: 10, 310 and 320. The hot path: all sends of one read are checked, appended and answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from skylark.broker.address import BrokerAddress
from skylark.broker.clients import QueueLockTable
from skylark.broker.delayed.delay_levels import parse_level
from skylark.broker.delayed.timed_messages import handle_of
from skylark.broker.delayed.timers import DelayedMessages
from skylark.broker.error_replies import (
    FAQ,
    full,
    group_not_exist,
    illegal,
    invalid_parameter,
    messages_are_copied,
    no_permission,
    not_available,
    refusal_reply,
    system_busy,
    system_error,
)
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.handlers.plain_sends import PlainSends, is_lone_frame, with_code
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.replication.master import ReplicationMaster
from skylark.broker.replication.role import Role
from skylark.broker.topics import MESSAGE_TYPE, PRIORITY, TopicTable, describe, random_queue
from skylark.broker.transactions.coordinator import TransactionCoordinator
from skylark.broker.transactions.half_messages import prepare, prepare_as_sent
from skylark.clock import Clock
from skylark.errors import BadBody, BrokerError
from skylark.model import names
from skylark.model.body import decompress
from skylark.model.lite_topic import LIGHT_QUEUE_ID, LITE, light_queue_of, lite_name_error
from skylark.model.message import (
    DEAD_LETTER_TOPIC_PREFIX,
    HOST_V4_BYTES,
    PROPERTY_LIGHT_OFFSETS,
    PROPERTY_LIGHT_QUEUES,
    PROPERTY_LITE_TOPIC,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    PutMessage,
    SystemFlag,
    decode_properties,
    encode_properties,
    find_unique_key,
    priority_of,
)
from skylark.model.message_id import UniqueIds, joined_offset_ids, offset_id_template
from skylark.model.record import BatchColumns, count_batch, split_columns
from skylark.protocol.bodies import PERM_WRITE, TopicConfig
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import TypedCommand
from skylark.protocol.connection import Limits
from skylark.protocol.frame_templates import SendReplies
from skylark.protocol.requests.send import SendMessage, SendMessageV2
from skylark.remoting.latency import ONEWAY, RequestLatencies
from skylark.remoting.server import OffloopReply, Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import (
    AppendedBatch,
    AppendedInnerBatch,
    AppendedRecord,
    LaidOut,
    PutResult,
    PutStatus,
    Refused,
)
from skylark.store.batch_encoder import ClientBatch
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.message_store import MessageStore
from skylark.store.queue_table import is_batch_type

Send = SendMessage | SendMessageV2

RETRY_BY_HEADER_VERSION = 121
"""Clients from 3.4.9 on send the maximum number of retries themselves."""

ZERO_REMARK = "properties: a zero character is not allowed"
"""Recovery takes zeros in properties for damage by a power failure."""
LITE_NAME_BYTES_MAX = 100
"""Bytes of a lite topic's name: with the parent's, it names a directory."""
LATEST_TIME_MS = 253_402_214_400_000
"""The latest time that datetime can represent."""

WAITING_STATUSES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}


HALF_FRAME_BYTES_MIN = 128
"""A frame of a half message is longer."""
CHANGE_PAUSE_S = 0.1
"""How long a refusal waits while another broker becomes the master."""


class LoneSend(NamedTuple):
    """The only send that waits for the disk: the end of its record, and its reply."""

    end: int
    answer: OffloopReply


class SendPath:
    """Sends of one broker. Loop thread, but for `flushed_lone`."""

    def __init__(
        self,
        *,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        role: Role,
        address: BrokerAddress,
        store: MessageStore,
        replication: ReplicationMaster,
        topics: TopicTable,
        groups: SubscriptionGroups,
        locks: QueueLockTable,
        delayed: DelayedMessages,
        transactions: TransactionCoordinator,
        stats: BrokerStats,
        latencies: RequestLatencies,
        replies: SendReplies,
    ) -> None:
        self._live = live
        self._clock = clock
        self._role = role
        self._host = address.host
        self._store = store
        self._queues = store.queues
        self._replication = replication
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._delayed = delayed
        self._transactions = transactions
        self._stats = stats
        self._count = latencies.count
        self._count_successes = latencies.count_successes
        self._stored = replies.stored
        self._refused = replies.refused
        settings = live.current
        added = {
            "MSG_REGION": settings.region,
            "TRACE_ON": str(settings.trace_on).lower(),
            "CLUSTER": settings.cluster,
        }
        self._added = encode_properties(added)
        self._unique_ids = UniqueIds(address.packed[:-4], clock.now_ms())
        self._store_host = address.packed
        self._message_id = offset_id_template(address.packed)
        self._admitted: set[ConsumeQueue | None] = set()
        """Queues of plain topics: messages to them need no further checks until the topics change."""
        self._admitted_edition: object = None
        self._plain: PlainSends | None = None
        if PlainSends.works_with(self._added, address.packed):
            limits = Limits()
            self._plain = PlainSends(
                added=self._added, store_host=address.packed, replies=replies,
                header_bytes_max=limits.header_bytes_max,
            )  # fmt: skip
        self._waiting = 0  # sends that are stored but not acknowledged
        self._lone: LoneSend | None = None
        self._lacks_replicas = False

    @property
    def waiting(self) -> int:
        """Number of sends that wait for disk or slaves. Any thread."""
        return self._waiting

    def _refusal(self, now_ms: int) -> BrokerError | None:
        """Return why all sends are refused now, or None."""
        settings = self._live.current
        if self._role.is_slave:
            return messages_are_copied("")
        if self._role.is_fenced:
            return not_available("another master may have been elected, or takes over now")
        self._lacks_replicas = self._replication.lacks_replicas
        if now_ms < settings.accept_sends_from_ms:
            opens = datetime.fromtimestamp(min(settings.accept_sends_from_ms, LATEST_TIME_MS) / 1000)
            text = opens.isoformat(" ", "milliseconds").replace(".", ",")
            return system_error(f"broker unable to service, until {text}")
        if self._waiting >= settings.send_queue_max:
            return system_busy()
        return None

    # --- Plain messages, undecoded ---

    @property
    def takes_plain(self) -> bool:
        """Whether `take_plain` can do anything."""
        return self._plain is not None

    def take_plain(
        self, peer: Peer, buffer: bytes | bytearray | memoryview, senders: dict[bytes, bytes] | None
    ) -> tuple[int, int]:
        """Handle the plain sends at the beginning of a read; return their bytes and number.

        Only those that `senders` have signed, if it is not None.

        Nothing is taken while sends are refused, and of a client that waits for each message to be on disk:
        its reply leaves by the flush thread (`_prepare_lone`).
        """
        plain, waits = self._plain, self._replication.delays_acks
        if (
            plain is None
            or self._admitted_edition is not self._topics.edition
            or len(peer.packed_host) != HOST_V4_BYTES
            or (waits and is_lone_frame(buffer))
            or self._refusal(self._clock.now_ms()) is not None
            or self._lacks_replicas
        ):
            return 0, 0
        bytes_max = self._store.log.message_bytes_max
        halves = plain.half_queue
        if halves is not None and (waits or self._half_refusal(len(buffer) // HALF_FRAME_BYTES_MIN)):
            plain.refuse_halves()
            halves = None
        laid_out = self._store.append_laid_out(
            partial(plain.lay_out, buffer, senders, peer.packed_host, bytes_max)
        )
        if laid_out is None:
            return 0, 0
        if halves is not None:
            self._note_halves(halves, laid_out)
        if waits:
            self._answer_plain_when_stored(peer, laid_out)
        else:
            peer.write(laid_out.replies)
            for request, count in _requests(laid_out):
                self._count_successes(request, peer.active_at, count)
        for each in laid_out.results:
            self._stats.count_puts(each)
        self._store.announce()
        return laid_out.consumed, laid_out.frames

    def _note_halves(self, queue: ConsumeQueue, laid_out: LaidOut) -> None:
        halves = [each for some in laid_out.results for each in some if each.queue is queue]
        if halves:
            self._transactions.note_stored(halves, laid_out.data, laid_out.end - len(laid_out.data))

    def _answer_plain_when_stored(self, peer: Peer, laid_out: LaidOut) -> None:
        since = peer.active_at

        def answer(status: PutStatus) -> None:
            self._waiting -= laid_out.frames
            code = WAITING_STATUSES[status]
            for request, count in _requests(laid_out):
                self._count(request, code, since, count)
            is_stored = code is ResponseCode.SUCCESS
            peer.write(laid_out.replies if is_stored else with_code(laid_out.replies, code))

        self._waiting += laid_out.frames
        self._replication.when_stored(laid_out.end, answer)

    # --- Single messages ---

    def send(self, peer: Peer, commands: list[TypedCommand[Send]]) -> None:
        """Handle sends of one read, in order."""
        now_ms = self._clock.now_ms()
        refusal = self._refusal(now_ms)
        if refusal is not None:
            if self._role.is_changing:
                self._refuse_later(peer, commands, refusal)
            else:
                self._refuse_all(peer, commands, refusal)
            return
        messages: list[PutMessage] = []
        sent: list[TypedCommand[Send]] = []
        # Looked up together: with many topics, several cache misses overlap.
        places = [(command.request.topic, command.request.queue_id) for command in commands]
        for command, queue in zip(commands, list(map(self._queues.get, places)), strict=True):
            if command.request.batch:
                self._append(peer, sent, messages)
                sent, messages = [], []
                self._send_batches(peer, [command], now_ms)
                continue
            if not command.body:
                self._refuse_empty(peer, command)
                continue
            try:
                messages.append(self._message(peer, command, queue, now_ms))
            except BrokerError as error:
                self._refuse(peer, command, error)
            except ValueError as error:  # invalid UTF-8, separators inside values
                self._refuse(peer, command, illegal(f"properties: {error}"))
            else:
                sent.append(command)
        self._append(peer, sent, messages)

    def _message(
        self, peer: Peer, command: TypedCommand[Send], queue: ConsumeQueue | None, now_ms: int, *,
        in_batch: bool = False,
    ) -> PutMessage:  # fmt: skip
        """Make the message to store; `queue` is the requested one, if it exists. Raises BrokerError."""
        request = command.request
        text, queue_id, sys_flag = request.properties, request.queue_id, request.sys_flag
        if "\0" in text:
            raise illegal(ZERO_REMARK)
        if queue not in self._admitted or self._admitted_edition is not self._topics.edition:
            if 0 <= queue_id < self._topics.plain.get(request.topic, 0):
                if queue is not None:
                    self._note_admitted(queue)
            else:
                queue = None
                queue_id, sys_flag = self._admit(peer, request, now_ms)
        light_queue = ""
        if queue is None and (PROPERTY_LITE_TOPIC in text or PROPERTY_LIGHT_QUEUES in text):
            light_queue, text = self._light(request.topic, text)
        properties = text.encode() if not text or text[-1] == "\x02" else text.encode() + b"\x02"
        if "UNIQ_KEY\x01" not in text and not in_batch:
            properties += b"UNIQ_KEY\x01%b\x02" % self._unique_ids.next(now_ms).encode()
        message = PutMessage(
            request.topic, queue_id, command.body, properties + self._added, request.flag, sys_flag,
            request.born_timestamp, peer.packed_host, request.reconsume_times, queue=queue,
            light_queue=light_queue,
        )  # fmt: skip
        if request.topic.startswith(RETRY_TOPIC_PREFIX):
            message.queue = None
            self._retry_or_bury(message, command, now_ms)
        # Properties without any of these are stored unparsed.
        if "DELAY" in text or "TIMER_DEL" in text or "TRAN_MSG" in text or "POP_CK" in text:
            message.queue = None
            self._special(message)
            if light_queue and message.topic != request.topic:
                raise illegal("a message of a lite topic cannot be delayed or part of a transaction")
        if "WAIT\x01false" in text:
            message.wait = False
        elif self._lacks_replicas:
            raise system_error("in-sync replicas not enough")
        return message

    def _light(self, topic: str, text: str) -> tuple[str, str]:
        """Return the light queue of a message, and its properties without a place there.

        No light queue for a topic without lite topics. Raises BrokerError.
        """
        config = self._topics.get(topic)
        properties = decode_properties(text.encode())
        lite_topic = properties.get(PROPERTY_LITE_TOPIC, "")
        if config is None or config.attributes.get(MESSAGE_TYPE) != LITE:
            return "", text
        for each in (PROPERTY_LIGHT_QUEUES, PROPERTY_LIGHT_OFFSETS):
            properties.pop(each, None)
        name = ""
        if lite_topic:
            fault = lite_name_error(lite_topic, LITE_NAME_BYTES_MAX)
            if fault is not None:
                raise illegal(fault)
            name = light_queue_of(topic, lite_topic)
            if (name, LIGHT_QUEUE_ID) not in self._queues:
                self._check_light_quota()
        return name, encode_properties(properties).decode()

    def _check_light_quota(self) -> None:
        """Refuse one more lite topic than allowed."""
        settings = self._live.current
        if len(self._queues) >= settings.queues_max:
            raise full("queues", settings.queues_max)
        most = settings.lite.topics_max
        if settings.lite.limits_topics and len(self._queues.light_queues()) >= most:
            raise BrokerError.for_code(
                ResponseCode.LMQ_QUOTA_EXCEEDED, f"{most} lite topics exist; delete some, or let them expire"
            )

    def _note_admitted(self, queue: ConsumeQueue, *, takes_batches: bool = False) -> None:
        """Check messages to this queue no more, until the topics change; of a BatchCQ topic, batches only."""
        if self._admitted_edition is not self._topics.edition:
            self._admitted_edition = self._topics.edition
            self._admitted.clear()
            if self._plain is not None:
                self._plain.places.clear()
        if not takes_batches:
            self._admitted.add(queue)
        if self._plain is not None:
            self._plain.note(queue, takes_batches=takes_batches)

    def _admit(self, peer: Peer, request: Send, now_ms: int) -> tuple[int, int]:
        """Return queue and flags for a topic that needs checks or is missing. Raises BrokerError."""
        config = self._topics.for_send(
            request.topic, request.default_topic, request.default_topic_queue_nums,
            unit_mode=request.unit_mode, now_ms=now_ms,
        )  # fmt: skip
        if config.order or config.attributes:
            self._check_topic(config, request.properties)
        queue_id = request.queue_id
        if config.attributes.get(MESSAGE_TYPE) == PRIORITY:
            priority = priority_of(decode_properties(request.properties.encode()))
            queue_id = queue_id if priority is None else min(priority, config.write_queue_nums - 1)
        if not 0 <= queue_id < config.write_queue_nums:
            queue_id = self._queue_id(peer, queue_id, config)
        is_multi = config.topic_filter_type == "MULTI_TAG"
        return queue_id, request.sys_flag | (SystemFlag.MULTI_TAGS if is_multi else 0)

    def _check_topic(self, config: TopicConfig, properties: str) -> None:
        """Check requirements that only some topics have. Raises BrokerError."""
        if config.order and not self._live.current.permission & PERM_WRITE:
            raise no_permission(f"the broker[{self._host}] sending message is forbidden")
        if (
            config.attributes.get("cleanup.policy") == "COMPACTION"
            and not decode_properties(properties.encode()).get("KEYS", "").strip()
        ):
            raise illegal("Required message key is missing")
        # They would be taken for those of an inner batch by RocketMQ.
        if is_batch_type(config.attributes) and ("INNER_NUM" in properties or "INNER_BASE" in properties):
            raise illegal("properties: INNER_NUM and INNER_BASE are set by the broker")

    def _queue_id(self, peer: Peer, queue_id: int, config: TopicConfig) -> int:
        """Return the queue for an id outside of the write queues. Raises BrokerError 29."""
        if queue_id < 0 < config.write_queue_nums:
            return random_queue(config.write_queue_nums)
        if not 0 <= queue_id < max(config.write_queue_nums, config.read_queue_nums):
            raise invalid_parameter(
                f"request queueId[{queue_id}] is illegal, {describe(config)} Producer: {peer.address}"
            )
        return queue_id

    def _special(self, message: PutMessage) -> None:
        """Apply delays, timers and transactions, and drop properties that clients may not set. In place."""
        is_admitted = self._delayed.admit_as_sent(message)
        refusal = None if is_admitted else self._half_refusal()
        if is_admitted or (refusal is None and prepare_as_sent(message)):
            if self._plain is not None:
                self._note_waiting(self._plain, message)
            return
        properties = decode_properties(message.properties)
        properties.pop("POP_CK", None)
        is_tried_again = message.reconsume_times > 0 and parse_level(properties) > 0
        if properties.get("TRAN_MSG", "").lower() == "true" and not is_tried_again:
            if refusal is not None:
                raise refusal
            prepare(message, properties)
            return
        message.properties = encode_properties(properties)
        self._delayed.admit(message, properties)

    def _note_waiting(self, plain: PlainSends, message: PutMessage) -> None:
        """Let messages of the same delay level be taken undecoded, or half messages, from now on."""
        if message.topic == SCHEDULE_TOPIC:
            delay_ms = self._store.log.schedule_tags_code(message.properties, 0)
            plain.note_level(self._store.queue(message.topic, message.queue_id), delay_ms)
        elif message.topic == names.HALF_TOPIC:
            plain.note_half(self._store.queue(message.topic, message.queue_id))

    def _half_refusal(self, more: int = 1) -> BrokerError | None:
        """Return why this number of further transactions is not allowed, or None."""
        settings = self._live.current.transactions
        if settings.reject:
            return no_permission(f"the broker[{self._host}] sending transaction message is forbidden")
        if self._transactions.open_count + more > settings.open_max:
            return system_busy(f"{settings.open_max} transactions are open, end some of them first")
        return None

    def _retry_or_bury(self, message: PutMessage, command: TypedCommand[Send], now_ms: int) -> None:
        """Handle clients that retry by sending: too many attempts make the message a dead letter."""
        group = message.topic.removeprefix(RETRY_TOPIC_PREFIX).partition("+")[0]
        config = self._groups.find(group, now_ms=now_ms)
        if config is None:
            raise group_not_exist(f"subscription group not exist, {group} {FAQ}")
        attempts_max = config.retry_max_times
        request = command.request
        if request.max_reconsume_times is not None and command.version >= RETRY_BY_HEADER_VERSION:
            attempts_max = request.max_reconsume_times
        if message.reconsume_times > attempts_max or self._locks.has_any(group, now=self._clock.monotonic()):
            topic = DEAD_LETTER_TOPIC_PREFIX + group
            self._topics.ensure_topic(topic, now_ms=now_ms)
            properties = decode_properties(message.properties)
            properties["DELAY"] = "-1"
            message.topic, message.queue_id = topic, 0
            message.properties = encode_properties(properties)

    def _append(self, peer: Peer, sent: list[TypedCommand[Send]], messages: list[PutMessage]) -> None:
        if not messages:
            return
        store = self._store
        results = store.append(messages, announce_later=True)
        self._answer(peer, sent, messages, results)
        store.announce()

    def _answer(
        self,
        peer: Peer,
        sent: Sequence[TypedCommand[Send]],
        messages: Sequence[PutMessage],
        results: Sequence[PutResult],
    ) -> None:
        at_once: list[bytes] = []
        later: list[tuple[TypedCommand[Send], PutMessage, AppendedRecord]] = []
        refused = 0
        waits = self._replication.delays_acks
        for command, message, result in zip(sent, messages, results, strict=True):
            if command.is_oneway:
                continue
            if isinstance(result, AppendedRecord):
                if waits and message.wait:
                    later.append((command, message, result))
                else:
                    at_once.append(self._stored_reply(command, message, result, ResponseCode.SUCCESS))
            else:
                code, remark = refusal_reply(result.status, result.reason, self._store.log.message_bytes_max)
                at_once.append(self._refused(command.opaque, code, remark))
                refused += 1
                self._count(command.code, code, peer.active_at)
        if at_once:
            peer.write(*at_once)
        if later:
            self._answer_when_stored(peer, later)
        self._stats.count_puts(results)
        # A client uses one of the codes: the first counts for all.
        if stored := len(at_once) - refused:
            self._count_successes(sent[0].code, peer.active_at, stored)
        if oneways := len(sent) - len(at_once) - len(later):
            self._count(sent[0].code, ResponseCode.SUCCESS, peer.active_at, oneways, result=ONEWAY)

    def _answer_when_stored(
        self, peer: Peer, later: list[tuple[TypedCommand[Send], PutMessage, AppendedRecord]]
    ) -> None:
        """Add one waiter for all sends of one read: they end at the same offset of the log."""
        since = peer.active_at
        end = later[-1][2].end
        prepared = self._prepare_lone(peer, end, later[0]) if len(later) == 1 else None

        def answer(status: PutStatus) -> None:
            self._waiting -= len(later)
            self._count(later[0][0].code, WAITING_STATUSES[status], since, len(later))
            if prepared is not None:
                self._lone = None
                peer.take_back(prepared)
                if prepared.is_sent:
                    return
            code = WAITING_STATUSES[status]
            peer.write(*[self._stored_reply(*each, code) for each in later])

        self._waiting += len(later)
        self._replication.when_stored(end, answer)

    def _prepare_lone(
        self, peer: Peer, end: int, sent: tuple[TypedCommand[Send], PutMessage, AppendedRecord]
    ) -> OffloopReply | None:
        """Prepare a reply for the flush thread to send, if no other send waits: saves two thread switches."""
        if self._lone is not None and self._lone.answer.is_sent:
            self._store.advance()  # the client's next send came before the loop noticed the flush
        if self._waiting or self._role.waits_for_slaves:
            return None
        prepared = peer.prepare(self._stored_reply(*sent, ResponseCode.SUCCESS))
        if prepared is not None:
            self._lone = LoneSend(end, prepared)
        return prepared

    def flushed_lone(self) -> OffloopReply | None:
        """Return the reply to the only waiting send, if it is on disk now. Flush thread."""
        lone = self._lone
        return lone.answer if lone is not None and lone.end <= self._store.flushed_offset else None

    def _stored_reply(
        self, command: TypedCommand[Send], message: PutMessage, placed: AppendedRecord, code: ResponseCode
    ) -> bytes:
        queue_id, handle, key = message.queue_id, None, find_unique_key(message.properties)
        if message.topic != command.request.topic:  # delayed or dead: reply with the client's queue
            queue_id = max(command.request.queue_id, 0)
            if message.topic == names.TIMER_TOPIC:
                name = self._live.current.name
                handle = handle_of(message.properties, command.request.topic, name, key or b"")
        return self._stored(
            command.opaque,
            self._message_id % placed.physical_offset,
            queue_id,
            placed.queue_offset,
            transaction_id=key,
            recall_handle=handle,
            code=code,
        )

    def _refuse(self, peer: Peer, command: TypedCommand[Send], error: BrokerError) -> None:
        if not command.is_oneway:
            peer.write(self._refused(command.opaque, error.code, error.remark))
            self._count(command.code, error.code, peer.active_at)

    def _refuse_all(self, peer: Peer, commands: Sequence[TypedCommand[Send]], error: BrokerError) -> None:
        for command in commands:
            self._refuse(peer, command, error)

    def _refuse_later(self, peer: Peer, commands: Sequence[TypedCommand[Send]], error: BrokerError) -> None:
        """Refuse while the next master takes over: a client that retries at once would not find it."""
        frames = [
            self._refused(command.opaque, error.code, error.remark)
            for command in commands
            if not command.is_oneway
        ]
        if frames:
            self._count(commands[0].code, error.code, peer.active_at, len(frames))
            asyncio.get_running_loop().call_later(CHANGE_PAUSE_S, peer.write, *frames)

    def _refuse_empty(self, peer: Peer, command: TypedCommand[Send]) -> None:
        """Reply without the fields of a send, as RocketMQ does."""
        if not command.is_oneway:
            peer.reply(command.reply(ResponseCode.SYSTEM_ERROR, "the request has no body"))
            self._count(command.code, ResponseCode.SYSTEM_ERROR, peer.active_at)

    # --- Batches ---

    def send_batch(self, peer: Peer, commands: list[TypedCommand[Send]]) -> None:
        """Handle batches of one read."""
        now_ms = self._clock.now_ms()
        refusal = self._refusal(now_ms)
        if refusal is not None:
            if self._role.is_changing:
                self._refuse_later(peer, commands, refusal)
            else:
                self._refuse_all(peer, commands, refusal)
            return
        self._send_batches(peer, commands, now_ms)

    def _send_batches(self, peer: Peer, commands: Sequence[TypedCommand[Send]], now_ms: int) -> None:
        batches: list[ClientBatch] = []
        sent: list[TypedCommand[Send]] = []
        for command in commands:
            if not command.body:
                self._refuse_empty(peer, command)
                continue
            try:
                is_inner = self._topics.is_batched(command.request.topic)
                envelope = self._envelope(peer, command, now_ms, is_inner=is_inner)
                batch = self._inner_count(envelope) if is_inner else _columns(command.body)
            except BrokerError as error:
                self._refuse(peer, command, error)
            except ValueError as error:
                self._refuse(peer, command, illegal(str(error)))
            else:
                batches.append((envelope, batch))
                sent.append(command)
        if sent:
            store = self._store
            self._answer_batches(peer, sent, batches, store.append_batches(batches, announce_later=True))
            store.announce()

    def _inner_count(self, inner_batch: PutMessage) -> int:
        """Return the number of messages in a batch that is stored as one record. Raises ValueError."""
        body, sys_flag = inner_batch.body, inner_batch.sys_flag
        if not sys_flag & SystemFlag.COMPRESSED:
            return count_batch(body)
        bytes_max = self._store.log.message_bytes_max
        try:
            return count_batch(decompress(bytes(body), sys_flag, bytes_max=bytes_max))
        except BadBody as error:
            raise illegal(f"the batch cannot be decompressed: {error}") from error

    def _envelope(
        self, peer: Peer, command: TypedCommand[Send], now_ms: int, *, is_inner: bool
    ) -> PutMessage:
        """Make what all messages of a batch share; an inner batch has a unique key. Raises BrokerError."""
        request = command.request
        if request.topic.startswith(RETRY_TOPIC_PREFIX):
            raise illegal(f"batch request does not support retry group {request.topic}")
        config = self._topics.get(request.topic)
        if config is not None and config.attributes.get(MESSAGE_TYPE) == LITE:
            raise illegal(f"topic {request.topic} has lite topics, which take no batches")
        queue = self._queues.get((request.topic, request.queue_id))
        message = self._message(peer, command, queue, now_ms, in_batch=not is_inner)
        if queue is not None and self._topics.takes_batches(request.topic):
            self._note_admitted(queue, takes_batches=True)
        bytes_max = self._store.log.message_bytes_max
        # A batch cannot be delayed, timed or half.
        if message.topic != request.topic or len(command.body) > bytes_max:
            raise BrokerError.for_code(*refusal_reply(PutStatus.MESSAGE_ILLEGAL, "", bytes_max))
        return message

    def _answer_batches(
        self,
        peer: Peer,
        sent: Sequence[TypedCommand[Send]],
        batches: Sequence[ClientBatch],
        results: Sequence[AppendedBatch | list[Refused]],
    ) -> None:
        since, waits = peer.active_at, self._replication.delays_acks
        at_once: list[bytes] = []
        later: list[tuple[TypedCommand[Send], PutMessage, AppendedBatch]] = []
        for command, (envelope, _), result in zip(sent, batches, results, strict=True):
            self._stats.count_puts(result)
            if command.is_oneway:
                self._count(command.code, ResponseCode.SUCCESS, since, result=ONEWAY)
            elif not isinstance(result, AppendedBatch):
                (refused,) = result
                code, remark = refusal_reply(
                    refused.status, refused.reason, self._store.log.message_bytes_max
                )
                peer.write(self._refused(command.opaque, code, remark))
                self._count(command.code, code, since)
            elif waits and envelope.wait:
                later.append((command, envelope, result))
            else:
                at_once.append(self._batch_reply(command, envelope, result, ResponseCode.SUCCESS))
        if at_once:
            peer.write(*at_once)
            self._count_successes(sent[0].code, since, len(at_once))
        if later:
            self._answer_batches_when_stored(peer, later)

    def _answer_batches_when_stored(
        self, peer: Peer, later: list[tuple[TypedCommand[Send], PutMessage, AppendedBatch]]
    ) -> None:
        """Add one waiter for all batches of one read, as for single messages."""
        since = peer.active_at

        def answer(status: PutStatus) -> None:
            self._waiting -= len(later)
            code = WAITING_STATUSES[status]
            peer.write(*[self._batch_reply(*each, code) for each in later])
            self._count(later[0][0].code, code, since, len(later))

        self._waiting += len(later)
        self._replication.when_stored(later[-1][2].end, answer)

    def _batch_reply(
        self, command: TypedCommand[Send], envelope: PutMessage, run: AppendedBatch, code: ResponseCode
    ) -> bytes:
        return self._stored(
            command.opaque,
            joined_offset_ids(self._store_host, run.physical_offsets),
            envelope.queue_id,
            run.first_offset,
            transaction_id=find_unique_key(envelope.properties),
            is_inner_batch=isinstance(run, AppendedInnerBatch),
            code=code,
        )


def _requests(laid_out: LaidOut) -> list[tuple[RequestCode, int]]:
    """Return the requests of plain sends, by code."""
    batches = sum(isinstance(each, AppendedBatch) for each in laid_out.results)
    counts = {
        RequestCode.SEND_MESSAGE_V2: laid_out.frames - batches,
        RequestCode.SEND_BATCH_MESSAGE: batches,
    }
    return [(code, count) for code, count in counts.items() if count]


def _columns(body: bytes | memoryview) -> BatchColumns:
    """Split a batch into messages that are stored one by one. Raises BrokerError, ValueError."""
    batch = split_columns(body)
    if b"\0" in batch.text:
        raise illegal(ZERO_REMARK)
    return batch
