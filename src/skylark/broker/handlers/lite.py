"""Lite topics: 200070, 200071, 200074 to 200079. A pop that finds nothing may be held."""

from __future__ import annotations

import heapq
from functools import partial

from msgspec import structs

from skylark.broker.error_replies import (
    FAQ,
    group_not_exist,
    illegal_operation,
    invalid_parameter,
    messages_are_copied,
    no_permission,
    topic_not_exist,
)
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.handlers.pop import FOUND, LATE_MS, NOT_FOUND
from skylark.broker.handlers.served_requests import serves, serves_command
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.pop.held_pops import ANY_QUEUE, HeldPops, HeldRequest, Holding
from skylark.broker.pop.lite_pops import LitePops
from skylark.broker.pop.lite_subscriptions import LiteClient
from skylark.broker.pop.pop_reader import PopFound
from skylark.broker.record_loader import ReadCold
from skylark.broker.topics import MESSAGE_TYPE, TopicTable
from skylark.clock import Clock
from skylark.errors import BrokerError
from skylark.model.lite_topic import (
    BIND_TOPIC,
    EXPIRATION,
    LIGHT_QUEUE_ID,
    LITE,
    light_queue_of,
    parse_light_queue,
)
from skylark.protocol.bodies import PERM_READ, GroupOffset, SubscriptionGroupConfig, TopicConfig, TopicOffset
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.lite import (
    BrokerLiteInfo,
    GetBrokerLiteInfo,
    GetLiteClientInfo,
    GetLiteGroupInfo,
    GetLiteTopicInfo,
    GetParentTopicInfo,
    LiteClientInfo,
    LiteGroupInfo,
    LiteLag,
    LiteSubscriptionCtl,
    LiteTopicInfo,
    ParentTopicInfo,
    PopLiteMessage,
    PopLiteReply,
    TriggerLiteDispatch,
)
from skylark.protocol.requests.pop import POP_MESSAGES_MAX
from skylark.remoting.latency import SUCCESS, WRITE_FAILED, RequestLatencies
from skylark.remoting.link import Answer, error_reply
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.message_store import MessageStore
from skylark.tasks import Tasks

LITE_TOPICS_MAX = 10_000
"""Lite topics of one client that a reply names."""
_ZEROS = PopLiteReply(0, 0, 0).to_fields()


class LiteHandlers:
    """Loop thread."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        host: str,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        pops: LitePops,
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
        self._offsets = offsets
        self._pops = pops
        self._latencies = latencies
        self._tasks = tasks
        self._read_cold = read_cold
        self.held: HeldPops[PopLiteMessage] = HeldPops(live, self._resume, newest_first=False)
        pops.subscriptions.wake = self._wake

    # --- Pops ---

    @serves_command(RequestCode.POP_LITE_MESSAGE, on_slave=messages_are_copied)
    def pop(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        request = PopLiteMessage.from_command(command)
        now_ms = self._clock.now_ms()
        if not request.born_time:
            request = structs.replace(request, born_time=now_ms)
        try:
            self._check(request, now_ms)
        except BrokerError as error:
            return command.reply(error.code, error.remark, fields=_ZEROS)
        pair = (request.client_id, request.consumer_group)
        return self._pop(HeldRequest(peer, command, request, None, now_ms, pair))

    def _check(self, request: PopLiteMessage, now_ms: int) -> None:
        """Raise BrokerError for a pop that is not served."""
        if now_ms - request.born_time - request.poll_time > LATE_MS:
            raise BrokerError.for_code(
                ResponseCode.POLLING_TIMEOUT, f"the broker[{self._host}] pop message is timeout too much"
            )
        if not self._live.current.permission & PERM_READ:
            raise no_permission(f"the broker[{self._host}] pop message is forbidden")
        if request.max_msg_nums > POP_MESSAGES_MAX:
            raise invalid_parameter(
                f"the broker[{self._host}] pop message's num is greater than {POP_MESSAGES_MAX}"
            )
        topic = self._topics.get(request.topic)
        if topic is None:
            raise topic_not_exist(f"topic [{request.topic}] not exist, apply first please! {FAQ}")
        if not topic.perm & PERM_READ:
            raise no_permission(f"the topic [{request.topic}] peeking message is forbidden")
        if topic.attributes.get(MESSAGE_TYPE) != LITE:
            raise invalid_parameter(f"the topic [{request.topic}] message type not match")
        group = self._groups.get(request.consumer_group)
        if group is None:
            raise group_not_exist(f"subscription group [{request.consumer_group}] not exist, {FAQ}")
        if not group.consume_enable:
            raise no_permission(f"subscription group no permission, {request.consumer_group}")
        if group.attributes.get(BIND_TOPIC) != request.topic:
            raise invalid_parameter(f"subscription bind topic not match, {request.consumer_group}")

    def _pop(self, held: HeldRequest[PopLiteMessage], *, may_block: bool = False) -> RemotingCommand | None:
        """Return the reply; None if it comes later."""
        request = held.request
        found = self._pops.pop(request, may_block=may_block)
        if found.records:
            if found.is_full:
                self.held.wake(*held.pair, ANY_QUEUE)
            body = b"".join(found.records)
            return held.command.reply(
                ResponseCode.SUCCESS, FOUND, fields=self._fields(request, found), body=body
            )
        if found.cold:
            self._tasks.spawn(self._pop_cold(held, found))
            return None
        holding = self.held.hold(held, self._clock.now_ms(), retry_ms=found.blocked_until)
        if holding is Holding.HELD:
            return None
        full = holding is Holding.FULL
        code = ResponseCode.POLLING_FULL if full else ResponseCode.POLLING_TIMEOUT
        return held.command.reply(code, NOT_FOUND, fields=self._fields(request, found))

    @staticmethod
    def _fields(request: PopLiteMessage, found: PopFound) -> dict[str, str]:
        counts = ";".join(found.order_counts)
        return PopLiteReply(found.pop_time, request.invisible_time, found.revive_queue_id, counts).to_fields()

    async def _pop_cold(self, held: HeldRequest[PopLiteMessage], found: PopFound) -> None:
        """Bring the data into memory in a thread, and pop again."""
        for queue, position in found.cold:
            wanted = held.request.max_msg_nums
            await self._read_cold(partial(self._store.reader.get, queue, position, wanted))
        self._answer(held, may_block=True)

    def _resume(self, held: HeldRequest[PopLiteMessage]) -> None:
        """Try a held pop again. Never raises."""
        self._answer(held)

    def _answer(self, held: HeldRequest[PopLiteMessage], *, may_block: bool = False) -> None:
        peer, command = held.peer, held.command
        answer: Answer
        try:
            answer = self._pop(held, may_block=may_block)
        except Exception as error:  # noqa: BLE001 (logged by error_reply)
            answer = error_reply(command, error)
        if answer is None or command.is_oneway:
            return
        if not peer.is_closed:
            peer.reply(answer)
        result = WRITE_FAILED if peer.is_closed else SUCCESS
        self._latencies.count(command.code, answer.code, held.since, was_held=held.was_held, result=result)

    def _wake(self, client: LiteClient) -> bool:
        is_held = self.held.waiting(client.client_id, client.group, ANY_QUEUE) > 0
        self.held.wake(client.client_id, client.group, ANY_QUEUE)
        return is_held

    # --- Subscriptions ---

    @serves_command(RequestCode.LITE_SUBSCRIPTION_CTL, on_slave=messages_are_copied)
    def change_subscriptions(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        if not command.body:
            raise illegal_operation("Request body is null.")
        changes = LiteSubscriptionCtl.from_command(command).body.subscription_set
        if not changes:
            raise illegal_operation("LiteSubscriptionCtlRequestBody is empty.")
        for change in changes:
            self._pops.subscriptions.change(change, peer)
        return command.reply()

    @serves(TriggerLiteDispatch)
    def look_again(self, request: TriggerLiteDispatch) -> None:
        self._lite_group(request.group)
        for client in list(self._pops.subscriptions.clients.values()):
            if client.group == request.group and request.client_id in (None, "", client.client_id):
                self._pops.subscriptions.look_again(client)

    # --- Questions of administrators ---

    @serves(GetBrokerLiteInfo)
    def broker_info(self, _: GetBrokerLiteInfo) -> BrokerLiteInfo:
        subscriptions = self._pops.subscriptions
        return BrokerLiteInfo(
            max_lmq_num=self._live.current.lite.topics_max,
            current_lmq_num=len(self._store.queues.light_queues()),
            lite_subscription_count=subscriptions.count,
            order_info_count=len(self._pops.ordered),
            cq_table_size=len(self._store.topics()),
            offset_table_size=len(self._offsets),
            event_map_size=len(subscriptions.clients),
            topic_meta=self._pops.expirations(),
            group_meta=subscriptions.parents(),
        )

    @serves(GetParentTopicInfo)
    def parent_info(self, request: GetParentTopicInfo) -> ParentTopicInfo:
        config = self._parent(request.topic)
        return ParentTopicInfo(
            topic=request.topic,
            ttl=int(config.attributes.get(EXPIRATION, -1)),
            groups=self._pops.subscriptions.parents().get(request.topic),
            lmq_num=len(self._store.queues.light_queues()),
            lite_topic_count=len(self._store.queues.light_queues(request.topic)),
        )

    @serves(GetLiteTopicInfo)
    def topic_info(self, request: GetLiteTopicInfo) -> LiteTopicInfo:
        self._parent(request.parent_topic)
        name = light_queue_of(request.parent_topic, request.lite_topic)
        highest = self._store.max_offset(name, LIGHT_QUEUE_ID)
        stored_ms = self._store.store_timestamp(name, LIGHT_QUEUE_ID, highest - 1)
        return LiteTopicInfo(
            parent_topic=request.parent_topic,
            lite_topic=request.lite_topic,
            subscriber=self._pops.subscriptions.subscriber_infos(name),
            topic_offset=TopicOffset(self._store.min_offset(name, LIGHT_QUEUE_ID), highest, stored_ms or 0),
            sharding_to_broker=highest > 0,
        )

    @serves(GetLiteClientInfo)
    def client_info(self, request: GetLiteClientInfo) -> LiteClientInfo:
        self._parent(request.parent_topic)
        config = self._group(request.group)
        if config.attributes.get(BIND_TOPIC) != request.parent_topic:
            raise invalid_parameter(f"Subscription [{request.group}]-[{request.parent_topic}] not match.")
        info = LiteClientInfo(request.parent_topic, request.group, request.client_id)
        client = self._pops.subscriptions.clients.get(request.client_id)
        if client is not None:
            most = min(request.max_count, LITE_TOPICS_MAX)
            info.lite_topic_count = len(client.queues)
            info.lite_topic_set = heapq.nsmallest(most, client.queues)
            info.last_access_time = client.accessed_ms
        return info

    @serves(GetLiteGroupInfo)
    async def group_info(self, request: GetLiteGroupInfo) -> LiteGroupInfo:
        parent = self._lite_group(request.group)
        info = LiteGroupInfo(request.group, parent, request.lite_topic)
        if request.lite_topic:
            self._tell_lag(info, light_queue_of(parent, request.lite_topic))
            return info
        lags = [
            (lag, name)
            for name in self._store.queues.light_queues(parent)
            if self._offsets.query(name, request.group, LIGHT_QUEUE_ID) is not None
            and (lag := self._pops.lag(name, request.group)) > 0
        ]
        ages = await self._read_cold(
            lambda: [(self._unconsumed_ms(name, request.group), lag, name) for lag, name in lags]
        )
        info.total_lag_count = sum(lag for lag, _ in lags)
        info.earliest_unconsumed_timestamp = min((age for age, _, _ in ages), default=-1)
        largest = heapq.nlargest(request.top_k, ages, key=lambda each: each[1])
        info.lag_count_top_k = [_lag(name, lag, age) for age, lag, name in largest]
        info.lag_timestamp_top_k = [
            _lag(name, lag, age) for age, lag, name in heapq.nsmallest(request.top_k, ages)
        ]
        return info

    def _tell_lag(self, info: LiteGroupInfo, name: str) -> None:
        highest = self._store.max_offset(name, LIGHT_QUEUE_ID)
        committed = self._offsets.query(name, info.group, LIGHT_QUEUE_ID)
        if highest <= 0:
            info.total_lag_count = -1
        elif committed is not None:
            info.total_lag_count = highest - committed
            info.earliest_unconsumed_timestamp = self._unconsumed_ms(name, info.group)
            last_ms = self._store.store_timestamp(name, LIGHT_QUEUE_ID, committed - 1)
            info.lite_topic_offset_wrapper = GroupOffset(highest, committed, 0, last_ms or 0)

    def _unconsumed_ms(self, name: str, group: str) -> int:
        """Return when the first message was stored that a group has not consumed; -1 without one."""
        committed = self._offsets.query(name, group, LIGHT_QUEUE_ID) or 0
        stored_ms = self._store.store_timestamp(name, LIGHT_QUEUE_ID, committed)
        return -1 if stored_ms is None else stored_ms

    def _parent(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise topic_not_exist(f"Topic [{topic}] not exist.")
        if config.attributes.get(MESSAGE_TYPE) != LITE:
            raise invalid_parameter(f"Topic [{topic}] type not match.")
        return config

    def _group(self, group: str) -> SubscriptionGroupConfig:
        config = self._groups.get(group)
        if config is None:
            raise group_not_exist(f"Group [{group}] not exist.")
        return config

    def _lite_group(self, group: str) -> str:
        """Return the parent topic of a group. Raises BrokerError if it has none."""
        parent = self._group(group).attributes.get(BIND_TOPIC)
        if not parent:
            raise invalid_parameter(f"Group [{group}] is not a LITE group.")
        return parent


def _lag(name: str, lag: int, stored_ms: int) -> LiteLag:
    place = parse_light_queue(name)
    return LiteLag(name if place is None else place[1], lag, stored_ms)
