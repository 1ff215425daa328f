"""Pure. Send policy: queue choice, attempts, deadlines and retries, for asyncio and blocking producers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import Context
from typing import Any

from skylark.client.namespace import without_namespace
from skylark.client.producer.message_encoder import EncodedBatch, EncodedMessage, not_unicode, property_text
from skylark.client.producer.queue_selectors import LatencyTable, RoundRobin, Selector
from skylark.client.producer.send_hooks import Hooks, SendContext
from skylark.client.producer.send_receipt import SendReceipt, receipts_of
from skylark.client.retry import RetryStep, is_reachable, may_be_done, next_step, pause_s
from skylark.client.session.routes import TopicRoute
from skylark.errors import BadMessage, BrokerError, NoRoute, RocketMQError, SendFailed
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.command import Buffer, RemotingCommand
from skylark.protocol.frame_templates import SendTemplate
from skylark.settings.client import ProducerSettings

log = logging.getLogger(__name__)

VIP_PORT_DISTANCE = 2


class PendingSend:
    """One send on its way: what is sent, where it was tried, and until when. Times are monotonic seconds."""

    # As sends are made by the thousand, what most of them leave as it is lies in the class.
    fixed_queue: MessageQueue | None = None
    selector: Selector | None = None
    argument: Any = None
    brokers: tuple[str, ...] = ()
    maybe_stored = False
    stored: list[SendReceipt] | None = None
    """Receipts of an attempt that stored it, but not as safely as was asked for: better than no others."""
    queue: MessageQueue | None = None
    address = ""
    context: SendContext | None = None
    caller: Context | None = None
    """The context variables of who sends, for hooks, where attempts do not begin with that one's call."""
    added = ""
    """The properties that hooks have added, as text."""

    def __init__(
        self, prepared: EncodedMessage | EncodedBatch, *, started: float, deadline: float, attempts: int
    ) -> None:
        self.prepared = prepared
        self.topic = prepared.topic
        self.body = prepared.body
        self.properties = prepared.properties
        self.bytes = len(prepared.body)
        self.started = self.tried_at = started
        self.deadline = deadline
        self.attempts_left = attempts

    def add_properties(self, properties: Mapping[str, str], body_bytes_max: int) -> None:
        """Give all messages these properties, instead of those added before. Too much is left out."""
        added = property_text(list(properties.items()))
        if added == self.added:
            return
        try:
            body, text = self.prepared.with_added(added)
        except BadMessage:
            is_too_long = True
        else:
            is_too_long = self.prepared.is_batch and len(body) > body_bytes_max
        if is_too_long:
            log.warning("properties of hooks left out, as there is no room topic=%s", self.topic)
        else:
            self.added, self.body, self.properties = added, body, text

    @property
    def failed_broker(self) -> str | None:
        return self.brokers[-1] if self.brokers else None


class SendPolicy:
    """What one producer decides about its sends. Its threads share the tables; a step is for one of them."""

    def __init__(self, group: str, client_id: str, namespace: str, settings: ProducerSettings) -> None:
        self.hooks = Hooks()
        self.latencies = LatencyTable() if settings.avoid_slow_brokers else None
        self._group = group
        self._client_id = client_id
        self._namespace = namespace
        self._settings = settings
        self._templates: dict[MessageQueue, SendTemplate] = {}

    def choose(self, sending: PendingSend, route: TopicRoute, robin: RoundRobin, now: float) -> MessageQueue:
        """Return the queue of the next attempt. Raises NoRoute, BadMessage."""
        if sending.fixed_queue is not None:
            return sending.fixed_queue
        queues = route.write_queues
        if not queues:
            raise NoRoute(sending.topic, "none of its queues can be written to at present")
        if sending.selector is not None:
            return self._selected(sending, queues, sending.selector)
        if self.latencies is None and not sending.brokers:
            return robin.next(queues)
        return robin.avoiding(queues, sending.failed_broker, self.latencies, now)

    def _selected(
        self, sending: PendingSend, queues: tuple[MessageQueue, ...], selector: Selector
    ) -> MessageQueue:
        """Ask the caller's selector, which knows topics without their namespace."""
        message = sending.prepared.messages[0]
        shown = queues
        if self._namespace:
            shown = tuple(MessageQueue(message.topic, each.broker_name, each.queue_id) for each in queues)
        try:
            chosen = selector(shown, message, sending.argument)
        except Exception as error:
            raise BadMessage(message.topic, f"select message queue threw exception: {error!r}") from error
        if chosen is None:
            raise BadMessage(message.topic, "select message queue return null.")
        if not isinstance(chosen, MessageQueue) or chosen not in shown:
            raise BadMessage(message.topic, f"the selector chose {chosen!r}, which is no queue of the topic")
        return queues[shown.index(chosen)]

    def begin(self, sending: PendingSend, queue: MessageQueue, address: str, now: float) -> None:
        """Note an attempt, before anything is written. Raises what a hook's check raises."""
        sending.queue = queue
        sending.address = address
        sending.tried_at = now
        sending.attempts_left -= 1
        sending.brokers = (*sending.brokers, queue.broker_name)
        if self.hooks:
            context = SendContext(
                self._group,
                self._client_id,
                list(sending.prepared.messages),
                list(sending.prepared.unique_keys),
                queue,
                address,
                len(sending.brokers),
            )
            if sending.caller is None:
                self.hooks.before(context)
            else:
                sending.caller.run(self.hooks.before, context)
            sending.context = context
            sending.add_properties(context.properties, self._settings.message_bytes_max)

    def frame(
        self, sending: PendingSend, opaque: int, born_ms: int, *, is_oneway: bool = False
    ) -> tuple[bytes, Buffer]:
        """Return the frame of the attempt that was begun. Raises BadMessage for text that is no Unicode."""
        queue = sending.queue
        assert queue is not None
        template = self._templates.get(queue)
        if template is None:
            template = self._templates[queue] = SendTemplate(
                group=self._group,
                topic=sending.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                default_topic=AUTO_CREATE_TOPIC,
                default_queues=self._settings.new_topic_queues,
            )
        prepared = sending.prepared
        try:
            return template.frame(
                opaque,
                sending.body,
                properties=sending.properties,
                sys_flag=prepared.sys_flag,
                born_ms=born_ms,
                flag=prepared.flag,
                reconsume_times=prepared.reconsume_times,
                max_reconsume_times=prepared.max_reconsume_times,
                is_batch=prepared.is_batch,
                is_reply=prepared.is_reply,
                is_oneway=is_oneway,
            )
        except UnicodeEncodeError as error:
            raise not_unicode(sending.topic, error) from None

    def attempt_deadline(self, sending: PendingSend, now: float) -> float:
        """Return until when this attempt may take: all that is left, or less if there will be another."""
        limit_ms = self._settings.attempt_timeout_ms
        if limit_ms is None or sending.attempts_left <= 0:
            return sending.deadline
        return min(sending.deadline, now + limit_ms / 1000)

    def answered(self, sending: PendingSend, reply: RemotingCommand, now: float) -> list[SendReceipt]:
        """Return what the answer means. Raises BrokerError, RemoteProtocolError: then call `failed`."""
        queue = sending.queue
        assert queue is not None
        topic = without_namespace(self._namespace, sending.topic) if self._namespace else sending.topic
        receipts = receipts_of(reply, topic, queue.broker_name, sending.prepared.unique_keys)
        if self.latencies is not None:
            self.latencies.answered(queue.broker_name, (now - sending.tried_at) * 1000, now)
        if sending.context is not None:
            self._after(sending, now, receipts=receipts)
        return receipts

    def wants_better(self, sending: PendingSend, receipts: list[SendReceipt], now: float) -> bool:
        """Is a message that was stored, but not as safely as asked, worth another attempt?"""
        is_wanted = (
            self._settings.retry_when_not_stored
            and not receipts[0].is_ok
            and sending.attempts_left > 0
            and now < sending.deadline
        )
        if is_wanted:
            sending.stored = receipts
        return is_wanted

    def without_route(self, sending: PendingSend, now: float) -> SendFailed:
        """Return the error of a send whose time was over before a name server had answered."""
        return SendFailed(
            sending.prepared.messages[0].topic,
            sending.brokers,
            round((now - sending.started) * 1000),
            "no route in time",
            maybe_stored=sending.maybe_stored,
        )

    def failed(self, sending: PendingSend, error: RocketMQError, now: float) -> RetryStep:
        """Note a failed attempt and say what comes next. Raises SendFailed, with this cause, to give up."""
        sending.maybe_stored |= may_be_done(error)
        if self.latencies is not None and sending.queue is not None:
            self.latencies.failed(sending.queue.broker_name, now, is_reachable=is_reachable(error))
        if sending.context is not None:
            self._after(sending, now, error=error)
        step = next_step(error, attempts_left=sending.attempts_left, time_left_s=sending.deadline - now)
        if not step.give_up:
            return step
        raise SendFailed(
            sending.prepared.messages[0].topic,
            sending.brokers,
            round((now - sending.started) * 1000),
            str(error),
            maybe_stored=sending.maybe_stored,
            code=error.code if isinstance(error, BrokerError) else None,
            remark=error.remark if isinstance(error, BrokerError) else "",
        ) from error

    def pause_s(self, sending: PendingSend, route: TopicRoute | None, now: float) -> float:
        """Return how long to wait before the next attempt, at most what is left."""
        failed = sending.failed_broker
        has_other = route is not None and any(queue.broker_name != failed for queue in route.write_queues)
        wait_s = pause_s(len(sending.brokers), has_other_broker=has_other)
        return max(0.0, min(wait_s, sending.deadline - now))

    def _after(
        self,
        sending: PendingSend,
        now: float,
        *,
        receipts: Sequence[SendReceipt] = (),
        error: BaseException | None = None,
    ) -> None:
        context, sending.context = sending.context, None
        assert context is not None
        context.receipts = list(receipts)
        context.error = error
        context.elapsed_ms = (now - sending.tried_at) * 1000
        self.hooks.after(context)

    def ended(self, sending: PendingSend, error: BaseException, now: float) -> None:
        """Note that an attempt will have no outcome."""
        if sending.context is not None:
            self._after(sending, now, error=error)

    def sent_oneway(self, sending: PendingSend, now: float) -> None:
        """Note that a send that wants no answer has left."""
        if sending.context is not None:
            sending.context.is_oneway = True
            self._after(sending, now)


def vip_address(address: str) -> str:
    """Return the address of a broker's fast port."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - VIP_PORT_DISTANCE}"
