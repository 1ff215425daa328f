"""Pop consumption: 200050 to 200055, 200151. A pop that finds nothing may be held."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import structs

from skylark.broker.clients import ConsumerGroups
from skylark.broker.error_replies import (
    FAQ,
    group_not_exist,
    illegal,
    invalid_parameter,
    messages_are_copied,
    no_permission,
    system_error,
    topic_not_exist,
)
from skylark.broker.filters.compiled_subscription import (
    CompiledSubscription,
    parse_subscription,
    refuse_unfit,
)
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.handlers.served_requests import HandlerReply, serves, serves_command
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.pop.held_pops import ANY_QUEUE, HeldPops, HeldRequest, Holding
from skylark.broker.pop.lite_pops import LitePops
from skylark.broker.pop.ordered_batches import OrderedAck
from skylark.broker.pop.pop_reader import PopFound
from skylark.broker.pop.pops import Pops
from skylark.broker.record_loader import ReadCold
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import BrokerError, RemoteProtocolError
from skylark.model import names
from skylark.model.tag_expression import MATCH_ALL, TAG
from skylark.protocol.bodies import PERM_READ, TopicConfig
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.pop_handle import ORDERED_REVIVE_QUEUE, PopHandle, join_infos
from skylark.protocol.requests.pop import (
    POP_MESSAGES_MAX,
    AckMessage,
    BatchAck,
    BatchAckMessage,
    ChangeMessageInvisibleTime,
    InvisibleTimeReply,
    Notification,
    NotificationReply,
    PeekMessage,
    PollingInfo,
    PollingInfoReply,
    PopMessage,
    PopReply,
)
from skylark.remoting.latency import SUCCESS, WRITE_FAILED, RequestLatencies
from skylark.remoting.link import Answer, error_reply
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.message_store import MessageStore
from skylark.tasks import Tasks

LATE_MS = 500
"""A pop that arrives this long after its time is answered at once."""
FOUND = "FOUND"
NOT_FOUND = "NO_MESSAGE_IN_QUEUE"
SET_REMARK = "not set any response code"
"""What RocketMQ says with some successes."""
LaterAnswer = Callable[[], Answer]
_NOTHING = PopReply(pop_time=0, invisible_time=0, revive_queue_id=0, rest_num=0)
_ZEROS = _NOTHING.to_fields()


class PopHandlers:
    """Loop thread."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        host: str,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        consumers: ConsumerGroups,
        offsets: ConsumerOffsets,
        pops: Pops,
        lite: LitePops,
        latencies: RequestLatencies,
        tasks: Tasks,
        read_cold: ReadCold,
    ) -> None:
        self._live = live
        self._clock = clock
        self._host = host
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._pops = pops
        self._lite = lite
        self._latencies = latencies
        self._tasks = tasks
        self._read_cold = read_cold
        self.held: HeldPops[PopMessage] = HeldPops(live, self._resume_pop, newest_first=False)
        self.held_notifications: HeldPops[Notification] = HeldPops(
            live, self._resume_notification, newest_first=True
        )

    # --- Pops ---

    @serves_command(RequestCode.POP_MESSAGE, on_slave=messages_are_copied)
    def pop(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        request = PopMessage.from_command(command)
        now_ms = self._clock.now_ms()
        if not request.born_time:
            request = structs.replace(request, born_time=now_ms)
        try:
            topic = self._check_pop(peer, request, now_ms)
            subscription = self._subscription(request, now_ms)
        except BrokerError as error:
            return command.reply(error.code, error.remark, fields=_ZEROS)
        return self._pop(HeldRequest(peer, command, request, subscription, now_ms), topic)

    def _check_pop(self, peer: Peer, request: PopMessage, now_ms: int) -> TopicConfig:
        """Raise BrokerError for a pop that is not served."""
        settings = self._live.current
        if now_ms - request.born_time - request.poll_time > LATE_MS:
            raise BrokerError.for_code(
                ResponseCode.POLLING_TIMEOUT, f"the broker[{self._host}] pop message is timeout too much"
            )
        if not settings.permission & PERM_READ:
            raise no_permission(f"the broker[{self._host}] pop message is forbidden")
        if request.max_msg_nums > POP_MESSAGES_MAX:
            raise invalid_parameter(
                f"the broker[{self._host}] pop message's num is greater than {POP_MESSAGES_MAX}"
            )
        if not settings.timers.enabled:
            raise system_error(
                f"the broker[{self._host}] pop message is forbidden because timerWheelEnable is false"
            )
        topic = self._check_target(peer, request)
        self._check_invisible_time(request.invisible_time)
        return topic

    def _check_target(
        self, peer: Peer, request: PopMessage | Notification | PollingInfo | PeekMessage
    ) -> TopicConfig:
        """Raise BrokerError unless the group may read the queue."""
        topic = self._topics.get(request.topic)
        if topic is None:
            raise topic_not_exist(f"topic[{request.topic}] not exist, apply first please! {FAQ}")
        if not topic.perm & PERM_READ:
            raise no_permission(f"the topic[{request.topic}] peeking message is forbidden")
        if request.queue_id >= topic.read_queue_nums or request.queue_id < ANY_QUEUE:
            raise invalid_parameter(_bad_queue(request.queue_id, topic, peer))
        group = self._groups.find(request.consumer_group, now_ms=self._clock.now_ms())
        if group is None:
            raise group_not_exist(f"subscription group [{request.consumer_group}] does not exist, {FAQ}")
        if not group.consume_enable:
            raise no_permission(f"subscription group no permission, {request.consumer_group}")
        return topic

    def _check_invisible_time(self, invisible_time: int) -> None:
        """Refuse a time that the timer wheel cannot keep: its check point could never be stored."""
        longest_ms = self._live.current.timers.max_delay_s * 1000
        if not 0 <= invisible_time <= longest_ms:
            raise invalid_parameter(
                f"invisibleTime[{invisible_time}] is illegal, allowed is 0 to {longest_ms}"
            )

    def _subscription(self, request: PopMessage, now_ms: int) -> CompiledSubscription:
        """Return the subscription of a pop; one equal to the last is not parsed again."""
        group, topic = request.consumer_group, request.topic
        expression, kind = request.exp or MATCH_ALL, request.exp_type or TAG
        subscription = self._consumers.compensated(group, topic)
        if subscription is None or not subscription.says(expression, kind):
            subscription = parse_subscription(topic, expression, kind, now_ms=now_ms)
            refuse_unfit(subscription, with_sql=self._live.current.sql_filters)
        self._consumers.compensate(group, subscription, now=self._clock.monotonic())
        return subscription

    def _pop(
        self, held: HeldRequest[PopMessage], topic: TopicConfig, *, may_block: bool = False
    ) -> RemotingCommand | None:
        """Return the reply; None if it comes later."""
        request = held.request
        found = self._pops.reader.pop(request, topic, held.subscription, may_block=may_block)
        if found.records:
            if found.rest:
                self.held.wake(request.topic, request.consumer_group, request.queue_id)
            return self._found(held, found)
        if found.cold:
            self._tasks.spawn(self._pop_cold(held, topic, found.cold))
            return None
        holding = self.held.hold(held, self._clock.now_ms(), retry_ms=found.blocked_until)
        if holding is Holding.HELD:
            return None
        full = holding is Holding.FULL
        code = ResponseCode.POLLING_FULL if full else ResponseCode.POLLING_TIMEOUT
        return held.command.reply(code, NOT_FOUND, fields=self._fields(request, found))

    def _found(self, held: HeldRequest[PopMessage], found: PopFound) -> RemotingCommand:
        return held.command.reply(
            ResponseCode.SUCCESS,
            FOUND,
            fields=self._fields(held.request, found),
            body=b"".join(found.records),
        )

    def _fields(self, request: PopMessage, found: PopFound) -> dict[str, str]:
        fields = {
            "popTime": str(found.pop_time),
            "invisibleTime": str(request.invisible_time),
            "reviveQid": str(found.revive_queue_id),
            "restNum": str(found.rest),
            "startOffsetInfo": join_infos(found.starts),
            "msgOffsetInfo": join_infos(found.offsets),
        }
        if request.order:
            fields["orderCountInfo"] = join_infos(found.order_counts)
        return fields

    async def _pop_cold(
        self, held: HeldRequest[PopMessage], topic: TopicConfig, cold: list[tuple[ConsumeQueue, int]]
    ) -> None:
        """Bring the data into memory in a thread, and pop again."""
        wanted = held.request.max_msg_nums
        for queue, position in cold:
            await self._read_cold(partial(self._store.reader.get, queue, position, wanted))
        self._answer(held, self._try(held, lambda: self._pop(held, topic, may_block=True)))

    def _resume_pop(self, held: HeldRequest[PopMessage]) -> None:
        """Try a held pop again, with all its checks. Never raises."""

        def pop_again() -> RemotingCommand | None:
            topic = self._check_target(held.peer, held.request)
            return self._pop(held, topic)

        self._answer(held, self._try(held, pop_again))

    # --- Acknowledgements ---

    @serves_command(RequestCode.ACK_MESSAGE, on_slave=messages_are_copied)
    def acknowledge(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        request = AckMessage.from_command(command)
        handle = PopHandle.decode(request.extra_info)
        topic, group, queue_id = request.topic, request.consumer_group, request.queue_id
        queue_offset = request.queue_offset
        self._check_queue(peer, topic, queue_id)
        if request.lite_topic:
            self._lite.acknowledge(request, handle)
            return command.reply()
        low, high = self._range(topic, queue_id)
        if not low <= queue_offset <= high:
            raise BrokerError.for_code(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{queue_offset}, store:{low}~{high}",
            )
        if handle.is_ordered:
            self._acknowledge_ordered(topic, group, queue_id, queue_offset, handle.pop_time)
        else:
            self._pops.acknowledge(topic, group, queue_id, handle, [queue_offset])
        return command.reply()

    @serves(BatchAckMessage, on_slave=messages_are_copied)
    def acknowledge_batch(self, request: BatchAckMessage) -> HandlerReply | None:
        if not request.body.acks:
            return HandlerReply(ResponseCode.NO_MESSAGE)
        illegal_remark = None
        for ack in request.body.acks:
            try:
                self._acknowledge_entry(ack, request.body.broker_name or self._live.current.name)
            except BrokerError as error:
                if error.code != ResponseCode.MESSAGE_ILLEGAL:
                    raise
                illegal_remark = error.remark
        if illegal_remark is not None:
            return HandlerReply(ResponseCode.MESSAGE_ILLEGAL, illegal_remark)
        return None

    def _acknowledge_entry(self, ack: BatchAck, broker_name: str) -> None:
        try:
            topic = names.popped_topic(ack.topic, ack.group, ack.retry)
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from None
        if (topic, ack.queue_id) not in self._store.queues:
            return
        low, high = self._range(topic, ack.queue_id)
        offsets = [each for each in ack.offsets if low <= each <= high]
        if not offsets:
            return
        if ack.revive_queue_id == ORDERED_REVIVE_QUEUE:
            for each in offsets:
                self._acknowledge_ordered(topic, ack.group, ack.queue_id, each, ack.pop_time)
            return
        handle = PopHandle(
            ack.start_offset, ack.pop_time, ack.invisible_time, ack.revive_queue_id, ack.retry, broker_name
        )
        self._pops.acknowledge(topic, ack.group, ack.queue_id, handle, offsets)

    @serves_command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, on_slave=messages_are_copied)
    def change_invisible_time(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        request = ChangeMessageInvisibleTime.from_command(command)
        handle = PopHandle.decode(request.extra_info)
        topic, group, queue_id = request.topic, request.consumer_group, request.queue_id
        queue_offset = request.queue_offset
        self._check_queue(peer, topic, queue_id)
        self._check_invisible_time(request.invisible_time)
        if request.lite_topic:
            lite = self._lite.change_invisible_time(request, handle)
            return command.reply(ResponseCode.SUCCESS, SET_REMARK, fields=lite.to_fields())
        low, high = self._range(topic, queue_id)
        if not low <= queue_offset < high:
            return command.reply(ResponseCode.NO_MESSAGE)
        if handle.is_ordered:
            reply = self._change_ordered(request, handle)
        else:
            pop_time = self._pops.change_invisible_time(
                topic, group, queue_id, handle, queue_offset, request.invisible_time
            )
            reply = InvisibleTimeReply(pop_time, request.invisible_time, handle.revive_queue_id)
        return command.reply(ResponseCode.SUCCESS, SET_REMARK, fields=reply.to_fields())

    def _check_queue(self, peer: Peer, topic: str, queue_id: int) -> None:
        config = self._topics.get(topic)
        if config is None:
            raise topic_not_exist(f"topic[{topic}] not exist, apply first please! {FAQ}")
        if not 0 <= queue_id < config.read_queue_nums:
            raise illegal(_bad_queue(queue_id, config, peer))

    def _range(self, topic: str, queue_id: int) -> tuple[int, int]:
        queue = self._store.queues.get((topic, queue_id))
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    # --- In order ---

    def _acknowledge_ordered(
        self, topic: str, group: str, queue_id: int, queue_offset: int, pop_time: int
    ) -> None:
        """Raises BrokerError 13 for a message that is not in the batch of its queue."""
        key = (topic, group, queue_id)
        committed = self._offsets.query(*key) or 0
        if queue_offset < committed:
            return
        ordered = self._pops.ordered
        following = ordered.acknowledge(key, queue_offset, pop_time)
        if following is OrderedAck.OTHER_BATCH:
            return
        if isinstance(following, OrderedAck):
            raise illegal(
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{committed}, commit:{queue_offset}, "
                "next:-1"
            )
        now_ms = self._clock.now_ms()
        if not self._offsets.is_reset_pending(*key):
            self._offsets.commit(*key, following, now_ms=now_ms)
        if ordered.free_at(key, None, 0) <= now_ms:
            self._wake(key)

    def _change_ordered(self, request: ChangeMessageInvisibleTime, handle: PopHandle) -> InvisibleTimeReply:
        key = (request.topic, request.consumer_group, request.queue_id)
        if request.queue_offset < (self._offsets.query(*key) or 0):
            return InvisibleTimeReply(0, 0, 0)
        visible_ms = self._clock.now_ms() + request.invisible_time
        self._pops.ordered.change(key, request.queue_offset, handle.pop_time, visible_ms)
        self._wake(key)  # held pops learn the new time
        return InvisibleTimeReply(handle.pop_time, visible_ms - handle.pop_time, ORDERED_REVIVE_QUEUE)

    def _wake(self, key: tuple[str, str, int]) -> None:
        topic, group, queue_id = key
        self.held.wake(topic, group, ANY_QUEUE, queue_id)
        self.held_notifications.wake(topic, group, ANY_QUEUE, queue_id)

    # --- Waiting, looking ---

    @serves_command(RequestCode.NOTIFICATION, on_slave=messages_are_copied)
    def notify(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        """Answer when a pop could find something."""
        request = Notification.from_command(command)
        now_ms = self._clock.now_ms()
        if not request.born_time:
            request = structs.replace(request, born_time=now_ms)
        if not self._live.current.permission & PERM_READ:
            raise no_permission(f"the broker[{self._host}] notification is forbidden")
        topic = self._check_target(peer, request)
        return self._notification(HeldRequest(peer, command, request, None, now_ms), topic)

    def _notification(self, held: HeldRequest[Notification], topic: TopicConfig) -> RemotingCommand | None:
        request = held.request
        now_ms = self._clock.now_ms()
        next_ms = self._pops.reader.next_message_ms(request, topic)
        has_messages = next_ms is not None and next_ms <= now_ms
        full = False
        if not has_messages:
            holding = self.held_notifications.hold(held, now_ms, retry_ms=next_ms or 0)
            if holding is Holding.HELD:
                return None
            full = holding is Holding.FULL
        reply = NotificationReply(has_msg=has_messages, polling_full=full)
        return held.command.reply(ResponseCode.SUCCESS, SET_REMARK, fields=reply.to_fields())

    def _resume_notification(self, held: HeldRequest[Notification]) -> None:
        """Try a held notification again. Never raises."""

        def notify_again() -> RemotingCommand | None:
            return self._notification(held, self._check_target(held.peer, held.request))

        self._answer(held, self._try(held, notify_again))

    @serves_command(RequestCode.POLLING_INFO)
    def polling_info(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        request = PollingInfo.from_command(command)
        self._check_target(peer, request)
        waiting = self.held.waiting(request.topic, request.consumer_group, request.queue_id)
        reply = PollingInfoReply(polling_num=waiting)
        return command.reply(ResponseCode.SUCCESS, SET_REMARK, fields=reply.to_fields())

    @serves_command(RequestCode.PEEK_MESSAGE, on_slave=messages_are_copied)
    async def peek(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        """Read from the position of a group; nothing is taken."""
        request = PeekMessage.from_command(command)
        if request.max_msg_nums > POP_MESSAGES_MAX:
            raise invalid_parameter(
                f"the broker[{self._host}] peek message's num is greater than {POP_MESSAGES_MAX}"
            )
        topic = self._check_target(peer, request)
        found = self._pops.reader.peek(
            request.topic, request.consumer_group, request.queue_id, topic, request.max_msg_nums
        )
        if found.cold and not found.records:
            for queue, position in found.cold:
                await self._read_cold(partial(self._store.reader.get, queue, position, request.max_msg_nums))
            found = self._pops.reader.peek(
                request.topic, request.consumer_group, request.queue_id, topic, request.max_msg_nums
            )
        fields = structs.replace(_NOTHING, rest_num=found.rest).to_fields()
        if not found.records:
            return command.reply(ResponseCode.PULL_NOT_FOUND, NOT_FOUND, fields=fields)
        body = b"".join(found.records)
        return command.reply(ResponseCode.SUCCESS, FOUND, fields=fields, body=body)

    # --- Later answers ---

    def _try(self, held: HeldRequest[PopMessage] | HeldRequest[Notification], attempt: LaterAnswer) -> Answer:
        try:
            return attempt()
        except Exception as error:  # noqa: BLE001 (logged by error_reply)
            return error_reply(held.command, error)

    def _answer(self, held: HeldRequest[PopMessage] | HeldRequest[Notification], answer: Answer) -> None:
        """Send a reply that comes later than its request's turn; None: it is held again."""
        peer, command = held.peer, held.command
        if answer is None or command.is_oneway:
            return
        if not peer.is_closed:
            peer.reply(answer)
        result = WRITE_FAILED if peer.is_closed else SUCCESS
        self._latencies.count(command.code, answer.code, held.since, was_held=held.was_held, result=result)


def _bad_queue(queue_id: int, topic: TopicConfig, peer: Peer) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer.address}]"
    )
