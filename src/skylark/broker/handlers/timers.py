"""Timed messages: recall (370), counts of what waits (61), checkpoint of the wheel (60), engine (5001)."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.broker.delayed.timed_messages import RecallHandle, recall_message
from skylark.broker.delayed.timers import Timers
from skylark.broker.error_replies import (
    FAQ,
    SLAVE_REMARK,
    illegal_operation,
    invalid_parameter,
    no_permission,
    slave_not_available,
    system_error,
    topic_not_exist,
)
from skylark.broker.handlers.served_requests import HandlerReply, serves, serves_code, serves_command
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.replication.role import Role
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import BrokerError
from skylark.protocol.bodies import PERM_WRITE, TimerMetrics
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.admin import SwitchTimerEngine
from skylark.protocol.requests.send import RecallMessage, RecallReply
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import Refused
from skylark.store.message_store import MessageStore

HANDLE_REMARK = "recall handle is invalid"
WHEEL, ROCKSDB = "F", "R"


@dataclass(frozen=True, slots=True, eq=False)
class TimerHandlers:
    live: LiveSettings[BrokerSettings]
    clock: Clock
    role: Role
    store: MessageStore
    topics: TopicTable
    timers: Timers
    stats: BrokerStats

    @serves_command(RequestCode.RECALL_MESSAGE)
    def recall(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        """Recall a message that is not due yet: another one for the same time cancels it."""
        request = RecallMessage.from_command(command)
        region = self.live.current.region
        try:
            handle = self._check(request)
            self._put(peer, handle, request.producer_group or "")
        except BrokerError as error:
            return command.reply(error.code, error.remark, fields={"MSG_REGION": region})
        reply = RecallReply(msg_id=handle.unique_key, region=region)
        return command.reply(fields=reply.to_fields())

    def _check(self, request: RecallMessage) -> RecallHandle:
        """Return the handle of the message to recall. Raises BrokerError."""
        settings = self.live.current
        if not settings.timers.recall or not settings.timers.enabled:
            raise no_permission("recall failed, operation is forbidden")
        self.role.check_master(lambda _: slave_not_available(SLAVE_REMARK))
        now_ms = self.clock.now_ms()
        if now_ms < settings.accept_sends_from_ms or not settings.permission & PERM_WRITE:
            raise BrokerError.for_code(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
            )
        if self.topics.get(request.topic) is None:
            raise topic_not_exist(f"recall failed, topic[{request.topic}] not exist{FAQ}")
        try:
            handle = RecallHandle.decode(request.recall_handle)
        except ValueError:
            raise illegal_operation(HANDLE_REMARK) from None
        if handle.topic != request.topic:
            raise illegal_operation("recall failed, topic not match")
        if handle.broker != settings.name:
            raise illegal_operation("recall failed, broker service not available")
        if not 0 < handle.deliver_ms - now_ms < settings.timers.max_delay_s * 1000:
            raise illegal_operation("recall failed, timestamp invalid")
        return handle

    def _put(self, peer: Peer, handle: RecallHandle, group: str) -> None:
        message, properties = recall_message(handle, group, peer.packed_host, self.clock.now_ms())
        self.timers.admit(message, properties)
        results = self.store.append([message])
        self.stats.count_puts(results)
        if isinstance(result := results[0], Refused):
            raise system_error(f"recall failed, {result.status.name}: {result.reason}")

    @serves_code(RequestCode.GET_TIMER_CHECK_POINT)
    def get_check_point(self) -> bytes:
        if not self.live.current.timers.enabled:
            raise system_error("The checkpoint is null")
        return self.timers.check.encode()

    @serves_code(RequestCode.GET_TIMER_METRICS)
    def get_metrics(self) -> TimerMetrics:
        if not self.live.current.timers.enabled:
            raise system_error("The timer message store is null")
        return self.timers.metrics()

    @serves(SwitchTimerEngine)
    def switch_engine(self, request: SwitchTimerEngine) -> HandlerReply:
        """The wheel is the only engine: choosing it changes nothing."""
        if not self.live.current.timers.enabled:
            raise system_error("broker timerWheelEnable is false")
        if request.engine == ROCKSDB:
            raise system_error("timers are kept in the timer wheel only; RocksDB is not supported")
        if request.engine != WHEEL:
            raise invalid_parameter("param error")
        return HandlerReply(remark="switch timer engine success")
