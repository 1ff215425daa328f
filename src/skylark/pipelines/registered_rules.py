"""The topics that a lake or an archive chooses, registered with every broker: retention keeps them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from skylark.errors import BrokerError
from skylark.model.archived_topics import LAKE_RULES, ArchivedTopics
from skylark.pipelines.cluster_client import ClusterClient
from skylark.protocol.bodies import SubscriptionGroupConfig

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 5.0
"""Brokers that are new, or have lost the rules, get them this soon."""


class RegisteredRules:
    """Not thread-safe, like its connection to the brokers."""

    def __init__(
        self,
        cluster: ClusterClient,
        group: str,
        archived: ArchivedTopics,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises SettingsError for rules that brokers would refuse."""
        self._cluster = cluster
        self._group = group
        self._rules = archived.encode()
        self._monotonic = monotonic
        self._looked_at: float | None = None
        self._known: set[str] = set()

    def keep(self) -> None:
        """Give the rules to each broker that lacks them. Call it often, and before the first offset.

        Other rules are replaced once, so that two archives of one group do not take turns. A broker that
        refuses the rules keeps the topics of which the group has offsets. Raises RocketMQError if a server
        does not answer.
        """
        now = self._monotonic()
        if self._looked_at is not None and now - self._looked_at < LOOK_INTERVAL_S:
            return
        for address in self._cluster.masters():
            try:
                self._give(address)
            except BrokerError as error:
                if address not in self._known:
                    log.warning("no retention of topics before they are read group=%s broker=%s error=%s",
                                self._group, address, error)  # fmt: skip
            self._known.add(address)
        self._looked_at = now

    def _give(self, address: str) -> None:
        config = self._cluster.group_config(address, self._group)
        there = None if config is None else config.attributes.get(LAKE_RULES)
        if there == self._rules or (there is not None and address in self._known):
            return
        made = config or SubscriptionGroupConfig(group_name=self._group)
        self._cluster.set_group_attribute(address, made, LAKE_RULES, self._rules)
        if there is not None:
            log.warning("rules replaced group=%s broker=%s before=%s", self._group, address, there)
