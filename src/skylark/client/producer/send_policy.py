"""Pure.

Send policy: queue choice, attempts, deadlines and retries, shared by asyncio and blocking producers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import Context

from skylark.client.namespace import without_namespace
from skylark.client.producer.message_encoder import EncodedBatch, EncodedMessage, not_unicode, property_text
from skylark.client.producer.queue_selectors import (
    ROUND_ROBIN,
    LatencyTable,
    RoundRobin,
    Selector,
    SendTarget,
)
from skylark.client.producer.send_hooks import Hooks, SendContext
from skylark.client.producer.send_receipt import SendReceipt, receipts_of
from skylark.client.retry import (
    MASTER_PAUSE_S,
    MASTER_PAUSE_S_MAX,
    RetryStep,
    is_reachable,
    may_be_done,
    next_step,
    pause_s,
)
from skylark.client.session.routes import TopicRoute
from skylark.errors import BadMessage, BrokerError, BrokerUnknown, NotWritable, RocketMQError, SendFailed
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.command import Buffer, RemotingCommand
from skylark.protocol.frame_templates import SendTemplate
from skylark.protocol.signature import Signer
from skylark.settings.client import ProducerSettings
from skylark.settings.fields import FAST_PORT_DISTANCE

log = logging.getLogger(__name__)


class PendingSend:
    """One send: what is sent, which brokers were tried, and the deadline. Times are monotonic seconds."""

    # Class attributes, because sends are created by the thousand and most leave these unchanged.
    brokers: tuple[str, ...] = ()
    maybe_stored = False
    stored: list[SendReceipt] | None = None
    """Receipts of an attempt that stored it less safely than requested: returned without better ones."""
    queue: MessageQueue | None = None
    address = ""
    context: SendContext | None = None
    caller: Context | None = None
    """The caller's context variables, for hooks of attempts that start outside the caller's call."""
    added = ""
    """Encoded properties that hooks have added."""

    def __init__(
        self,
        encoded: EncodedMessage | EncodedBatch,
        settings: ProducerSettings,
        now: float,
        target: SendTarget = ROUND_ROBIN,
        timeout_ms: float | None = None,
    ) -> None:
        """A chosen queue gets one attempt, round robin `settings.retries` more."""
        self.encoded = encoded
        self.target = target
        self.topic = encoded.topic
        self.body = encoded.body
        self.properties = encoded.properties
        self.bytes = len(encoded.body)
        self.started = self.tried_at = now
        self.deadline = now + (settings.send_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        is_pinned = target.queue is not None or target.selector is not None
        self.attempts_left = 1 if is_pinned else 1 + settings.retries

    def add_properties(self, properties: Mapping[str, str], body_bytes_max: int) -> None:
        """Add properties to all messages, replacing those added before.

        Dropped, with a warning, if too long.
        """
        added = property_text(list(properties.items()))
        if added == self.added:
            return
        try:
            body, text = self.encoded.with_added(added)
        except BadMessage:
            is_too_long = True
        else:
            is_too_long = self.encoded.is_batch and len(body) > body_bytes_max
        if is_too_long:
            log.warning("dropped properties of hooks, message too large topic=%s", self.topic)
        else:
            self.added, self.body, self.properties = added, body, text

    @property
    def failed_broker(self) -> str | None:
        return self.brokers[-1] if self.brokers else None


class SendPolicy:
    """Decisions about the sends of one producer.

    Its threads share the tables; one send belongs to one thread.
    """

    def __init__(
        self,
        group: str,
        client_id: str,
        namespace: str,
        settings: ProducerSettings,
        signer: Signer | None = None,
    ) -> None:
        self._signer = signer
        self.hooks = Hooks()
        self.latencies = LatencyTable() if settings.avoid_slow_brokers else None
        self._group = group
        self._client_id = client_id
        self._namespace = namespace
        self._settings = settings
        self._templates: dict[MessageQueue, SendTemplate] = {}

    def choose(self, send: PendingSend, route: TopicRoute, robin: RoundRobin, now: float) -> MessageQueue:
        """Return the queue of the next attempt.

        Raises NoRoute, BadMessage, and BrokerUnknown while the only broker has no master.
        """
        fixed, selector, _ = send.target
        if fixed is not None:
            return fixed
        queues = route.write_queues
        if not queues:
            if route.masterless is not None:
                raise BrokerUnknown(route.masterless)
            raise NotWritable(send.topic)
        if selector is not None:
            return self._selected(send, queues, selector)
        if self.latencies is None and not send.brokers:
            return robin.next(queues)
        return robin.avoiding(queues, send.failed_broker, self.latencies, now)

    def _selected(
        self, send: PendingSend, queues: tuple[MessageQueue, ...], selector: Selector
    ) -> MessageQueue:
        """Call the selector, with topics without their namespace."""
        message = send.encoded.messages[0]
        shown = queues
        if self._namespace:
            shown = tuple(MessageQueue(message.topic, each.broker_name, each.queue_id) for each in queues)
        try:
            chosen = selector(shown, message, send.target.argument)
        except Exception as error:
            raise BadMessage(message.topic, f"select message queue threw exception: {error!r}") from error
        if chosen is None:
            raise BadMessage(message.topic, "select message queue return null.")
        if not isinstance(chosen, MessageQueue) or chosen not in shown:
            raise BadMessage(
                message.topic, f"the selector returned {chosen!r}, which is not a writable queue of the topic"
            )
        return queues[shown.index(chosen)]

    def begin(self, send: PendingSend, queue: MessageQueue, address: str, now: float) -> None:
        """Record a new attempt before anything is written. Raises the errors of hook checks."""
        send.queue = queue
        send.address = address
        send.tried_at = now
        send.attempts_left -= 1
        send.brokers = (*send.brokers, queue.broker_name)
        if self.hooks:
            context = SendContext(
                self._group,
                self._client_id,
                list(send.encoded.messages),
                list(send.encoded.unique_keys),
                queue,
                address,
                len(send.brokers),
            )
            if send.caller is None:
                self.hooks.before(context)
            else:
                send.caller.run(self.hooks.before, context)
            send.context = context
            send.add_properties(context.properties, self._settings.message_bytes_max)

    def frame(
        self, send: PendingSend, opaque: int, born_ms: int, *, is_oneway: bool = False
    ) -> tuple[bytes, Buffer]:
        """Return the frame of the current attempt. Raises BadMessage for text that cannot be encoded."""
        queue = send.queue
        assert queue is not None
        template = self._templates.get(queue)
        if template is None:
            template = self._templates[queue] = SendTemplate(
                group=self._group,
                topic=send.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                default_topic=AUTO_CREATE_TOPIC,
                default_queues=self._settings.new_topic_queues,
                signer=self._signer,
            )
        encoded = send.encoded
        try:
            return template.frame(
                opaque,
                send.body,
                properties=send.properties,
                sys_flag=encoded.sys_flag,
                born_ms=born_ms,
                flag=encoded.flag,
                reconsume_times=encoded.reconsume_times,
                max_reconsume_times=encoded.max_reconsume_times,
                is_batch=encoded.is_batch,
                is_reply=encoded.is_reply,
                is_oneway=is_oneway,
            )
        except UnicodeEncodeError as error:
            raise not_unicode(send.topic, error) from None

    def attempt_deadline(self, send: PendingSend, now: float) -> float:
        """Return the deadline of this attempt: the send's, or earlier if another attempt may follow."""
        limit_ms = self._settings.attempt_timeout_ms
        if limit_ms is None or send.attempts_left <= 0:
            return send.deadline
        return min(send.deadline, now + limit_ms / 1000)

    def answered(self, send: PendingSend, reply: RemotingCommand, now: float) -> list[SendReceipt]:
        """Return the receipts in a reply. Raises BrokerError, RemoteProtocolError: then call `failed`."""
        queue = send.queue
        assert queue is not None
        receipts = receipts_of(reply, self._topic(send), queue.broker_name, send.encoded.unique_keys)
        if self.latencies is not None:
            self.latencies.answered(queue.broker_name, (now - send.tried_at) * 1000, now)
        if send.context is not None:
            self._after(send, now, receipts=receipts)
        return receipts

    def _topic(self, send: PendingSend) -> str:
        """The topic as the application named it."""
        return without_namespace(self._namespace, send.topic) if self._namespace else send.topic

    def wants_better(self, send: PendingSend, receipts: list[SendReceipt], now: float) -> bool:
        """Return whether to retry a message that was stored less safely than requested."""
        is_wanted = (
            self._settings.retry_when_not_stored
            and not receipts[0].is_ok
            and send.attempts_left > 0
            and now < send.deadline
        )
        if is_wanted:
            send.stored = receipts
        return is_wanted

    def without_route(self, send: PendingSend, now: float) -> SendFailed:
        """Return the error of a send that got no route before its deadline."""
        return SendFailed(
            self._topic(send),
            send.brokers,
            round((now - send.started) * 1000),
            "no route in time",
            maybe_stored=send.maybe_stored,
        )

    def master_pause_s(self, send: PendingSend, tries: int, now: float) -> float:
        """Return when to ask again for a master that is being elected, at most until the deadline."""
        return max(0.0, min(MASTER_PAUSE_S * (1 << tries), MASTER_PAUSE_S_MAX, send.deadline - now))

    def failed(self, send: PendingSend, error: RocketMQError, now: float) -> RetryStep:
        """Record a failed attempt and return how to retry. Raises SendFailed, with this cause, to give up."""
        send.maybe_stored |= may_be_done(error)
        if self.latencies is not None and send.queue is not None:
            self.latencies.failed(send.queue.broker_name, now, is_reachable=is_reachable(error))
        if send.context is not None:
            self._after(send, now, error=error)
        step = next_step(error, attempts_left=send.attempts_left, time_left_s=send.deadline - now)
        if not step.give_up:
            return step
        raise SendFailed(
            self._topic(send),
            send.brokers,
            round((now - send.started) * 1000),
            str(error),
            maybe_stored=send.maybe_stored,
            code=error.code if isinstance(error, BrokerError) else None,
            remark=error.remark if isinstance(error, BrokerError) else "",
        ) from error

    def pause_s(self, send: PendingSend, route: TopicRoute | None, now: float) -> float:
        """Return the delay before the next attempt, at most until the deadline."""
        failed = send.failed_broker
        has_other = route is not None and any(queue.broker_name != failed for queue in route.write_queues)
        wait_s = pause_s(len(send.brokers), has_other_broker=has_other)
        return max(0.0, min(wait_s, send.deadline - now))

    def _after(
        self,
        send: PendingSend,
        now: float,
        *,
        receipts: Sequence[SendReceipt] = (),
        error: BaseException | None = None,
    ) -> None:
        context, send.context = send.context, None
        assert context is not None
        context.receipts = list(receipts)
        context.error = error
        context.elapsed_ms = (now - send.tried_at) * 1000
        self.hooks.after(context)

    def ended(self, send: PendingSend, error: BaseException, now: float) -> None:
        """Record that the attempt ended without a reply."""
        if send.context is not None:
            self._after(send, now, error=error)

    def sent_oneway(self, send: PendingSend, now: float) -> None:
        """Record that a one-way send was written."""
        if send.context is not None:
            send.context.is_oneway = True
            self._after(send, now)


def vip_address(address: str) -> str:
    """Return the address of a broker's VIP channel (its fast port)."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - FAST_PORT_DISTANCE}"
