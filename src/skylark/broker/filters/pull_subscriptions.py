"""Pure. Finds the subscription that serves a pull, or the reason to refuse it."""

from dataclasses import dataclass

from skylark.broker.clients import ACTIVELY, BROADCASTING, Channel, ConsumerGroups
from skylark.broker.error_replies import FAQ
from skylark.broker.filters.compiled_subscription import (
    CompiledSubscription,
    parse_subscription,
    refuse_unfit,
)
from skylark.broker.groups import SubscriptionGroups
from skylark.errors import BrokerError
from skylark.model import names
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PullMessage
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings

# Values of the answer's `forbiddenType`.
BROADCASTING_FORBIDDEN = 4
SUBSCRIPTION_FORBIDDEN = 5


@dataclass(frozen=True, slots=True)
class PullRefused:
    """An answer to a pull that is not served."""

    code: int
    remark: str
    forbidden_type: int | None = None


class PullSubscriptions:
    """Finds the subscription of a pull in its request or in the group's heartbeats."""

    def __init__(
        self, live: LiveSettings[BrokerSettings], consumers: ConsumerGroups, groups: SubscriptionGroups
    ) -> None:
        self._live = live
        self._consumers = consumers
        self._groups = groups

    def find(
        self,
        request: PullMessage,
        config: SubscriptionGroupConfig,
        channel: Channel,
        *,
        now: float,
        now_ms: int,
    ) -> CompiledSubscription | PullRefused:
        """Return the subscription that serves a pull of this group, or the refusal."""
        try:
            if request.sys_flag & PULL_SUBSCRIPTION:
                found: CompiledSubscription | PullRefused = self._sent_along(request, now, now_ms)
            else:
                found = self._online(request, config)
            if isinstance(found, CompiledSubscription):
                refuse_unfit(found, with_sql=self._live.current.sql_filters)
        except BrokerError as error:
            return PullRefused(error.code, error.remark)
        if isinstance(found, CompiledSubscription) and self._live.current.reject_pull_consumers:
            return self._rejected(request.consumer_group, channel) or found
        return found

    def _sent_along(self, request: PullMessage, now: float, now_ms: int) -> CompiledSubscription:
        """Parse the subscription in the request; one equal to the last pull's is not parsed again."""
        group, topic = request.consumer_group, request.topic
        subscription = self._consumers.compensated(group, topic)
        if subscription is None or not subscription.says(request.subscription, request.expression_type):
            subscription = parse_subscription(
                topic, request.subscription, request.expression_type, now_ms=now_ms
            )
        self._consumers.compensate(group, subscription, now=now)
        return subscription

    def _online(
        self, request: PullMessage, config: SubscriptionGroupConfig
    ) -> CompiledSubscription | PullRefused:
        name, topic = request.consumer_group, request.topic
        group = self._consumers.group(name)
        if group is None:
            remark = f"the consumer's group info not exist{FAQ}"
            return PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if not config.consume_broadcast_enable and group.message_model == BROADCASTING:
            remark = f"the consumer group[{name}] can not consume by broadcast way"
            return PullRefused(ResponseCode.NO_PERMISSION, remark, BROADCASTING_FORBIDDEN)
        if not self._groups.is_readable(name, topic):
            remark = f"the consumer group[{name}] is forbidden for topic[{topic}]"
            return PullRefused(ResponseCode.NO_PERMISSION, remark, SUBSCRIPTION_FORBIDDEN)
        subscription = group.subscriptions.get(topic)
        if subscription is None:
            remark = f"the consumer's subscription not exist{FAQ}"
            return PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if subscription.data.sub_version < request.sub_version:
            remark = "the consumer's subscription not latest"
            return PullRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
        return subscription

    def _rejected(self, name: str, channel: Channel) -> PullRefused | None:
        group = self._consumers.group(name)
        if group is not None and (group.consume_type != ACTIVELY or self._consumers.is_member(name, channel)):
            return None
        if names.is_system_group(name):
            return None
        remark = f"the consumer's group info not exist, or the pull consumer is rejected by server.{FAQ}"
        return PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
